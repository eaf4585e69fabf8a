from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpstream.randomizers.noise_tables import binomial_table
from dpstream.randomizers.randomness import seeded_generator
from experiments.protocols.fragments import permanent_bits
from experiments.protocols.fragments.permanent_bits import FlippedBits

FALSE_ALARM = 1e-10
CELLS = 200_000


@pytest.mark.parametrize(("ones", "bits"), [(0, 1), (1, 1), (0, 5), (3, 5), (7, 7), (1_000, 2_500)])
def test_number_of_ones_is_the_sum_of_two_binomial_draws(ones: int, bits: int) -> None:
    probability = Fraction(1, 5)
    drawn = FlippedBits(probability).ones(
        np.full(CELLS, ones), bits, seeded_generator(90, ones, bits)
    )
    kept = stats.binom.pmf(np.arange(ones + 1), ones, 0.8)
    raised = stats.binom.pmf(np.arange(bits - ones + 1), bits - ones, 0.2)
    expected = CELLS * np.convolve(kept, raised)
    observed = np.bincount(drawn, minlength=bits + 1)
    assert fit(observed, expected) > FALSE_ALARM
    # The test detects a probability that is 2 % too small.
    kept = stats.binom.pmf(np.arange(ones + 1), ones, 0.804)
    raised = stats.binom.pmf(np.arange(bits - ones + 1), bits - ones, 0.196)
    assert fit(observed, CELLS * np.convolve(kept, raised)) < 1e-3


def fit(observed: np.ndarray, expected: np.ndarray) -> float:
    likely = expected > 20
    rest = observed[~likely].sum(), expected[~likely].sum()
    counted = np.append(observed[likely], rest[0]), np.append(expected[likely], rest[1])
    if counted[1][-1] < 1:
        counted = counted[0][:-1], counted[1][:-1] / expected[likely].sum() * observed[likely].sum()
    return float(stats.chisquare(*counted, sum_check=False).pvalue)


def test_number_of_reversed_bits_depends_on_the_bits_in_each_cell() -> None:
    bits = np.array([0, 1, 6, 1 << 20, (1 << 20) + 1])
    drawn = np.stack(
        [
            FlippedBits(Fraction(1, 2)).reversed(bits, seeded_generator(91, run))
            for run in range(400)
        ]
    )
    assert (drawn[:, 0] == 0).all()
    assert (drawn <= bits).all()
    standardized = (drawn.mean(axis=0)[1:] - bits[1:] / 2) / np.sqrt(bits[1:] / 4 / 400)
    assert (np.abs(standardized) < 7).all()


def test_binomial_draw_with_many_trials_is_a_sum_of_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permanent_bits, "_TABLE_DIGITS", 3)
    permanent_bits._table.cache_clear()
    drawn = FlippedBits(Fraction(1, 4)).reversed(np.full(CELLS, 37), seeded_generator(92))
    permanent_bits._table.cache_clear()
    expected = CELLS * stats.binom.pmf(np.arange(38), 37, 0.25)
    assert fit(np.bincount(drawn, minlength=38), expected) > FALSE_ALARM


def test_table_error_is_far_below_any_delta() -> None:
    assert FlippedBits(Fraction(1, 1_000_003)).distance((1 << 20) - 1) < 1e-30


@pytest.mark.parametrize(("digits", "draws"), [(24, [1, 1, 1, 1]), (2, [1, 1, 1, 2])])
def test_stated_table_error_is_the_sum_over_all_draws(
    digits: int, draws: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permanent_bits, "_TABLE_DIGITS", digits)
    permanent_bits._table.cache_clear()
    probability = Fraction(1, 3)
    stated = FlippedBits(probability).distance(11)
    permanent_bits._table.cache_clear()
    tables = [binomial_table(1 << min(place, digits), probability) for place in range(4)]
    all_of_them = sum(table.distance * times for table, times in zip(tables, draws, strict=True))
    assert 0 < all_of_them <= stated <= all_of_them * (1 + 1e-12)
