"""What all aggregators have in common that keep a table of counts of every epoch."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Generic, Protocol, Self, TypeVar

from dpstream.aggregators.epoch_tables import EpochTables
from dpstream.aggregators.law_aggregator import LawAggregator


class TablesLaw(Protocol):
    """What has to be known of the constants of a job."""

    @property
    def last_epoch(self) -> int:
        """Number of epochs."""
        ...


LawT = TypeVar("LawT", bound=TablesLaw)


class TableAggregator(LawAggregator[LawT], Generic[LawT]):
    """Counts by epoch; equal whatever the order, and however they were split and merged.

    Args:
        law: the constants of the job.
    """

    ordered: ClassVar[bool] = False
    """Items are no places of a tree."""

    def __init__(self, law: LawT) -> None:
        super().__init__(law)
        self._tables = EpochTables(self.cells)

    @property
    @abstractmethod
    def cells(self) -> int:
        """How many numbers are kept of an epoch."""

    def _merge(self, other: Self) -> None:
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
