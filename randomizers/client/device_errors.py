"""Errors that keep a device from reporting. Messages say what to do and never contain a value."""

from __future__ import annotations


class DeviceError(Exception):
    """Condition that the app must handle; nothing was drawn or sent because of it."""


class StatementError(DeviceError):
    """The server's statement is not trustworthy, or differs from the one joined."""


class LimitError(DeviceError):
    """The job's cost would exceed the limit of the device's own account."""


class NotJoinedError(DeviceError):
    """The device is in no running deployment of the job: join first."""


class ClosedError(DeviceError):
    """The job has not started or has ended: there is no epoch to report."""


class ValueRejectedError(DeviceError):
    """The job does not know the value; the message lists the valid ones."""


class StoreError(DeviceError):
    """The device's document cannot be read or written."""


class UnreachableError(DeviceError):
    """The server did not answer, or its answer was malformed: try again later."""
