"""Test the exact distribution of flips against enumeration of all rows and streams."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from scipy import stats
from scipy.linalg import hadamard

from dpstream.randomizers.flip_laws import flip_law, level_flip_law
from dpstream.randomizers.hadamard_rows import rows_for


def tracked(items: int, values: int) -> Counter[tuple[int, ...]]:
    matrix = (1 + hadamard(rows_for(items))) // 2
    return Counter(
        tuple(matrix[row, list(turn)].tolist())
        for turn in product(range(1, items + 1), repeat=values)
        if all(one != next_one for one, next_one in pairwise(turn))
        for row in range(len(matrix))
    )


def flips(stream: tuple[int, ...]) -> int:
    return sum(one != other for one, other in pairwise((0, *stream)))


@pytest.mark.parametrize(("items", "values"), [(2, 1), (2, 5), (3, 4), (4, 4), (5, 3), (6, 4)])
def test_flip_distribution_matches_enumeration(items: int, values: int) -> None:
    streams = tracked(items, values)
    exact = [Fraction(0)] * (values + 1)
    for stream, times in streams.items():
        exact[flips(stream)] += Fraction(times, streams.total())
    assert flip_law(items, values) == pytest.approx([float(share) for share in exact], abs=1e-12)


def test_each_change_in_a_large_domain_flips_the_tracked_bit_with_probability_one_half() -> None:
    binomial = stats.binom.pmf(np.arange(13), 12, 0.5)
    assert flip_law(4096, 12) == pytest.approx(binomial, abs=2e-3)
    assert flip_law(4, 12) != pytest.approx(binomial, abs=2e-2)


def test_tracked_bit_of_alternating_values_flips_almost_always_or_never() -> None:
    assert flip_law(2, 9) == pytest.approx([0.25, 0.25, *[0] * 6, 0.25, 0.25])


@pytest.mark.parametrize(("level", "levels", "values"), [(1, 1, 3), (1, 2, 4), (2, 3, 3)])
def test_level_flip_distribution_matches_enumeration(level: int, levels: int, values: int) -> None:
    rows, buckets = 2 << level, 1 << levels
    found = np.zeros(values + 1)
    for row, stream in product(range(rows), product(range(buckets), repeat=values)):
        if all(one != other for one, other in pairwise(stream)):
            nodes = [1 + (bucket >> (levels - level)) for bucket in stream]
            tracked = [0, *(1 - (row & node).bit_count() % 2 for node in nodes)]
            found[np.count_nonzero(np.diff(tracked))] += 1
    assert level_flip_law(level, levels, values) == pytest.approx(found / found.sum())
