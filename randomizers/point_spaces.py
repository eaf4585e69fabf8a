"""Numbered points of a projective space over a prime field, and orthogonality of points.

A point is a line through the origin of F_q^t. It contains exactly one vector whose first nonzero
coordinate is 1. Messages are numbered in the order of these vectors, read as t-digit numbers in
base q. A point also contains exactly one vector whose last nonzero coordinate, the pivot, is 1.
Items are numbered by the position of the pivot and then by the coordinates before it. In both
orders, the points with k free coordinates have the q^k numbers from (q^k - 1) / (q - 1) on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.affine_hashes import is_prime
from dpstream.randomizers.set_systems import SetSystem

MOST_POINTS = 1 << 22


@dataclass(frozen=True, slots=True)
class PointSpace(SetSystem):
    """Projective space PG(t - 1, q); each point x also defines a hyperplane S_x: <x, y> = 0.

    >>> space = PointSpace(3, 3)
    >>> space.points, space.block, space.common
    (13, 4, 1)

    `order` is q, a prime; `coordinates` is t, at least 2.
    """

    order: int
    coordinates: int

    def __post_init__(self) -> None:
        if not is_prime(self.order) or type(self.coordinates) is not int or self.coordinates < 2:
            raise ValueError(
                f"'order' is {self.order} and 'coordinates' is {self.coordinates}; expected a "
                "prime order and at least 2 coordinates"
            )
        if self.points > MOST_POINTS:
            raise ValueError(
                f"the space has {self.points:,} points; expected at most {MOST_POINTS:,}"
            )

    @property
    def points(self) -> int:
        return self.first(self.coordinates)

    @property
    def block(self) -> int:
        return self.first(self.coordinates - 1)

    @property
    def most_values(self) -> int:
        return self.points

    @property
    def common(self) -> int:
        return self.first(self.coordinates - 2)

    @property
    def common_to_three(self) -> int:
        return self.first(max(0, self.coordinates - 3))

    def first(self, free: int) -> int:
        return int((self.order**free - 1) // (self.order - 1))

    def choose(
        self,
        values: NDArray[np.uint32],
        inside: NDArray[np.bool_],
        among_inside: NDArray[np.uint32],
        among_outside: NDArray[np.uint32],
    ) -> NDArray[np.uint32]:
        """See `SetSystem`.

        Without the coordinate at the pivot of x, the points of S_x are the points z of a space with
        one coordinate fewer, since <x, y> = 0 determines that coordinate. If z has a nonzero
        coordinate before the pivot, each of the q - 1 other values at the pivot gives a point
        outside. The remaining points outside have 1 at the pivot, 0 before it and any values after.
        """
        order = np.uint32(self.order)
        powers = np.array([self.order**k for k in range(self.coordinates)], np.uint32)
        firsts = np.array([self.first(k) for k in range(self.coordinates)], np.uint32)
        # Differences between vectors, read as base-q numbers, and point numbers.
        steps = powers - firsts
        pivot = self._free(values)
        before = values - firsts[pivot]
        after = np.uint8(self.coordinates - 1) - pivot
        weight = powers[after]

        other, more = np.divmod(among_outside - weight, order - np.uint32(1))
        begins = ~inside & (among_outside < weight)
        number = np.where(inside, among_inside, firsts[after] + other)
        shift = np.where(inside, 0, more + np.uint32(1))
        # The result is not used for points that start at the pivot.
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
        free = np.zeros(numbers.shape, np.uint8)
        for each in range(1, self.coordinates):
            free += numbers >= np.uint32(self.first(each))
        return free

    def _dot(self, one: NDArray[np.uint32], other: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return the dot product, modulo q, of vectors read as base-q numbers."""
        order = np.uint32(self.order)
        total = np.zeros(one.shape, np.uint32)
        for _ in range(self.coordinates - 1):
            next_one, next_other = one // order, other // order
            total += (one - next_one * order) * (other - next_other * order)
            one, other = next_one, next_other
        return total % order
