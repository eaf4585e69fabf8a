"""What metrics say of the latest estimate: numbers that are published, and no others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublishedNumber:
    """A number of an epoch, and by how much it has changed since the epoch before.

    Attributes:
        item: what it is about; empty for a job that counts one value.
        value: the estimate.
        interval: its 95 % interval; None where no coverage is claimed.
        change: since the epoch before; None where it is not known.
        change_interval: that of the change, which is its own.
    """

    item: str
    value: float
    interval: tuple[float, float] | None = None
    change: float | None = None
    change_interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class PublishedNumbers:
    """The numbers of the latest epoch that was published; none where nothing is said of it."""

    epoch: int
    numbers: tuple[PublishedNumber, ...]
