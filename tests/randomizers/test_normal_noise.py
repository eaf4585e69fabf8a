"""Test integer Gaussian noise: its exact table, its draws and its loss."""

from __future__ import annotations

import math

import numpy as np
import pytest
from mpmath import mp, mpf
from scipy import stats

from dpstream.randomizers.accounting.connected_dots import normal_delta, normal_deviation
from dpstream.randomizers.normal_noise import NormalNoise
from dpstream.randomizers.randomness import seeded_generator


@pytest.mark.parametrize("deviation", [1, 7, 22_843, 1 << 48])
def test_table_entries_match_the_gaussian_distribution(deviation: int) -> None:
    noise = NormalNoise(deviation)
    with mp.workprec(700):
        for place in (0.0, 0.1, 1.0, 2.5, 6.0, 11.0, 13.9):
            number = int(place * deviation)
            for signed in (number, -number - 1):
                exact = mp.ncdf(mpf(2 * signed + 1) / (2 * deviation)) * 2**128
                assert abs(noise.bound(signed) - exact) < 2


def test_table_is_symmetric_increasing_and_finite() -> None:
    noise = NormalNoise(9)
    bounds = [noise.bound(number) for number in range(-noise.most - 2, noise.most + 2)]
    assert bounds == sorted(bounds)
    assert (bounds[0], bounds[1], bounds[-2], bounds[-1]) == (0, 0, 1 << 128, 1 << 128)
    for number in range(noise.most):
        assert noise.bound(number) + noise.bound(-number - 1) == 1 << 128


def test_table_distance_is_within_its_bound() -> None:
    noise = NormalNoise(3)
    with mp.workprec(700):
        exact = [mp.ncdf(mpf(2 * n + 1) / 6) for n in range(-noise.most - 1, noise.most + 1)]
        table = [mpf(noise.bound(n)) / 2**128 for n in range(-noise.most - 1, noise.most + 1)]
        off = [
            (t - s) - (e - f)
            for s, t, f, e in zip(table, table[1:], exact, exact[1:], strict=False)
        ]
        distance = (mp.fsum(map(abs, off)) + exact[0] + 1 - exact[-1]) / 2
    assert 0 < distance <= noise.distance < 1e-34


def test_draw_inverts_the_cumulative_distribution() -> None:
    class Fixed:
        def __init__(self, uniform: int) -> None:
            self.words = [uniform >> 64, uniform & (1 << 64) - 1]

        def integers(self, low: int, high: int, size: int, dtype: object) -> object:
            assert (low, high, size, dtype) == (0, 1 << 64, 2, np.uint64)
            return np.array(self.words, np.uint64)

    noise = NormalNoise(1000)
    for number in (-3000, -1, 0, 1, 777, 4123):
        bound = noise.bound(number)
        assert noise.draw(Fixed(bound - 1)) == number  # type: ignore[arg-type]
        assert noise.draw(Fixed(bound)) == number + 1  # type: ignore[arg-type]
    assert noise.draw(Fixed(0)) < -13_000  # type: ignore[arg-type]
    assert noise.draw(Fixed((1 << 128) - 1)) == noise.most  # type: ignore[arg-type]


def test_draws_have_the_gaussian_distribution() -> None:
    noise, rng = NormalNoise(20), seeded_generator(1)
    drawn = np.array([noise.draw(rng) for _ in range(2000)])
    edges = np.arange(-45, 46, 10)
    seen = np.histogram(drawn, [-np.inf, *(edges + 0.5), np.inf])[0]
    for scale, right in ((1.0, True), (0.8, False), (1.25, False)):
        masses = np.diff([0, *stats.norm.cdf((edges + 0.5) / (20 * scale)), 1])
        assert (stats.chisquare(seen, masses * len(drawn)).pvalue > 1e-9) == right


def test_draws_match_golden_values() -> None:
    """Workers of different versions must draw the same noise for a window."""
    rng = seeded_generator(20240229)
    assert [NormalNoise(22_843).draw(rng) for _ in range(4)] == [
        66_781,
        22_493,
        23_733,
        -43_945,
    ]


@pytest.mark.parametrize("deviation", [0, -1, 1.5, True, (1 << 48) + 1])
def test_invalid_standard_deviations_are_rejected(deviation: object) -> None:
    with pytest.raises(ValueError, match="expected an integer from 1 to"):
        NormalNoise(deviation)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.01, 1e-11), (0.1, 1e-5), (1, 1e-6), (4, 0.1), (12, 1e-9), (30, 0.5)]
)
def test_calibrated_standard_deviation_is_minimal(epsilon: float, delta: float) -> None:
    def exact(deviation: float) -> float:
        with mp.workdps(60):
            half, shift = 1 / (2 * mpf(deviation)), mpf(epsilon) * mpf(deviation)
            return float(mp.ncdf(half - shift) - mp.exp(epsilon) * mp.ncdf(-half - shift))

    found = normal_deviation(epsilon, delta)
    assert exact(found) <= delta < exact(found * (1 - 1e-6))
    assert exact(found) <= normal_delta(epsilon, found) <= delta


def test_calibrated_standard_deviation_matches_golden_value() -> None:
    assert normal_deviation(1, 1e-6) ** 2 == pytest.approx(17.848, abs=5e-4)
    assert math.isclose(normal_delta(1, normal_deviation(1, 1e-6)), 1e-6, rel_tol=1e-9)
