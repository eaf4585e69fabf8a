"""Choose the projective space and the prefix lengths of a mechanism.

In a large space over a field of order q = e^epsilon + 1, the variance for a rare item is that of
the best local protocol. With any other q it is (e^epsilon + q - 1)^2 / (4 e^epsilon (q - 1)) times
as large. The best prime adds at most 3 %, but the number of points with t coordinates,
(q^t - 1) / (q - 1), must exceed the number of items. Candidates are all spaces of prime order whose
variance, computed in integers, is within 3 % of the least. The candidate with the fewest points is
chosen: it has the shortest messages, the smallest state and the fastest estimates.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Final

from dpstream.randomizers.affine_hashes import is_prime
from dpstream.randomizers.cell_codes.prefixes import PrefixCells, PrefixLevel
from dpstream.randomizers.composed import ComposedLaw
from dpstream.randomizers.point_spaces import MOST_POINTS, PointSpace

NEAR: Final = Fraction(103, 100)
"""Maximum ratio of a space's variance to the least one; the tolerance allows fewer points."""
MOST_ORDER: Final = 1 << 9
"""Bound on the order of the field if points have more than two coordinates; the time that estimates
take is quadratic in the order."""
CELLS: Final = 1 << 18
"""Number of cells of each prefix length if there are at least three prefix lengths."""
CELLS_OF_TWO: Final = 1 << 19
"""Number of cells of each prefix length if there are two prefix lengths."""
MOST_EXTENSION: Final = 11
"""Maximum number of bits by which a prefix exceeds the next shorter one."""


def best_space(items: int, odds: ComposedLaw, most: int = MOST_POINTS) -> PointSpace:
    """Return the space with the fewest points whose variance is within 3 % of the least.

    The space has more than `items` points. `most`, at least three times `items`, limits the number
    of points of spaces with more than two coordinates.

    >>> from dpstream.randomizers.accounting.calibration import optimal
    >>> best_space(10, optimal(1, 2.0)), best_space(1 << 20, optimal(1, 4.0))
    (PointSpace(order=11, coordinates=2), PointSpace(order=37, coordinates=5))
    """
    found = [(space, relative_variance(space, odds)) for space in _spaces(items, most)]
    least = min(variance for _, variance in found)
    near = (each for each in found if each[1] <= NEAR * least)
    return min(near, key=lambda each: (each[0].points, each[1]))[0]


def relative_variance(space: PointSpace, odds: ComposedLaw) -> Fraction:
    """Return the exact variance per user for the count of an item that no user has.

    Let a be the probability of a message in the set of the user's item, and b that of a message in
    another item's set. The variance is b (1 - b) / (a - b)^2. Points inside the set of the user's
    item have the weight `own`, all others the weight `other`. Each set has s points and shares c of
    them with the other set, so (a - b) (total weight) = (own - other) (s - c).

    >>> from dpstream.randomizers.accounting.calibration import optimal
    >>> round(float(relative_variance(PointSpace(3, 7), optimal(1, 1.0))), 3)
    3.761
    """
    own, other = odds.weights
    total = own * space.block + other * space.outside
    different = space.block - space.common
    elsewhere = own * space.common + other * different
    return Fraction(elsewhere * (total - elsewhere), ((own - other) * different) ** 2)


def _spaces(items: int, most: int) -> Iterator[PointSpace]:
    order = items
    while not is_prime(order):
        order += 1
    yield PointSpace(order, 2)
    for order in filter(is_prime, range(2, MOST_ORDER)):
        points, coordinates = 1 + order, 2
        while points <= items or coordinates < 3:
            points, coordinates = points * order + 1, coordinates + 1
        if points <= most:
            yield PointSpace(order, coordinates)


def prefixes_of(bits: int, protocol: str) -> PrefixCells:
    """Choose the prefix lengths of a search: as few as possible, and evenly spaced.

    Each user reports on one level, so each level's variance grows with the number of levels. With
    at most 11 bits between levels, the candidates of a level stay within the limit of a search, and
    few of them share a cell by chance. More cells make sharing rarer; if there are only two levels,
    each can have twice as many cells.

    >>> [(level.length, level.buckets) for level in prefixes_of(24, "example").levels]
    [(19, 524288), (24, 524288)]
    >>> [level.length for level in prefixes_of(48, "example").levels]
    [18, 28, 38, 48]
    """
    cells = CELLS_OF_TWO
    if bits > cells.bit_length() - 1 + MOST_EXTENSION:
        cells = CELLS
    first = cells.bit_length() - 1
    more = -(-(bits - first) // MOST_EXTENSION)
    lengths = [first + (bits - first) * number // more for number in range(more + 1)]
    return PrefixCells(
        tuple(PrefixLevel(length, cells) for length in lengths),
        seed=f"{protocol} of {bits} bits",
    )
