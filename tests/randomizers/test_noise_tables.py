"""Test tables of dummies with means from 10^-6 to 10^5: distance bounds and exact draws."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise
from typing import cast

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.randomizers.noise_tables import (
    TABLE_BITS,
    NoiseTable,
    binomial_table,
    cluster_rate,
    logarithmic_table,
    negative_binomial_tables,
    poisson_table,
)
from dpstream.randomizers.randomness import seeded_generator
from tests.support.chi_square import fit

pytestmark = pytest.mark.slow

FALSE_ALARM = 1e-10
DRAWS = 400_000
MEANS = [1e-6, 1e-3, 0.5, 1.0, 7.3, 74.0, 1e3, 1e5]


class Scripted:
    """Generator that returns the given random integers in order."""

    def __init__(self, words: list[int]) -> None:
        self.words = words

    def integers(
        self, low: int, high: int, size: int | None = None, dtype: type[np.uint64] = np.uint64
    ) -> np.uint64 | NDArray[np.uint64]:
        assert (low, high) == (0, 2**64)
        if size is None:
            return np.uint64(self.words.pop(0))
        return np.array([self.words.pop(0) for _ in range(size)], np.uint64)


def probabilities(table: NoiseTable) -> list[Fraction]:
    return [Fraction(high - low, 1 << TABLE_BITS) for low, high in pairwise((0, *table.bounds))]


@pytest.mark.parametrize("mean", [1e-6, 0.5, 1.0, 7.3, 74.0])
def test_poisson_table_distance_is_within_its_bound(mean: float) -> None:
    """Compute the total variation distance to e^-lambda lambda^z / z! with 60 digits."""
    table = poisson_table(mean)
    assert table.distance < 1e-35
    with localcontext() as context:
        context.prec = 60
        chance = (-Decimal(mean)).exp() * Decimal(mean) ** table.first
        chance /= math.factorial(table.first)
        distance = outside = Decimal(0)
        known = Decimal(0)
        for count, given in enumerate(probabilities(table), start=table.first):
            distance += abs(Decimal(given.numerator) / given.denominator - chance)
            known += chance
            chance *= Decimal(mean) / (count + 1)
        outside = 1 - known
        assert (distance + outside) / 2 <= Decimal(table.distance) * Decimal("1.0001")


@pytest.mark.parametrize(
    ("trials", "probability"), [(1, 0.5), (5, 0.25), (5, 0.75), (40, 0.001), (300, 0.999)]
)
def test_binomial_table_distance_is_within_its_bound(trials: int, probability: float) -> None:
    table = binomial_table(trials, probability)
    chance = Fraction(probability)
    exact = [
        math.comb(trials, count) * chance**count * (1 - chance) ** (trials - count)
        for count in range(trials + 1)
    ]
    given = [Fraction(0)] * table.first + probabilities(table)
    given += [Fraction(0)] * (trials + 1 - len(given))
    distance = sum(abs(a - b) for a, b in zip(given, exact, strict=True)) / 2
    assert distance <= table.distance < 1e-35


@pytest.mark.parametrize("failure", [1e-6, 0.5, 0.9, 0.99])
def test_logarithmic_table_distance_is_within_its_bound(failure: float) -> None:
    table = logarithmic_table(failure)
    assert table.first == 1
    with localcontext() as context:
        context.prec = 60
        norm = -(1 - Decimal(failure)).ln()
        distance = known = Decimal(0)
        for size, given in enumerate(probabilities(table), start=1):
            chance = Decimal(failure) ** size / size / norm
            distance += abs(Decimal(given.numerator) / given.denominator - chance)
            known += chance
        assert (distance + 1 - known) / 2 <= Decimal(table.distance) * Decimal("1.0001")
    assert table.distance < 1e-33


def test_drawn_count_changes_exactly_at_the_thresholds_of_the_table() -> None:
    """A draw is a function of one uniform integer that changes exactly at the bounds."""
    table = poisson_table(3.0)
    for count, (low, high) in enumerate(pairwise((0, *table.bounds)), start=table.first):
        if low < high:
            assert drawn(table, low) == drawn(table, high - 1) == count


def test_thresholds_with_shared_leading_bits_are_distinguished() -> None:
    """Test several bounds in one 64-bit integer, one at the start of a group, and empty counts."""
    whole = 1 << TABLE_BITS
    bounds = (0, 3, 3, 1 << 64, (1 << 64) + 5, 1 << 112, (1 << 112) + (1 << 70), whole - 1, whole)
    table = NoiseTable(10, bounds, 0.0)
    for count, (low, high) in enumerate(pairwise((0, *bounds)), start=10):
        if low < high:
            assert drawn(table, low) == drawn(table, high - 1) == count


def drawn(table: NoiseTable, value: int) -> int:
    """Return the table's draw from one uniform 128-bit integer, read in parts on demand."""
    leading, rest = divmod(value, 1 << 64)
    words = [leading >> 48, (leading & (1 << 48) - 1) << 16, rest]
    generator = cast(np.random.Generator, Scripted(words))
    return int(table.draw(1, generator)[0])


