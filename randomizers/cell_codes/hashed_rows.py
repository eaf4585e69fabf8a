"""Count-Min: in each of several rows, a public hash assigns every item to a bucket.

A single row without a hash, where every item has its own bucket, is a plain histogram.

Reference: Ghazi et al., *On the Power of Multiple Anonymous Messages*, 2019, Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.cell_codes.levels import check_items
from dpstream.randomizers.pairwise_hash import MOST_BUCKETS, PairwiseHash

KIND: Final = "rows"
MOST_ROWS: Final = 64


@dataclass(frozen=True, slots=True)
class HashedRows:
    """Rows (tau) with the same number of buckets (s); an item raises one cell in each row.

    Hashes are derived from `seed`, a public text. It is empty for a histogram, which has one row
    and a bucket for every item.

    >>> rows = HashedRows(size=1000, rows=2, buckets=50, seed="example")
    >>> rows.cells, rows.messages
    (100, 2)
    >>> rows.encode(np.array([1, 1000])).tolist()
    [[29, 73], [23, 60]]
    """

    size: int
    rows: int
    buckets: int
    seed: str

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 1:
            raise ValueError(f"'size' is {self.size!r}; expected an integer of at least 1")
        if type(self.rows) is not int or not 1 <= self.rows <= MOST_ROWS:
            raise ValueError(f"'rows' is {self.rows!r}; expected 1 to {MOST_ROWS}")
        if type(self.buckets) is not int or not 1 <= self.buckets <= MOST_BUCKETS:
            raise ValueError(f"'buckets' is {self.buckets!r}; expected 1 to {MOST_BUCKETS}")
        if not self.seed and (self.rows, self.buckets) != (1, self.size):
            raise ValueError(
                f"{self.rows} rows of {self.buckets} buckets require a seed; without a seed, "
                f"expected one row of {self.size} buckets"
            )

    @classmethod
    def histogram(cls, size: int) -> Self:
        return cls(size, 1, size, "")

    @property
    def direct(self) -> bool:
        return not self.seed

    @property
    def cells(self) -> int:
        return self.rows * self.buckets

    @property
    def messages(self) -> int:
        return self.rows

    @property
    def shared(self) -> int:
        return 0

    def encode(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        check_items(items, self.size)
        if self.direct:
            return items[:, None] - 1
        cells = np.empty((len(items), self.rows), np.int64)
        for row, each in enumerate(_hashes(self.seed, self.rows)):
            cells[:, row] = each.buckets(items, self.buckets)
            cells[:, row] += row * self.buckets
        return cells

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "size": self.size,
            "rows": self.rows,
            "buckets": self.buckets,
            "seed": self.seed,
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        if body["kind"] != KIND:
            raise ValueError(f"'kind' is {body['kind']!r}; expected {KIND!r}")
        return cls(body["size"], body["rows"], body["buckets"], body["seed"])


@lru_cache(maxsize=64)
def _hashes(seed: str, rows: int) -> tuple[PairwiseHash, ...]:
    return tuple(PairwiseHash.of(f"{seed} row {row}") for row in range(rows))
