"""What the plan of a shuffled job says of users with more changes than are followed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpstream.aggregators.attendance import Attendance
from dpstream.aggregators.freezing import FreezingModel
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.planning.changes import weigh_changes
from dpstream.pipeline.protocols.forecasts import FreezingForecast
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.cell_noise_law import CellNoiseLaw
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.shuffled_counts import ShuffledCountsLaw

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
def test_what_is_missed_is_as_forecast(law: ShuffledCountsLaw) -> None:
    """Users with five changes at random epochs, and hardly any noise."""
    rng = np.random.default_rng(5)
    changes = np.argsort(rng.random((USERS, EPOCHS)), axis=1)[:, :5]
    flips = np.zeros((USERS, EPOCHS), np.int8)
    np.put_along_axis(flips, changes, 1, axis=1)
    values = np.bitwise_xor.accumulate(flips, axis=1).T
    entry = PROTOCOLS["shuffled_counts"]
    # Of a job over Booleans, which all examples that come first are.
    asked = entry.examples[0].parameters
    devices, aggregator = entry.randomizer(law), entry.aggregator(law, asked)
    devices.enrol(USERS, rng)
    attendance = Attendance.constant(EPOCHS, USERS)
    found = []
    for epoch, now in enumerate(values, 1):
        reports: Any = devices.report(epoch, now, None, seeded_generator(1))
        aggregator.add(epoch, reports.values, reports.counts)
        estimate: Any = aggregator.estimate(epoch, attendance)
        found.append((estimate.value - int(now.sum())) / USERS)
    assert entry.forecast is not None
    forecast = entry.forecast(law, None, EPOCHS)
    assert isinstance(forecast, FreezingForecast)
    everybody = np.zeros(6)
    everybody[5] = 1
    expected = forecast.freezing_bias(FreezingModel(everybody, EPOCHS))
    assert np.abs(np.array(found) - expected).max() < 0.03
    if law.boost:
        assert np.abs(expected).max() > 0.05
    else:
        assert np.abs(expected).max() == 0


def test_budgets_of_changes_are_weighed() -> None:
    """A few users change often: a larger budget has more noise, and less bias."""
    shares = np.zeros(9)
    shares[[1, 8]] = 0.9, 0.1
    job = parse_job(
        "name: weeks\nprotocol: shuffled_counts\n"
        "parameters: {epsilon: 1, delta: 1e-6, changes: 2}\n"
        "epochs: {count: 40}\nshuffle: {minimum: 1000}\n"
    )
    choices = weigh_changes(job, 100_000, shares)
    assert [choice.best for choice in choices].count(True) == 1
    noises = [choice.noise for choice in choices]
    assert noises == sorted(noises)
    assert choices[0].bias > choices[-1].bias
