"""Tables of cell counts by epoch, for a small number of cells."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.law_aggregator import LawAggregator, check_format
from dpstream.topics.message_formats import MessageFormat

_HEADER = np.dtype([("epoch", "<u8"), ("cells", "<u8"), ("bytes", "u1")])
# The counts of a record have the narrowest type that fits the largest one.
_COUNT_TYPES = (np.dtype("<u1"), np.dtype("<u2"), np.dtype("<u4"), np.dtype("<i8"))
_COUNT_CAP = 1 << 53

MOST_RESUMED: Final = 1 << 12
"""Maximum number of counts of an epoch that are stored with its estimate."""


class EpochTables:
    """Numbers of reports by epoch and cell.

    >>> state = EpochTables(cells=4)
    >>> state.add(2, np.array([[3], [3], [0]], np.uint32), None)
    >>> state.counts(2).tolist(), EpochTables.from_bytes(4, 2, state.to_bytes()) == state
    ([1, 0, 0, 2], True)
    """

    def __init__(self, cells: int) -> None:
        self.cells = cells
        self._epochs: dict[int, NDArray[Any]] = {}

    def add(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        """Count reports, shape (n, 1), with multiplicities `counts`; None means 1 each."""
        table = self._table(epoch)
        cells = words[:, 0]
        if counts is None:
            # A pass over a separate table pays off only for many reports.
            if len(cells) * 8 >= self.cells:
                table += np.bincount(cells, minlength=self.cells)
            else:
                np.add.at(table, cells, 1)
        else:
            np.add.at(table, cells, counts.astype(np.int64))

    def add_table(self, epoch: int, counts: NDArray[Any]) -> None:
        table = self._table(epoch)
        table += counts

    def counts(self, epoch: int) -> NDArray[np.int64] | None:
        """Return the table of an epoch, int64, shape (cells,), or None if no reports arrived."""
        table = self._epochs.get(epoch)
        return None if table is None else table.astype(np.int64, copy=False)

    def added_up(self, epochs: Iterable[int]) -> NDArray[np.int64]:
        total = np.zeros(self.cells, np.int64)
        for epoch in epochs:
            total += self._epochs.get(epoch, 0)
        return total

    @property
    def epochs(self) -> list[int]:
        return sorted(self._epochs)

    def merge(self, other: Self) -> None:
        if other.cells != self.cells:
            raise ValueError(
                f"a table with {other.cells} cells cannot be merged with one of {self.cells} cells"
            )
        for epoch, table in other._epochs.items():
            if epoch in self._epochs:
                self.add_table(epoch, table)
            else:
                self._epochs[epoch] = _narrowed(table)

    def to_bytes(self) -> bytes:
        pieces = []
        for epoch in self.epochs:
            table = _narrowed(self._epochs[epoch])
            pieces += [
                np.array([(epoch, self.cells, table.itemsize)], _HEADER).tobytes(),
                table.tobytes(),
            ]
        return b"".join(pieces)

    @classmethod
    def from_bytes(cls, cells: int, last_epoch: int, data: bytes) -> Self:
        state, position = cls(cells), 0
        while position < len(data):
            if len(data) - position < _HEADER.itemsize:
                raise ValueError(f"cell counts are truncated after {len(data)} bytes")
            header = np.frombuffer(data, _HEADER, 1, position)[0]
            position += _HEADER.itemsize
            epoch, many, width = int(header["epoch"]), int(header["cells"]), int(header["bytes"])
            dtype = {each.itemsize: each for each in _COUNT_TYPES}.get(width)
            if dtype is None or many != cells or len(data) - position < many * width:
                raise ValueError(
                    f"table of {many} cells, {width} bytes each, is invalid or truncated; expected "
                    f"{cells} cells of 1, 2, 4 or 8 bytes each"
                )
            table = np.frombuffer(data, dtype, many, position).copy()
            before = max(state._epochs, default=0)
            if not before < epoch <= last_epoch:
                raise ValueError(
                    f"epoch {epoch} follows epoch {before}; expected increasing epochs up to "
                    f"{last_epoch}"
                )
            if table.min(initial=0) < 0 or table.max(initial=0) > _COUNT_CAP:
                raise ValueError(f"a count at epoch {epoch} is out of range; expected 0 to 2^53")
            state._epochs[epoch] = table
            position += many * width
        return state

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EpochTables) and self.to_bytes() == other.to_bytes()

    __hash__ = None  # type: ignore[assignment]

    def _table(self, epoch: int) -> NDArray[np.int64]:
        """Return the table of an epoch, widened to int64 so that reports can be added."""
        table = self._epochs.get(epoch)
        if table is None or table.dtype != np.int64:
            wider = np.zeros(self.cells, np.int64)
            if table is not None:
                wider += table
            self._epochs[epoch] = wider
            return wider
        return table


def _narrowed(table: NDArray[Any]) -> NDArray[Any]:
    largest = int(table.max(initial=0))
    return table.astype(next(each for each in _COUNT_TYPES if largest <= np.iinfo(each).max))


class TablesLaw(Protocol):
    @property
    def last_epoch(self) -> int: ...


LawT = TypeVar("LawT", bound=TablesLaw)


class TableAggregator(LawAggregator[LawT], Generic[LawT]):
    ordered: ClassVar[bool] = False
    """True if items are ordered as in a tree, which supports ranges and quantiles."""

    def __init__(self, law: LawT) -> None:
        super().__init__(law)
        self._tables = EpochTables(self.cells)

    @property
    @abstractmethod
    def cells(self) -> int:
        """Number of counts stored per epoch."""

    def _merge(self, other: Self) -> None:
        self._tables.merge(other._tables)

    def to_bytes(self) -> bytes:
        return self._tables.to_bytes()

    @classmethod
    def from_bytes(cls, law: LawT, data: bytes) -> Self:
        aggregator = cls(law)
        aggregator._tables = EpochTables.from_bytes(aggregator.cells, law.last_epoch, data)
        return aggregator


class WordsLaw(TablesLaw, Protocol):
    @property
    def message_format(self) -> MessageFormat: ...


WordsLawT = TypeVar("WordsLawT", bound=WordsLaw)


class WordAggregator(TableAggregator[WordsLawT], Generic[WordsLawT]):
    """Count how often each word was sent, if a message is one of few enough words."""

    @property
    def _words(self) -> int:
        distinct = self.law.message_format.distinct
        assert distinct is not None
        return distinct

    @property
    def cells(self) -> int:
        return self._words

    def check_messages(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        check_format(epoch, self.law.last_epoch, words, self.law.message_format.dtype)
        if len(words) and int(words.max()) >= self._words:
            raise ValueError(
                f"message at epoch {epoch} is {words.max()}; expected 0 to {self._words - 1}"
            )

    def _count(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        self._tables.add(epoch, words, counts)


class ResumableTables(TableAggregator[LawT], Generic[LawT]):
    def state_after(self, epoch: int, participation: Participation) -> dict[str, Any]:
        counts = self._tables.counts(epoch)
        return {"epoch": epoch, "counts": [] if counts is None else counts.tolist()}

    def resume(self, state: Mapping[str, Any], participation: Participation) -> None:
        epoch, counts = state["epoch"], state["counts"]
        if not all(type(each) is int and each >= 0 for each in (epoch, *counts)) or (
            len(counts) not in (0, self.cells)
        ):
            raise ValueError(
                f"saved state is {dict(state)}; expected {self.cells} nonnegative integers"
            )
        if counts:
            self._tables.add_table(epoch, np.array(counts, np.int64))
