"""Errors that keep a device from reporting. Messages name a remedy and never contain values."""

from __future__ import annotations


class DeviceError(Exception):
    """Condition that the app must handle; the device randomized and sent nothing."""


class StatementError(DeviceError):
    """The server's statement is not trustworthy, or differs from the joined statement."""


class LimitError(DeviceError):
    """The job's cost would exceed the limit of the device's own account."""


class NotJoinedError(DeviceError):
    """The device has not joined the running deployment of the job: join first."""


class ClosedError(DeviceError):
    """The job has not started or has ended: there is no epoch to report."""


class ValueRejectedError(DeviceError):
    """The job does not have this value; the message describes the valid values."""


class StoreError(DeviceError):
    """The device's document cannot be read or written."""


class UnreachableError(DeviceError):
    """The server did not answer, or its answer was malformed: try again later."""
