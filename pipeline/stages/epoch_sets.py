"""Sets of epochs that need little memory for any number of epochs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Self


class EpochSet:
    """Set of epochs as disjoint, sorted runs.

    Epochs are decided nearly in order, so a million epochs form one run and a few outliers.

    >>> decided = EpochSet()
    >>> [decided.add(epoch) for epoch in (1, 2, 4, 2)]
    [True, True, True, False]
    >>> decided.highest, 3 in decided, list(decided.missing(1, 6))
    (4, False, [3, 5, 6])
    """

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []  # inclusive

    @classmethod
    def up_to(cls, last: int) -> Self:
        epochs = cls()
        if last:
            epochs._starts, epochs._ends = [1], [last]
        return epochs

    def __contains__(self, epoch: int) -> bool:
        run = bisect_right(self._starts, epoch) - 1
        return run >= 0 and epoch <= self._ends[run]

    def __bool__(self) -> bool:
        return bool(self._starts)

    @property
    def lowest(self) -> int:
        return self._starts[0] if self._starts else 0

    @property
    def highest(self) -> int:
        return self._ends[-1] if self._ends else 0

    def add(self, epoch: int) -> bool:
        if self._ends and epoch == self._ends[-1] + 1:
            self._ends[-1] = epoch
            return True
        run = bisect_right(self._starts, epoch) - 1
        if run >= 0 and epoch <= self._ends[run]:
            return False
        joins_left = run >= 0 and self._ends[run] == epoch - 1
        joins_right = run + 1 < len(self._starts) and self._starts[run + 1] == epoch + 1
        if joins_left and joins_right:
            self._ends[run] = self._ends.pop(run + 1)
            del self._starts[run + 1]
        elif joins_left:
            self._ends[run] = epoch
        elif joins_right:
            self._starts[run + 1] = epoch
        else:
            self._starts.insert(run + 1, epoch)
            self._ends.insert(run + 1, epoch)
        return True

    def missing(self, first: int, last: int) -> Iterator[int]:
        epoch = first
        for start, end in zip(self._starts, self._ends, strict=True):
            if end < epoch:
                continue
            yield from range(epoch, min(start, last + 1))
            epoch = max(epoch, end + 1)
        yield from range(epoch, last + 1)

    def below(self, epoch: int) -> Iterator[int]:
        """Yield the epochs in the set before `epoch`, latest first."""
        for run in range(bisect_right(self._starts, epoch - 1) - 1, -1, -1):
            yield from range(min(self._ends[run], epoch - 1), self._starts[run] - 1, -1)

    def first_missing(self, first: int) -> int:
        run = bisect_right(self._starts, first) - 1
        return self._ends[run] + 1 if run >= 0 and first <= self._ends[run] else first
