"""What can keep a device from reporting; messages say what to do, and name no value."""

from __future__ import annotations


class DeviceError(Exception):
    """Something that the app has to know; nothing has been drawn or sent because of it."""


class StatementError(DeviceError):
    """What the server says of the job cannot be believed, or is not what the device has joined."""


class LimitError(DeviceError):
    """The device's own account has no room for what the job would cost."""


class NotJoinedError(DeviceError):
    """The device is in no running deployment of the job: join first."""


class ClosedError(DeviceError):
    """The job has not begun, or is over: there is no epoch to report."""


class ValueRefusedError(DeviceError):
    """The value is none that the job knows; the message says which there are."""


class StoreError(DeviceError):
    """What the device keeps cannot be read or written."""


class UnreachableError(DeviceError):
    """Nobody answered, or not in the form that was agreed on: try again later."""
