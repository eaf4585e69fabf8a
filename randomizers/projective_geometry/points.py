"""The points of a projective space over a prime field, as numbers, and which are orthogonal.

A point is a line through the origin of F_q^t. Every point has one vector whose first coordinate
that is not 0 is 1: so words are numbered, in the order of these vectors read as numbers of t digits
to the base q. It also has one whose last coordinate that is not 0, the pivot, is 1: so items are
numbered, by the place of the pivot and then by the coordinates before it. In both orders the
numbers with k free coordinates are the q^k from (q^k - 1) / (q - 1) on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.affine_hashes import is_prime

MOST_POINTS = 1 << 22
"""Of a space."""

_AT_ONCE = 1 << 14


@dataclass(frozen=True, slots=True)
class PointSpace:
    """The points of PG(t - 1, q), which are also its hyperplanes: S_x is all y with <x, y> = 0.

    >>> space = PointSpace(3, 3)
    >>> space.points, space.hyperplane, space.common
    (13, 4, 1)

    Attributes:
        order: q, a prime.
        coordinates: t, at least 2.

    Raises:
        ValueError: q is no prime, or there are fewer coordinates or more than `MOST_POINTS`.
    """

    order: int
    coordinates: int

    def __post_init__(self) -> None:
        if not is_prime(self.order) or type(self.coordinates) is not int or self.coordinates < 2:
            raise ValueError(
                f"no space of {self.coordinates} coordinates over a field of {self.order} elements"
            )
        if self.points > MOST_POINTS:
            raise ValueError(f"{self.points:,} points, must be at most {MOST_POINTS:,}")

    @property
    def points(self) -> int:
        """N, as many as hyperplanes."""
        return self.first(self.coordinates)

    @property
    def hyperplane(self) -> int:
        """Points of S_x."""
        return self.first(self.coordinates - 1)

    @property
    def outside(self) -> int:
        """Points that S_x lacks: q^(t - 1)."""
        return self.points - self.hyperplane

    @property
    def common(self) -> int:
        """Points that any two different S_x have in common."""
        return self.first(self.coordinates - 2)

    def first(self, free: int) -> int:
        """The first number of a point with so many free coordinates."""
        return int((self.order**free - 1) // (self.order - 1))

    def draw(
        self, items: NDArray[np.integer], inside: NDArray[np.bool_], rng: np.random.Generator
    ) -> NDArray[np.uint32]:
        """For every item a point that is uniform in its S_x, or outside of it.

        Both are drawn for everybody, and one of them is taken: what is drawn depends on no item.

        Args:
            items: numbers of points x, shape (n,).
            inside: which are to lie in S_x, shape (n,).
            rng: the randomness.

        Returns:
            uint32, shape (n,), numbers of points y.
        """
        words = np.empty(len(items), np.uint32)
        for start in range(0, len(items), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            size = len(words[part])
            words[part] = self.choose(
                items[part].astype(np.uint32),
                inside[part],
                rng.integers(0, self.hyperplane, size, np.uint32),
                rng.integers(0, self.outside, size, np.uint32),
            )
        return words

    def choose(
        self,
        items: NDArray[np.uint32],
        inside: NDArray[np.bool_],
        among_inside: NDArray[np.uint32],
        among_outside: NDArray[np.uint32],
    ) -> NDArray[np.uint32]:
        """The point y of each item's S_x, or of those outside, that has a number there.

        Without the coordinate at the pivot of x, the points of S_x are all points z of a space of
        one coordinate less: <x, y> = 0 says what that coordinate is. Those outside are the same
        with each of the q - 1 other values there, if z begins before the pivot; and, if y begins
        with the pivot, 1 there and anything after it.

        Args:
            items: numbers of x, shape (n,).
            inside: whether y is to be in S_x, shape (n,).
            among_inside: below `hyperplane`, shape (n,).
            among_outside: below `outside`, shape (n,).

        Returns:
            uint32, shape (n,).
        """
        order = np.uint32(self.order)
        powers = np.array([self.order**k for k in range(self.coordinates)], np.uint32)
        firsts = np.array([self.first(k) for k in range(self.coordinates)], np.uint32)
        # From numbers to vectors read as numbers.
        steps = powers - firsts
        pivot = self._free(items)
        before = items - firsts[pivot]
        after = np.uint8(self.coordinates - 1) - pivot
        weight = powers[after]

        other, more = np.divmod(among_outside - weight, order - np.uint32(1))
        begins = ~inside & (among_outside < weight)
        number = np.where(inside, among_inside, firsts[after] + other)
        shift = np.where(inside, 0, more + np.uint32(1))
        # What is computed for those that begin with the pivot is not used.
        number[begins] = 0

        free = self._free(number)
        vector = number + steps[free]
        upper = vector // weight
        lower = vector - upper * weight
        pivot_coordinate = (shift + order - self._dot(before, upper)) % order
        longer = upper > 0
        vector = np.where(longer, (upper * order + pivot_coordinate) * weight + lower, vector)
        free = free + longer
        words = vector - steps[free]
        chosen: NDArray[np.uint32] = np.where(begins, firsts[after] + among_outside, words)
        return chosen

    def _free(self, numbers: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """How many free coordinates the points with these numbers have."""
        free = np.zeros(numbers.shape, np.uint8)
        for each in range(1, self.coordinates):
            free += numbers >= np.uint32(self.first(each))
        return free

    def _dot(self, one: NDArray[np.uint32], other: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """The sum of the products of digits to the base q, modulo q."""
        order = np.uint32(self.order)
        total = np.zeros(one.shape, np.uint32)
        for _ in range(self.coordinates - 1):
            next_one, next_other = one // order, other // order
            total += (one - next_one * order) * (other - next_other * order)
            one, other = next_one, next_other
        return total % order