@pytest.mark.parametrize("mean", MEANS)
def test_poisson_draws_have_their_distribution(mean: float) -> None:
    table = poisson_table(mean)
    rng = seeded_generator(1, round(1e6 * mean))
    counts = table.draw(DRAWS, rng)
    assert counts.dtype == np.int64
    assert fit(counts, stats.poisson(mean).cdf) > FALSE_ALARM
    if mean >= 1e-3:
        wrong = stats.poisson(mean * (1 + 0.08 * max(1, 1 / mean) ** 0.5 / max(1, mean) ** 0.5))
        assert fit(counts, wrong.cdf) < FALSE_ALARM


@pytest.mark.parametrize(
    ("trials", "probability"), [(1, 0.5), (40, 0.3), (40_960, 0.0018), (10**6, 0.1)]
)
def test_binomial_draws_have_their_distribution(trials: int, probability: float) -> None:
    counts = binomial_table(trials, probability).draw(DRAWS, seeded_generator(2, trials))
    assert counts.max() <= trials
    assert fit(counts, stats.binom(trials, probability).cdf) > FALSE_ALARM
    if trials > 1:
        variance = trials * probability * (1 - probability)
        moved = probability + 0.05 * math.sqrt(variance) / trials
        assert fit(counts, stats.binom(trials, moved).cdf) < FALSE_ALARM


@pytest.mark.parametrize("failure", [1e-6, 0.3, 0.9, 0.999])
def test_logarithmic_draws_have_their_distribution(failure: float) -> None:
    sizes = logarithmic_table(failure).draw(DRAWS, seeded_generator(3))
    assert sizes.min() == 1
    assert fit(sizes, stats.logser(failure).cdf) > FALSE_ALARM
    if failure > 0.1:
        assert fit(sizes, stats.logser(failure * 0.95).cdf) < FALSE_ALARM


@pytest.mark.parametrize(
    ("shape", "mean"), [(1e-4, 3e-4), (0.12, 0.4), (30.0, 98.0), (25.0, 663.0), (2.0, 1e4)]
)
def test_negative_binomial_draws_have_their_distribution(shape: float, mean: float) -> None:
    tables = negative_binomial_tables(shape, mean)
    counts = tables.draw(DRAWS, seeded_generator(4))
    law = stats.nbinom(shape, shape / (shape + mean))
    assert fit(counts, law.cdf) > FALSE_ALARM
    if shape > 0.1:
        poisson = stats.poisson(mean)
        assert fit(counts, poisson.cdf) < FALSE_ALARM
    assert tables.distance(10**9, 10**10) < 1e-22


def test_clusters_give_independent_negative_binomial_noise_in_cells() -> None:
    """A contributor draws once for all cells, with the sum of the means of the cells."""
    cells, contributors, shape, mean = 8, 50, 3.0, 6.0
    share = cells / contributors
    tables = negative_binomial_tables(shape * share, mean * share)
    rng = seeded_generator(5)
    runs = 20_000
    clusters, sizes = tables.draw_clusters(runs * contributors, rng)
    assert clusters.shape == (runs * contributors,)
    run = np.repeat(np.arange(runs * contributors) // contributors, clusters)
    cell = rng.integers(0, cells, len(sizes))
    noise = np.bincount(run * cells + cell, sizes, runs * cells).astype(np.int64)
    noise = noise.reshape(runs, cells)
    law = stats.nbinom(shape, shape / (shape + mean))
    for column in noise.T:
        assert fit(column, law.cdf) > FALSE_ALARM
    correlation = np.corrcoef(noise, rowvar=False) - np.eye(cells)
    assert np.abs(correlation).max() < 7 / math.sqrt(runs)


def test_mean_number_of_clusters_is_rounded_up() -> None:
    """Rounding up the mean number of clusters increases the shape by at most the rounding."""
    for shape, mean in ((1e-4, 3e-4), (30.0, 98.0), (2.0, 1e4)):
        with localcontext() as context:
            context.prec = 60
            exact = Decimal(shape) * (1 + Decimal(mean) / Decimal(shape)).ln()
        table = negative_binomial_tables(shape, mean).clusters
        given = sum(
            count * float(chance)
            for count, chance in enumerate(probabilities(table), start=table.first)
        )
        assert given == pytest.approx(float(exact), rel=1e-9)


@pytest.mark.parametrize("shape", [1e-12, 0.012, 1.0, 3e5])
@pytest.mark.parametrize("mean", [1e-12, 0.7, 61.3, 1e6])
@pytest.mark.parametrize("times", [1, 3, 1000])
def test_cluster_rate_is_rounded_up_to_the_next_float(
    shape: float, mean: float, times: int
) -> None:
    with mpmath.workdps(120):
        exact = times * mpmath.mpf(shape) * mpmath.log(1 + mpmath.mpf(mean) / mpmath.mpf(shape))
        rate = cluster_rate(shape, mean, times)
        assert math.nextafter(rate, 0.0) < exact * (1 + mpmath.mpf(2) ** -150)
        assert exact <= rate
