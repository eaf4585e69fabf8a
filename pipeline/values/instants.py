"""Moments as people and programs read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iso(milliseconds: int) -> str:
    """A moment given in milliseconds since 1970, as ISO 8601.

    >>> iso(1_700_000_000_123)
    '2023-11-14T22:13:20.123Z'
    """
    return iso_moment(moment_of(milliseconds), "milliseconds")


def moment_of(milliseconds: int) -> datetime:
    """A moment given in milliseconds since 1970, in UTC."""
    return _EPOCH + timedelta(milliseconds=milliseconds)


def iso_moment(moment: datetime, timespec: str = "auto") -> str:
    """A moment with a zone as ISO 8601, to the second unless it has parts of one.

    >>> iso_moment(datetime(2024, 6, 3, tzinfo=UTC))
    '2024-06-03T00:00:00Z'
    """
    return moment.isoformat(timespec=timespec).replace("+00:00", "Z")
