"""Test the probability that one-sided Count-Min estimates are too small."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.aggregators.cell_window import CellWindow
from dpstream.aggregators.count_min import CountMinAggregator
from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.row_estimates import RowEstimates
from dpstream.pipeline.results.epoch_counts import CountsCells
from dpstream.randomizers.cell_noise_law import CellNoiseLaw
from dpstream.randomizers.count_min import (
    CountMin,
    CountMinLaw,
    CountMinParameters,
    Estimator,
    OneSided,
)
from dpstream.randomizers.count_min.calibration import calibrate
from dpstream.randomizers.count_min.one_sided import allowance, least_noise
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.randomness import seeded_generator

FALSE_ALARM = 1e-9
USERS, ITEMS, RUNS = 90, 16, 400
LABELS = tuple(f"item {number}" for number in range(ITEMS))


@pytest.mark.parametrize("below", [1e-9, 1e-3, 0.1])
@pytest.mark.parametrize(
    ("noise", "law"),
    [
        (CellNoiseLaw("poisson", 43.0, 100), stats.poisson(43.0 * 3)),
        (CellNoiseLaw("shuffle", 43.0, 100), stats.poisson(43.0)),
        (CellNoiseLaw("bernoulli", 43.0, 100), stats.binom(300, 0.43)),
        (CellNoiseLaw("negative_binomial", 43.0, 100, 8.0), stats.nbinom(24.0, 8.0 / 51.0)),
    ],
)
def test_assumed_least_noise_is_the_quantile_at_the_given_probability(
    noise: CellNoiseLaw, law: Any, below: float
) -> None:
    least = least_noise(noise, 300, below)
    assert law.cdf(least - 1) <= below < law.cdf(least)
    assert allowance(noise, 300, 4, below) == law.mean() - least_noise(noise, 300, below / 4)


def law_of(**changes: Any) -> CountMinLaw:
    requested = replace(CountMinParameters(2.0, 0.05, LABELS), **changes)
    # There are more contributors than the noise is calibrated for.
    return calibrate(requested, 2, 60)


def window_of(
    law: CountMinLaw, estimator: Estimator | OneSided | None, key: int
) -> tuple[CellWindow, NDArray[np.int64]]:
    aggregator, devices = CountMinAggregator(law, estimator), CountMin(law)
    rng = seeded_generator(9, key)
    devices.enroll(USERS, rng)
    held = 1 + np.arange(USERS) % ITEMS
    aggregator.add(1, written_out(devices.report(1, held[:, None], None, rng)), None)
    window = aggregator.window([1], Participation.constant(2, USERS))
    assert window is not None
    return window, np.bincount(held, minlength=ITEMS + 1)[1:]


def errors(law: CountMinLaw, underestimated: float | None, key: int) -> NDArray[np.float64]:
    choice = None if underestimated is None else OneSided(underestimated)
    window, ground_truth = window_of(law, choice or "min", key)
    items = np.arange(1, ITEMS + 1)
    smallest = window.cells[law.code.encode(items)].min(axis=1)
    values: NDArray[np.float64] = smallest + window.allowance
    if key == 0 and underestimated is not None:
        # Publishing is slow, so one test also covers the published standard error.
        assert isinstance(window.estimates, RowEstimates)
        assert window.estimates.values(items) == pytest.approx(np.maximum(values, 0))
        assert window.estimates.errors.mean() > 0.5 * window.allowance
    return values - ground_truth


@pytest.mark.parametrize("dummies", ["poisson", "bernoulli", "negative_binomial"])
def test_one_sided_estimates_are_too_small_with_the_predicted_probability(dummies: str) -> None:
    law = law_of(rows=1, dummies=dummies)
    off = np.concatenate([errors(law, 0.05, key) for key in range(RUNS)])
    too_small = int((off < -1e-6).sum())
    assert stats.binom.sf(too_small - 1, len(off), 0.05) > FALSE_ALARM
    mean, _ = law.noise.moments(USERS)
    least = round(mean - allowance(law.noise, USERS, 1, 0.05))
    exact = least_noise_chance(law.noise, least)
    assert 0.005 < exact <= 0.05
    assert stats.binomtest(too_small, len(off), exact).pvalue > FALSE_ALARM
    assert off.mean() == pytest.approx(mean - least, abs=0.5)
    # Two-sided estimates are too small far more often, which this number of runs shows.
    usual = np.concatenate([errors(law, None, key) for key in range(RUNS // 4)])
    assert stats.binom.sf(int((usual < -1e-6).sum()) - 1, len(usual), 0.05) < FALSE_ALARM


def least_noise_chance(noise: CellNoiseLaw, least: int) -> float:
    if noise.dummies == "bernoulli":
        return float(stats.binom(USERS, noise.mean / noise.minimum).cdf(least - 1))
    mean, variance = noise.moments(USERS)
    if noise.dummies == "poisson":
        return float(stats.poisson(mean).cdf(least - 1))
    return float(stats.nbinom(mean**2 / (variance - mean), mean / variance).cdf(least - 1))


def test_noise_allowance_grows_with_absent_users_and_is_summed_over_epochs() -> None:
    law = law_of(rows=1)
    aggregator = CountMinAggregator(law, OneSided(0.01))
    participation = Participation.constant(2, USERS)
    participation.population[:] = 2 * USERS
    for epoch in (1, 2):
        aggregator.add(epoch, np.zeros((1, 1), np.uint32), None)
    single = aggregator.window([1], participation)
    both = aggregator.window([1, 2], participation)
    assert single is not None
    assert both is not None
    assert single.allowance == 2 * allowance(law.noise, USERS, 1, 0.01)
    assert both.allowance == single.plus(single).allowance == 2 * single.allowance
    assert isinstance(aggregator, CountsCells)


@pytest.mark.parametrize("underestimated", [0.0, 0.5, -1.0, float("nan")])
def test_invalid_probabilities_are_rejected(underestimated: float) -> None:
    with pytest.raises(ValueError, match="'underestimated' is"):
        OneSided(underestimated)
