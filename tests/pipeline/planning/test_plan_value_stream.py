"""How many changes value_stream should follow: what is missed, as real devices miss it."""

from __future__ import annotations

import numpy as np
import pytest

from dpstream.aggregators.attendance import Attendance
from dpstream.aggregators.freezing import FreezingModel
from dpstream.aggregators.value_stream import ValueStreamAggregator
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.planning.changes import weigh_changes
from dpstream.pipeline.protocols.value_stream import ValueStreamForecast
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.value_stream import ValueStream, ValueStreamParameters
from dpstream.randomizers.value_stream.calibration import calibrate

EPOCHS, DEVICES = 12, 3_000
SHARES = np.array([0.0, 0.0, 0.0, 0.5, 0.5])
"""Half of the users change three times, half of them four times."""


def test_users_with_more_changes_bias_estimates_as_was_foretold() -> None:
    law = calibrate(ValueStreamParameters(epsilon=4.0, changes=1), last_epoch=EPOCHS)
    forecast = ValueStreamForecast(law, EPOCHS)
    rng = seeded_generator(20)
    # Each user's changes fall on epochs chosen at random, all of them distinct.
    order = rng.permuted(np.tile(np.arange(EPOCHS), (DEVICES, 1)), axis=1)
    changed = order < np.where(np.arange(DEVICES) < DEVICES // 2, 3, 4)[:, None]
    values = np.cumsum(changed, axis=1) % 2
    people, aggregator = ValueStream(law), ValueStreamAggregator(law)
    people.enrol(DEVICES, rng)
    attendance = Attendance.constant(EPOCHS, DEVICES)
    errors = []
    for epoch in range(1, EPOCHS + 1):
        aggregator.add(epoch, people.report(epoch, values[:, epoch - 1], None, rng), None)
        estimate = aggregator.estimate(epoch, attendance)
        assert estimate is not None
        assert estimate.value is not None
        errors.append(estimate.value - int(values[:, epoch - 1].sum()))
    bias = DEVICES * forecast.freezing_bias(FreezingModel(SHARES, EPOCHS))
    deviations = forecast.standard_deviations(DEVICES)
    # Room for the noise, and for who changes when; the bias itself is far larger at some epoch.
    assert (np.abs(errors - bias) < 6.5 * np.hypot(deviations, 0.5 * np.sqrt(DEVICES))).all()
    assert np.abs(bias).max() > 4 * deviations.max()


def test_the_best_number_of_changes_weighs_noise_against_what_is_missed() -> None:
    job = make_job(
        {
            "name": "weeks",
            "protocol": "value_stream",
            "parameters": {"epsilon": 1, "changes": 7},
            "epochs": {"count": 64},
        }
    )
    shares = np.array([0.4, 0.2, 0.3, 0.1])
    few, many = weigh_changes(job, 1_000, shares), weigh_changes(job, 1_000_000, shares)
    # The more users there are, the more a bias is worth.
    assert [next(each.changes for each in found if each.best) for found in (few, many)] == [1, 3]
    biases = {each.changes: each.bias for each in many}
    assert biases[1] > biases[2] > 0
    assert biases[3] == biases[7] == 0.0
    noises = [each.noise for each in many]
    assert noises == sorted(noises)
    for each in (*few, *many):
        assert each.rmse == pytest.approx(np.hypot(each.noise, each.bias))
