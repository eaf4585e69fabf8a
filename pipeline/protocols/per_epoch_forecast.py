"""Common base of forecasts for item counts at independent epochs."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.cell_codes.codes import CellCode
from dpstream.randomizers.cell_codes.grid import Grid
from dpstream.randomizers.cell_codes.hashed_rows import HashedRows
from dpstream.randomizers.cell_codes.kept_nodes import KeptNodes
from dpstream.randomizers.cell_codes.levels import Levels
from dpstream.randomizers.cell_codes.prefixes import PrefixCells
from dpstream.randomizers.row_errors import normal_errors, usual_error, zipf_counts

_COUNTED = 100_000


class PerEpochForecast(ABC):
    """Forecast in which epochs with the same number of contributors are equally accurate.

    Args:
        size: Number of items.
        items: Maximum number of items per user.
        held: Fraction of users with each item, in any order, which determines the skew. None for
            Zipf's law, where every user has the maximum number of items.
    """

    def __init__(
        self, last_epoch: int, size: int, items: int, held: NDArray[np.float64] | None
    ) -> None:
        self._last_epoch = last_epoch
        self._held = zipf_counts(min(size, _COUNTED), items) if held is None else held

    @abstractmethod
    def _deviation(self, users: int) -> float:
        """Return the standard error of an item's estimate, in users."""

    def _noise_deviation(self, users: int) -> float:
        return self._deviation(users)

    def standard_errors(self, users: int) -> NDArray[np.float64]:
        return np.full(self._last_epoch, self._deviation(users))

    def predicted_error(self, users: int) -> float:
        return self._usual(normal_errors(self._deviation(users)), users)

    def noise_error(self, users: int) -> float:
        return self._usual(normal_errors(self._noise_deviation(users)), users)

    def _usual(self, errors: NDArray[np.float64], users: int) -> float:
        return usual_error(errors, users * self._held)


def describe_code(code: CellCode) -> str:
    """Describe the cells of a code: rows of buckets, a tree, a histogram.

    >>> describe_code(HashedRows(10_000, 5, 8192, seed="rows"))
    '5 rows of 8,192 hashed buckets'
    >>> describe_code(Grid((Levels(64, (8, 8)), Levels(64, (64,)))))
    'a tree of 64 values, branching 8 x 8, times a tree of 64 values, branching 64'
    """
    match code:
        case HashedRows() if code.direct:
            return f"a histogram, with a cell for each of {code.size:,} items"
        case HashedRows():
            rows = "1 row" if code.rows == 1 else f"{code.rows:,} rows"
            return f"{rows} of {code.buckets:,} hashed buckets"
        case Levels():
            return (
                f"a tree of {code.size:,} values, branching {' x '.join(map(str, code.branching))}"
            )
        case KeptNodes():
            return f"the root and all left children of a binary tree of {code.size:,} values"
        case Grid():
            return ", times ".join(map(describe_code, code.axes))
        case PrefixCells():
            levels = (
                f"{level.length} bits in {level.buckets:,}{'' if level.direct else ' hashed'} cells"
                for level in code.levels
            )
            return f"prefixes of {', '.join(levels)}"
        case _:
            return f"{code.cells:,} cells"
