"""What all epochs keep to at once: a union bound, and how often runs of devices exceed it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpstream.pipeline.protocols.dyadic import FutureRandForecast
from dpstream.pipeline.results.expected_errors import EXCEEDED, largest_error, widening
from dpstream.randomizers.future_rand import FutureRandParameters
from dpstream.randomizers.future_rand.calibration import calibrate

USERS, EPOCHS, RUNS = 500, 16, 200


@pytest.mark.parametrize(
    "deviations",
    [[3.0], [2.0] * 50, [1.0, 5.0, 2.0], [1e-9, 1.0], [1e-300, 1.0], [1.0 + n for n in range(999)]],
)
def test_probabilities_of_all_epochs_add_up_to_what_is_allowed(deviations: list[float]) -> None:
    bound = largest_error(np.array(deviations), 0.01)
    assert sum(2 * stats.norm.sf(bound / each) for each in deviations) == pytest.approx(
        0.01, rel=1e-11
    )


@pytest.mark.parametrize("epochs", [1, 2, 170, 10**6])
def test_the_wider_interval_leaves_each_epoch_its_share(epochs: int) -> None:
    wider = widening(epochs) * float(stats.norm.isf(0.025))
    assert 2 * stats.norm.sf(wider) * epochs == pytest.approx(EXCEEDED, rel=1e-11)


def test_the_theorem_is_as_in_the_paper_and_larger() -> None:
    law = calibrate(FutureRandParameters(1.0, 4), 170)
    forecast = FutureRandForecast(law, 170)
    expected = 9 / 0.20962 * math.sqrt(2 * 28_785 * math.log(2 * 256 / EXCEEDED))
    assert forecast.published_bound(28_785, EXCEEDED) == pytest.approx(expected, rel=1e-4)
    assert largest_error(forecast.standard_deviations(28_785)) < 0.4 * expected
