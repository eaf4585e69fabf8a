"""Test value_stream's estimates: unbiased for boosted changes, otherwise biased as predicted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP, Participation
from dpstream.aggregators.followed import unseen_deviation
from dpstream.aggregators.value_stream import SymbolSums, ValueStreamAggregator
from dpstream.randomizers.change_kernel import Kernel
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.value_stream import ValueStream, ValueStreamLaw, ValueStreamParameters
from dpstream.randomizers.value_stream.calibration import calibrate, law_with

EPOCHS = 24


@pytest.fixture(scope="module")
def law() -> ValueStreamLaw:
    return calibrate(ValueStreamParameters(4.0, 2), EPOCHS)


def told(
    law: ValueStreamLaw, streams: NDArray[np.int64], present: NDArray[np.bool_] | None = None
) -> ValueStreamAggregator:
    """Return an aggregator with a million copies of each device's expected symbols.

    Args:
        streams: Shape (epochs, devices).
        present: The same shape, bool; None if all devices are always present.
    """
    aggregator = ValueStreamAggregator(law)
    many = 1_000_000
    followed = np.zeros(streams.shape[1])
    before, made = np.zeros((2, streams.shape[1]), np.int64)
    known = np.ones(streams.shape[1], np.bool_)
    for epoch, values in enumerate(streams, start=1):
        here = np.ones(len(values), np.bool_) if present is None else present[epoch - 1]
        change = np.where(here, values - before, 0)
        boosted = (change != 0) & known & (made < law.max_changes)
        made += change != 0
        followed = law.decay * followed + law.boost * change * boosted
        before, known = np.where(here, values, before), here
        if here.any():
            means = law.gain / math.sqrt(law.squared_norm_budget) * (values - 0.5 + followed)[here]
            reports = many * int(here.sum())
            symbols = round(many * float(means.sum()) * 8)
            aggregator._add(epoch, SymbolSums(reports, symbols, reports * 64))
    return aggregator


def estimated(
    aggregator: ValueStreamAggregator, contributors: NDArray[np.int64], population: int
) -> list[float]:
    participation = Participation.constant(EPOCHS, 1_000_000 * population)
    participation.contributors[1:] = 1_000_000 * contributors
    found = [aggregator.estimate(epoch, participation) for epoch in range(1, EPOCHS + 1)]
    assert None not in found
    return [each.value / 1e6 for each in found if each is not None and each.value is not None]


def some_streams(devices: int, changes: int) -> NDArray[np.int64]:
    rng = np.random.default_rng(changes)
    streams = np.zeros((EPOCHS, devices), np.int64)
    for device in range(devices):
        for at in rng.choice(EPOCHS, rng.integers(changes + 1), replace=False).tolist():
            streams[at:, device] ^= 1
    return streams


def test_unboosted_changes_appear_gradually(law: ValueStreamLaw) -> None:
    stream = np.zeros((EPOCHS, 1), np.int64)
    stream[[*range(2, 5), *range(9, EPOCHS)]] = 1
    found = np.array(estimated(told(law, stream), np.ones(EPOCHS, np.int64), 1))
    kernel = Kernel(law.boost, law.decay)
    lag = np.arange(EPOCHS) - 9
    missing = law.boost / (1 + law.boost) * kernel.left ** np.maximum(lag, 0) * (lag >= 0)
    assert found == pytest.approx(stream[:, 0] - missing, abs=1e-3)
    assert missing.max() > 0.3


@pytest.mark.parametrize("most", [2, 7])
def test_estimation_error_is_noise_plus_unboosted_changes(law: ValueStreamLaw, most: int) -> None:
    users, rng = 80_000, seeded_generator(23, most)
    when = np.sort(rng.permuted(np.tile(np.arange(EPOCHS), (users, 1)), axis=1)[:, :most], axis=1)
    # Between none and all of the changes: a user's last changes can come after the end.
    when[np.arange(most) >= rng.integers(0, most + 1, users)[:, None]] = EPOCHS
    values = (when[None] <= np.arange(EPOCHS)[:, None, None]).sum(axis=2) % 2
    devices, aggregator = ValueStream(law), ValueStreamAggregator(law)
    devices.enroll(users, rng)
    participation = Participation.constant(EPOCHS, users)
    kernel, share = Kernel(law.boost, law.decay), law.boost / (1 + law.boost)
    signs, missing, largest = np.where(np.arange(most) % 2, -1, 1), 0.0, 0.0
    for epoch, now in enumerate(values, start=1):
        aggregator.add(epoch, devices.report(epoch, now, None, rng), None)
        late = (when[:, law.max_changes :] == epoch - 1) @ signs[law.max_changes :]
        missing = kernel.left * missing + share * float(late.sum())
        found = aggregator.estimate(epoch, participation)
        assert found is not None
        assert found.value is not None
        assert found.standard_error is not None
        assert abs(found.value + missing - now.sum()) < 7 * found.standard_error
        largest = max(largest, abs(missing) / found.standard_error)
        # A standard error that is off by a sixth would be detected.
        assert now.sum() > 42 * found.standard_error or epoch < 5
    assert largest == 0 if most == law.max_changes else largest > 14


def test_estimates_of_reporting_devices_are_scaled_to_absent_devices_and_newcomers(
    law: ValueStreamLaw,
) -> None:
    """If the same fraction of every kind of stream is absent, expectations stay the ground truth.

    Changes during absence are not boosted: streams are constant while devices are absent.
    """
    streams = np.repeat(some_streams(30, 1), 2, axis=1)
    present = np.ones_like(streams, np.bool_)
    constant = (streams[5:9] == streams[5]).all(axis=0) & (streams[9] == streams[5])
    streams = streams[:, constant]
    present = present[:, constant]
    present[6:9, ::2] = False
    found = estimated(told(law, streams, present), present.sum(axis=1), streams.shape[1])
    assert found == pytest.approx(streams.sum(axis=1).tolist(), abs=1e-3)


def test_epoch_without_reports_repeats_the_estimate_with_a_gap_flag(law: ValueStreamLaw) -> None:
    streams = np.ones((EPOCHS, 5), np.int64)
    streams[:3] = 0
    present = np.ones_like(streams, np.bool_)
    present[7] = False
    aggregator = told(law, streams, present)
    contributors = present.sum(axis=1)
    assert estimated(aggregator, contributors, 5) == pytest.approx(
        streams.sum(axis=1).tolist(), abs=1e-3
    )
    participation = Participation.constant(EPOCHS, 5_000_000)
    found = [aggregator.estimate(epoch, participation) for epoch in (7, 8, 9)]
    flags = [each.flags for each in found if each is not None]
    assert flags == [(), (GAP,), ()]


def test_variances_after_a_gap_match_simulated_noise(law: ValueStreamLaw) -> None:
    participation = Participation.constant(EPOCHS, 4000)
    reports = np.full(EPOCHS + 1, 4000)
    reports[[4, 5, 11]] = 0
    reports[15:19] = 1000
    draws = seeded_generator(5).standard_normal((4000, EPOCHS + 1)) * np.sqrt(reports)
    aggregators = []
    for row in draws[:600]:
        aggregator = ValueStreamAggregator(law)
        for epoch in (np.flatnonzero(reports[1:]) + 1).tolist():
            many = int(reports[epoch])
            symbols = round(float(row[epoch]) * 8)
            aggregator._add(epoch, SymbolSums(many, symbols, 64 * many))
        aggregators.append(aggregator)
    for epoch in (3, 5, 6, 12, 16, 19, EPOCHS):
        found = [each.followed(epoch, participation) for each in aggregators]
        values, boosts = (
            np.array([getattr(f, name) for f in found]) for name in ("value", "boosts")
        )
        assert values.var() == pytest.approx(found[0].variance, rel=0.35)
        assert boosts.var() == pytest.approx(found[0].boosts_variance, rel=0.35)
        correlated = np.cov(values, boosts)[0, 1] / math.sqrt(values.var() * boosts.var())
        expected = found[0].covariance / math.sqrt(found[0].variance * found[0].boosts_variance)
        assert correlated == pytest.approx(expected, abs=0.2)


@pytest.mark.parametrize("same", [True, False])
def test_intervals_cover_changes_by_absent_devices_from_the_first_epoch(same: bool) -> None:
    law = law_with(Kernel(1.0, 0.25), ValueStreamParameters(10.0, 2), 4)
    runs, devices = 400, 200
    values = np.tile(np.arange(devices) % 2, (law.last_epoch, 1))
    values[2:] = np.arange(devices) % 4 > 0
    rng, people = seeded_generator(17), ValueStream(law)
    people.enroll(runs * devices, rng)
    known = np.ones(runs * devices, np.bool_)
    aggregators = [ValueStreamAggregator(law) for _ in range(runs)]
    participation = Participation.constant(law.last_epoch, devices)
    participation.contributors[1:] = devices // 5
    order = rng.permuted(np.tile(np.arange(devices), (runs, 1)), axis=1)
    for epoch, now in enumerate(values, start=1):
        order = order if same else rng.permuted(order, axis=1)
        present = (order < devices // 5).ravel()
        words = people.follow(epoch, np.tile(now, runs), present, rng, known)
        errors = np.empty(runs)
        for run, sent in enumerate(words.reshape(runs, -1, 1)):
            aggregators[run].add(epoch, sent, None)
            found = aggregators[run].estimate(epoch, participation)
            assert found is not None
            assert found.value is not None
            assert found.standard_error is not None
            errors[run] = (found.value - now.sum()) / found.standard_error
        noise = math.sqrt(aggregators[0].followed(epoch, participation).variance)
        absence_error = unseen_deviation(float(now.sum()), devices, devices // 5)
        assert absence_error > 0.8 * noise, "absence contributes to the error"
        # The bound is 7 standard deviations for 400 runs.
        assert abs(errors.mean()) < 0.35
        assert np.square(errors).mean() < 1.5
        if same or epoch == 1:
            assert np.square(errors).mean() > 0.6, "intervals are not much too wide"
