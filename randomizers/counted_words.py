"""Reports of which many are equal: each of them once, and how often it occurs.

A population of devices that raise cells sends far more reports than there are cells. What leaves it
is a multiset in any case, so it may as well be counted where it is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class CountedWords:
    """Distinct reports with counts.

    >>> CountedWords.of_cells(np.array([0, 2, 1]), np.dtype("u1")).written_out().tolist()
    [[1], [1], [2]]

    Attributes:
        values: unsigned words, shape (rows, width), rows strictly increasing.
        counts: uint32 or uint64, shape (rows,), at least 1.
    """

    values: NDArray[np.unsignedinteger]
    counts: NDArray[np.unsignedinteger]

    @classmethod
    def of_cells(
        cls, counts: NDArray[np.integer], dtype: np.dtype[np.unsignedinteger]
    ) -> CountedWords:
        """Of a table: how often each of the words 0, 1, ... occurs, shape (cells,)."""
        words = np.flatnonzero(counts)
        occurring = counts[words]
        narrow = occurring.max(initial=0) < 1 << 32
        return cls(
            words.astype(dtype)[:, None], occurring.astype(np.uint32 if narrow else np.uint64)
        )

    @property
    def messages(self) -> int:
        """Reports these words stand for."""
        return int(self.counts.sum(dtype=np.uint64))

    def written_out(self) -> NDArray[np.unsignedinteger]:
        """Every report as a row of its own, shape (messages, width)."""
        return np.repeat(self.values, self.counts.astype(np.intp), axis=0)


Reports: TypeAlias = NDArray[np.unsignedinteger] | CountedWords
"""Of one drawing, shape (n, width), or counted."""


def written_out(reports: Reports) -> NDArray[np.unsignedinteger]:
    """Reports one by one, shape (messages, width), whichever way they were given."""
    return reports.written_out() if isinstance(reports, CountedWords) else reports
