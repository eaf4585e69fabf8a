"""What all aggregators have in common that keep a table of counts of every epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.epoch_tables import EpochTables


class TablesLaw(Protocol):
    """What has to be known of the constants of a job."""

    @property
    def last_epoch(self) -> int:
        """Number of epochs."""
        ...


LawT = TypeVar("LawT", bound=TablesLaw)


class TableAggregator(ABC, Generic[LawT]):
    """Counts by epoch; equal whatever the order, and however they were split and merged.

    Args:
        law: the constants of the job.
    """

    ordered: ClassVar[bool] = False
    """Items are no places of a tree."""

    def __init__(self, law: LawT) -> None:
        self.law = law
        self._tables = EpochTables(self.cells)

    @property
    @abstractmethod
    def cells(self) -> int:
        """How many numbers are kept of an epoch."""

    @abstractmethod
    def check_words(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        """Raise `ValueError` if words cannot be messages of an epoch."""

    @abstractmethod
    def _count(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        """Count messages that were checked; at least one."""

    def add(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        """Count messages.

        Args:
            epoch: 1 to the last one.
            words: shape (n, width), as the devices report.
            counts: unsigned, shape (n,), how often each was received; None for once each.

        Raises:
            ValueError: from `check_words`; nothing is counted then.
        """
        self.check_words(epoch, words)
        if len(words):
            self._count(epoch, words, counts)

    def merge(self, other: Self) -> None:
        """Count what another aggregator of the same law has counted."""
        if other.law != self.law:
            raise ValueError("aggregators of two different laws cannot be merged")
        self._tables.merge(other._tables)

    def to_bytes(self) -> bytes:
        """See `EpochTables.to_bytes`."""
        return self._tables.to_bytes()

    @classmethod
    def from_bytes(cls, law: LawT, data: bytes) -> Self:
        """Read `to_bytes`.

        Raises:
            ValueError: the bytes are no counts of this horizon.
        """
        aggregator = cls(law)
        aggregator._tables = EpochTables.from_bytes(aggregator.cells, law.last_epoch, data)
        return aggregator
