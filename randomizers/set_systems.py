"""Systems of sets of messages, one set for each value, in which all pairs of values are alike.

There are P messages, the *points*. Each value x has a set S_x of s points, its *block*. Any two
different blocks have c points in common. A device prefers points in the block of its value, so a
point counts for every value whose block contains it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.laws import Constants

MOST_VALUES = 20
"""Maximum number of values with subsets as messages: they have at most 184,756 points."""

_AT_ONCE = 1 << 14


class SetSystem(Constants, ABC):
    __slots__ = ()

    @property
    @abstractmethod
    def points(self) -> int:
        """P, the number of messages."""

    @property
    @abstractmethod
    def block(self) -> int:
        """s, the number of points in each S_x."""

    @property
    @abstractmethod
    def common(self) -> int:
        """c, the number of points that any two different S_x have in common."""

    @property
    @abstractmethod
    def common_to_three(self) -> int:
        """Number of points that three different S_x have in common.

        In a projective space, three hyperplanes with a common line have more; they are rare.
        """

    @property
    @abstractmethod
    def most_values(self) -> int:
        """Number of blocks, which is the maximum number of values."""

    @property
    def outside(self) -> int:
        return self.points - self.block

    def elsewhere(self, own: Fraction) -> Fraction:
        """Return the probability of a point in another block, if `own` is that in S_x."""
        shared = Fraction(self.common, self.block)
        return own * shared + (1 - own) * Fraction(self.block - self.common, self.outside)

    @abstractmethod
    def choose(
        self,
        values: NDArray[np.uint32],
        inside: NDArray[np.bool_],
        among_inside: NDArray[np.uint32],
        among_outside: NDArray[np.uint32],
    ) -> NDArray[np.uint32]:
        """Return, for each value x, the point with a given number inside or outside S_x.

        All arrays have shape (n,). `among_inside` is the number among the `block` points in S_x,
        and `among_outside` the number among the `outside` points.
        """

    def draw(
        self, values: NDArray[np.integer], inside: NDArray[np.bool_], rng: np.random.Generator
    ) -> NDArray[np.uint32]:
        """Draw a uniform point inside or outside S_x, for every value x.

        A point inside and a point outside are drawn for every value, and one of them is used, so
        the number of draws does not depend on the values, shape (n,). `inside` is True for a point
        in S_x. Returns points, uint32, shape (n,).
        """
        points = np.empty(len(values), np.uint32)
        for start in range(0, len(values), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            size = len(points[part])
            points[part] = self.choose(
                values[part].astype(np.uint32),
                inside[part],
                rng.integers(0, self.block, size, np.uint32),
                rng.integers(0, self.outside, size, np.uint32),
            )
        return points


@dataclass(frozen=True, slots=True)
class Subsets(SetSystem):
    """All subsets of the values with a given size; S_x consists of the subsets that contain x.

    Points are numbered in colexicographic order: {c_1 < ... < c_w} is sum_i C(c_i, i). With two
    values and subsets of size 1, a point is a value: this is randomized response.

    >>> pair, triples = Subsets(2, 1), Subsets(6, 3)
    >>> pair.points, pair.block, pair.common, triples.points, triples.block, triples.common
    (2, 1, 0, 20, 10, 4)
    """

    values: int
    size: int

    def __post_init__(self) -> None:
        values, size = self.values, self.size
        if type(values) is not int or not 2 <= values <= MOST_VALUES:
            raise ValueError(f"'values' is {values!r}; expected 2 to {MOST_VALUES}")
        if type(size) is not int or not 1 <= size < values:
            raise ValueError(f"'size' is {size!r}; expected 1 to {values - 1}")

    @property
    def points(self) -> int:
        return math.comb(self.values, self.size)

    @property
    def block(self) -> int:
        return math.comb(self.values - 1, self.size - 1)

    @property
    def common(self) -> int:
        return math.comb(self.values - 2, self.size - 2) if self.size > 1 else 0

    @property
    def common_to_three(self) -> int:
        return math.comb(self.values - 3, self.size - 3) if self.size > 2 else 0

    @property
    def most_values(self) -> int:
        return self.values

    def choose(
        self,
        values: NDArray[np.uint32],
        inside: NDArray[np.bool_],
        among_inside: NDArray[np.uint32],
        among_outside: NDArray[np.uint32],
    ) -> NDArray[np.uint32]:
        """See `SetSystem`. Without x, a subset is numbered among those of the other values."""
        choices = _choices(self.values, self.size)
        number = np.where(inside, among_inside, among_outside)
        others = np.uint8(self.size) - inside
        more = np.full(len(values), self.size, np.uint8)
        points = np.zeros(len(values), np.uint32)
        for value in range(self.values - 1, -1, -1):
            own = values == value
            least = choices[value - (values < value), others]
            taken = ~own & (number >= least)
            number = number - np.where(taken, least, np.uint32(0))
            others = others - taken
            member = taken | (own & inside)
            points += np.where(member, choices[value, more], np.uint32(0))
            more = more - member
        return points

    def members(self) -> NDArray[np.bool_]:
        return _members(self.values, self.size)


@lru_cache(maxsize=64)
def _choices(values: int, size: int) -> NDArray[np.uint32]:
    rows = [[math.comb(n, k) for k in range(size + 1)] for n in range(values)]
    return np.array(rows, np.uint32)


@lru_cache(maxsize=4)
def _members(values: int, size: int) -> NDArray[np.bool_]:
    subsets = sorted(combinations(range(values), size), key=lambda subset: subset[::-1])
    members = np.zeros((len(subsets), values), np.bool_)
    np.put_along_axis(members, np.array(subsets), True, axis=1)
    return members
