"""Cells for the prefixes of items, to find the top items in a domain too large to list.

Every level has a prefix length. An item of a domain of size 2^bits raises one cell per level: that
of its prefix of this length. The last level's prefix is the whole item. A level with a cell for
every prefix is direct; a level with fewer cells is hashed. A search starts with the prefixes of the
first level and extends only the frequent ones, by several bits at once.

Reference: Ghazi et al., *On the Power of Multiple Anonymous Messages*, 2019, Appendix D, after
Bassily, Nissim, Stemmer, Thakurta 2017.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.open_domains import MOST_BITS
from dpstream.randomizers.pairwise_hash import MOST_BUCKETS, PairwiseHash

FEWEST_HASHED: Final = 2


@dataclass(frozen=True, slots=True)
class PrefixLevel:
    """Prefixes of `length` bits; there are 2^length `buckets`, or fewer if prefixes are hashed."""

    length: int
    buckets: int

    def __post_init__(self) -> None:
        if type(self.length) is not int or not 1 <= self.length <= MOST_BITS:
            raise ValueError(f"'length' is {self.length!r}; expected 1 to {MOST_BITS} bits")
        most = min(1 << self.length, MOST_BUCKETS)
        if type(self.buckets) is not int or not FEWEST_HASHED <= self.buckets <= most:
            raise ValueError(
                f"'buckets' is {self.buckets!r} for prefixes of {self.length} bits; expected "
                f"{FEWEST_HASHED} to {most}"
            )

    @property
    def direct(self) -> bool:
        return self.buckets == 1 << self.length


@dataclass(frozen=True, slots=True)
class PrefixCells:
    """Cells of all levels, numbered one level after the other.

    Levels are by increasing prefix length; the last prefixes are whole items. Hashes are derived
    from `seed`, a public text.

    >>> code = PrefixCells((PrefixLevel(2, 4), PrefixLevel(8, 100)), seed="example")
    >>> code.cells, code.messages
    (104, 2)
    >>> code.encode(np.array([1, 256, 0])).tolist()
    [[0, 33], [3, 49], [-1, -1]]
    """

    kind: ClassVar[str] = "prefixes"

    levels: tuple[PrefixLevel, ...]
    seed: str

    def __post_init__(self) -> None:
        if not self.levels:
            raise ValueError("'levels' is empty; expected at least one level")
        if any(one.length >= other.length for one, other in pairwise(self.levels)):
            lengths = [level.length for level in self.levels]
            raise ValueError(f"prefix lengths are {lengths}; expected increasing lengths")

    @property
    def bits(self) -> int:
        return self.levels[-1].length

    @property
    def size(self) -> int:
        return 1 << self.levels[-1].length

    @property
    def cells(self) -> int:
        return sum(level.buckets for level in self.levels)

    @property
    def messages(self) -> int:
        return len(self.levels)

    @property
    def shared(self) -> int:
        return 0

    @property
    def starts(self) -> tuple[int, ...]:
        """The first cell of each level, then the total number of cells."""
        return tuple(accumulate((level.buckets for level in self.levels), initial=0))

    def encode(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        if len(items) and not 0 <= int(items.min()) <= int(items.max()) <= 1 << self.bits:
            raise ValueError(
                f"items range from {items.min()} to {items.max()}; expected 0 to 2^{self.bits}"
            )
        cells = np.empty((len(items), self.messages), np.int64)
        numbers = np.maximum(items - 1, 0)
        for index, (level, start) in enumerate(zip(self.levels, self.starts, strict=False)):
            prefixes = numbers >> (self.bits - level.length)
            cells[:, index] = start + self.level_buckets(index, prefixes)
        cells[items == 0] = -1
        return cells

    def level_buckets(self, index: int, prefixes: NDArray[np.int64]) -> NDArray[np.int64]:
        level = self.levels[index]
        if level.direct:
            return prefixes
        return PairwiseHash.of(f"{self.seed} level {index}").buckets(prefixes, level.buckets)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "levels": [[level.length, level.buckets] for level in self.levels],
            "seed": self.seed,
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        if body["kind"] != cls.kind:
            raise ValueError(f"'kind' is {body['kind']!r}; expected {cls.kind!r}")
        return cls(
            levels=tuple(PrefixLevel(length, buckets) for length, buckets in body["levels"]),
            seed=str(body["seed"]),
        )
