"""Counts of epochs that stand alone: one row of integers for each."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import NDArray

_COUNT_CAP = 2**53


class EpochTables:
    """For every epoch with reports, `width` counts; merged by adding.

    Args:
        last_epoch: number of epochs.
        width: how many counts there are.
    """

    def __init__(self, last_epoch: int, width: int) -> None:
        self._last_epoch, self._width = last_epoch, width
        self._rows: dict[int, NDArray[np.int64]] = {}

    def add(self, epoch: int, counts: NDArray[np.int64]) -> None:
        """Add counts, shape (width,), to those of an epoch."""
        row = self._rows.get(epoch)
        self._rows[epoch] = counts.copy() if row is None else row + counts

    def get(self, epoch: int) -> NDArray[np.int64] | None:
        """The counts of an epoch; None where there are none."""
        return self._rows.get(epoch)

    def merge(self, other: Self) -> None:
        """Add all counts of another one."""
        for epoch, counts in other._rows.items():
            self.add(epoch, counts)

    def to_bytes(self) -> bytes:
        """For every epoch its number and its counts (i8 each); ascending."""
        entries = [np.append(np.int64(epoch), self._rows[epoch]) for epoch in sorted(self._rows)]
        return b"".join(entry.astype("<i8").tobytes() for entry in entries)

    @classmethod
    def from_bytes(cls, last_epoch: int, width: int, data: bytes) -> Self:
        """Read `to_bytes`.

        Raises:
            ValueError: the bytes are no counts of this horizon.
        """
        size = 8 * (width + 1)
        if len(data) % size:
            raise ValueError(f"counts of {len(data)} bytes, an epoch takes {size}")
        entries = np.frombuffer(data, "<i8").reshape(-1, width + 1).astype(np.int64)
        epochs, counts = entries[:, 0], entries[:, 1:]
        if (epochs[1:] <= epochs[:-1]).any():
            raise ValueError("the epochs of counts do not strictly increase")
        if len(epochs) and not 1 <= int(epochs[0]) <= int(epochs[-1]) <= last_epoch:
            raise ValueError(
                f"counts of epochs {epochs[0]} to {epochs[-1]}, the horizon has {last_epoch}"
            )
        if (counts < 0).any() or (counts > _COUNT_CAP).any() or not counts.any(axis=1).all():
            raise ValueError("counts of an epoch must be from 0 to 2^53, and not all 0")
        tables = cls(last_epoch, width)
        for epoch, row in zip(epochs.tolist(), counts, strict=True):
            tables.add(epoch, row)
        return tables
