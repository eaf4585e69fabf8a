"""Item domains of a job file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, TypeAlias

from dpstream.randomizers.equal_buckets import EqualBuckets
from dpstream.randomizers.open_domains import MOST_BITS, MOST_BYTES

MOST_PUBLISHED: Final = 1 << 15
"""Size of the largest domain published in full; for larger ones, only top items are published."""


@dataclass(frozen=True, slots=True)
class Bits:
    """Integers from 0 to 2^bits - 1."""

    bits: int

    def __post_init__(self) -> None:
        if type(self.bits) is not int or not 1 <= self.bits <= MOST_BITS:
            raise ValueError(f"'bits' is {self.bits!r}; expected 1 to {MOST_BITS}")


@dataclass(frozen=True, slots=True)
class StringLength:
    bytes: int

    def __post_init__(self) -> None:
        if type(self.bytes) is not int or not 1 <= self.bytes <= MOST_BYTES:
            raise ValueError(f"'bytes' is {self.bytes!r}; expected 1 to {MOST_BYTES}")


@dataclass(frozen=True, slots=True)
class Strings:
    strings: StringLength


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers in [low, high), in buckets of equal width."""

    low: float
    high: float
    buckets: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"'low' is {self.low} and 'high' is {self.high}; expected low < high")
        if type(self.buckets) is not int or not 2 <= self.buckets <= 1 << 24:
            raise ValueError(f"'buckets' is {self.buckets!r}; expected 2 to {1 << 24}")
        EqualBuckets(self.low, self.high, self.buckets)


@dataclass(frozen=True, slots=True)
class Points:
    """Points of a grid: one integer from 0 per dimension, written ``3;17``."""

    grid: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.grid) <= 6 or any(type(n) is not int or n < 2 for n in self.grid):
            raise ValueError(f"'grid' is {list(self.grid)}; expected 1 to 6 integers of at least 2")
        if math.prod(self.grid) > 1 << 24:
            raise ValueError(f"grid has {math.prod(self.grid)} points; expected at most {1 << 24}")


ItemDomain: TypeAlias = tuple[str, ...] | Bits | Strings | Numbers | Points
"""Labels, or one of the classes above; in their order, the values are the items 1, 2, ..."""

StreamDomain: TypeAlias = tuple[str, ...] | Numbers | Bits
"""Domain in which a user has one value at a time; numbers and bits support range queries."""


def domain_size(domain: ItemDomain) -> int:
    match domain:
        case Bits():
            return 1 << domain.bits
        case Strings():
            return 1 << 8 * domain.strings.bytes
        case Numbers():
            return domain.buckets
        case Points():
            return math.prod(domain.grid)
        case _:
            return len(domain)
