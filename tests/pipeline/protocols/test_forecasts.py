"""Test forecasts of ranges and of shuffled counts."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.freezing import FreezingModel
from dpstream.pipeline.protocols.forecasts import FreezingForecast
from dpstream.pipeline.protocols.range_values import RangeValuesForecast
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.cell_noise_law import CellNoiseLaw
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.shuffled_counts import ShuffledCountsLaw
from dpstream.randomizers.value_stream.range_values import RangeValuesParameters
from dpstream.randomizers.value_stream.range_values.calibration import calibrate


def forecast(**more: object) -> RangeValuesForecast:
    given = {"epsilon": 2.0, "max_changes": 4, "low": 0, "high": 80, "buckets": 32, **more}
    parameters = RangeValuesParameters(**given)  # type: ignore[arg-type]
    return RangeValuesForecast(calibrate(parameters, 12), parameters, 12)


def test_standard_errors_grow_with_the_square_root_of_users() -> None:
    made = forecast()
    for of in (made.standard_errors, made.smoothed_standard_errors):
        assert of(400).shape == (12,)
        assert of(400) == pytest.approx(2 * of(100))
    assert made.range_deviations(100, 3, 4) == pytest.approx(made.standard_errors(100))
    assert (made.smoothed_standard_errors(100) <= made.standard_errors(100)).all()


def test_range_errors_stay_within_the_forecast_bound() -> None:
    made = forecast()
    (said,) = [note for note in made.notes if "wide range" in note]
    bound = float(said.partition("at most ")[2].partition(" times")[0])
    single = made.standard_errors(1)[-1]
    largest = max(made.range_deviations(1, *ends)[-1] for ends in combinations(range(33), 2))
    assert 0.7 * bound < largest / single <= bound + 0.05


EPOCHS = 24
USERS = 20_000
NONE = CellNoiseLaw("shuffle", 1e-9, 1)


@pytest.mark.parametrize(
    "law",
    [
        ShuffledCountsLaw(EPOCHS, 1.0, 0.1, 2, 3, "rigorous", NONE),
        ShuffledCountsLaw(EPOCHS, 1.0, 0.1, 3, 1, "rigorous", NONE),
        ShuffledCountsLaw(EPOCHS, 1.0, 0.1, 0, 0, "exact", NONE),
    ],
)
def test_bias_from_exhausted_devices_matches_the_forecast(law: ShuffledCountsLaw) -> None:
    rng = np.random.default_rng(5)
    changes = np.argsort(rng.random((USERS, EPOCHS)), axis=1)[:, :5]
    flips = np.zeros((USERS, EPOCHS), np.int8)
    np.put_along_axis(flips, changes, 1, axis=1)
    values = np.bitwise_xor.accumulate(flips, axis=1).T
    entry = PROTOCOLS["shuffled_counts"]
    # These are the parameters of a job over Booleans.
    requested = entry.examples[0].parameters
    devices, aggregator = entry.randomizer(law), entry.aggregation.make(law, requested)
    devices.enroll(USERS, rng)
    participation = Participation.constant(EPOCHS, USERS)
    found = []
    for epoch, now in enumerate(values, 1):
        reports: Any = devices.report(epoch, now, None, seeded_generator(1))
        aggregator.add(epoch, reports.values, reports.counts)
        estimate: Any = aggregator.estimate(epoch, participation)
        found.append((estimate.value - int(now.sum())) / USERS)
    assert entry.planning is not None
    forecast = entry.planning.forecast(law, None, EPOCHS)
    assert isinstance(forecast, FreezingForecast)
    everybody = np.zeros(6)
    everybody[5] = 1
    expected = forecast.freezing_bias(FreezingModel(everybody, EPOCHS))
    assert np.abs(np.array(found) - expected).max() < 0.03
    if law.boost:
        assert np.abs(expected).max() > 0.05
    else:
        assert np.abs(expected).max() == 0
