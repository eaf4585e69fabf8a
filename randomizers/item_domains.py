"""Item domains of a job file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from dpstream.randomizers.equal_buckets import EqualBuckets
from dpstream.randomizers.open_domains import MOST_BITS, MOST_BYTES

MOST_PREDICATES: Final = 1 << 12

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


Values: TypeAlias = tuple[str, ...]
"""Condition that holds for the listed values; strings that are numbers are compared as numbers."""

Between: TypeAlias = dict[Literal["from", "below"], float]
"""Condition on a number: at least ``from``, less than ``below``, or both."""


@dataclass(frozen=True, slots=True)
class Predicates:
    """Named conditions on a value; each condition that a value meets is an item of the user.

    Items are in the order of `names`, independent of the order in a job file or its record.

    >>> Predicates({"minor": {"below": 18}, "adult": {"from": 18}, "round": ("20", "30")})
    ... # doctest: +ELLIPSIS
    Predicates(...)
    """

    predicates: dict[str, Values | Between]

    def __post_init__(self) -> None:
        if not 1 <= len(self.predicates) <= MOST_PREDICATES:
            raise ValueError(
                f"got {len(self.predicates)} predicates; expected 1 to {MOST_PREDICATES}"
            )
        for name, condition in self.predicates.items():
            if not name:
                raise ValueError("predicates: a name is empty; expected at least one character")
            if not condition:
                raise ValueError(
                    f"predicates: {name!r} is empty; expected a list of values, or a numeric "
                    "range with 'from', 'below' or both"
                )
            if isinstance(condition, dict) and not condition.get("from", -math.inf) < condition.get(
                "below", math.inf
            ):
                raise ValueError(f"predicates: {name!r} matches nothing; expected 'from' < 'below'")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.predicates))


@dataclass(frozen=True, slots=True)
class Attributes:
    """Attributes of a user with their possible values; each value of an attribute is an item.

    Items are in the order of `names`, independent of the order in a job file or its record.

    >>> Attributes({"region": ("north", "south"), "age": ("young", "old")}).names
    ('age=young', 'age=old', 'region=north', 'region=south')
    """

    attributes: dict[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        if not self.attributes:
            raise ValueError(
                "'attributes' is empty; expected at least one attribute with its values"
            )
        for name, values in self.attributes.items():
            if not name or "=" in name:
                raise ValueError(
                    f"attributes: invalid name {name!r}; expected a non-empty name without '='"
                )
            if not values or len(set(values)) < len(values) or "" in values:
                raise ValueError(
                    f"attributes: values of {name!r} are missing, duplicate or empty; expected "
                    "distinct, non-empty values"
                )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(
            f"{name}={value}"
            for name, values in sorted(self.attributes.items())
            for value in values
        )


ItemDomain: TypeAlias = (
    tuple[str, ...] | Bits | Strings | Numbers | Points | Predicates | Attributes
)
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
        case Predicates():
            return len(domain.predicates)
        case Attributes():
            return sum(map(len, domain.attributes.values()))
        case _:
            return len(domain)
