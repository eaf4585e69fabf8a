"""Estimates of sampled responses: exact moments, golden intervals, coverage, changes."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.change_errors import SampledChanges
from dpstream.aggregators.epoch_responses import SampledResponseAggregator
from dpstream.aggregators.estimate import Estimate, Participation
from dpstream.aggregators.random_walk import Shrunk, random_walk
from dpstream.pipeline.protocols.sampled_response import PROTOCOL
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.sampled_response import (
    SampledResponse,
    SampledResponseLaw,
    SampledResponseParameters,
)
from dpstream.randomizers.sampled_response.calibration import calibrate


def law_of(epsilon: float, reports: int, last_epoch: int = 170) -> SampledResponseLaw:
    return calibrate(SampledResponseParameters(epsilon, reports), last_epoch)


def estimate_of(law: SampledResponseLaw, population: int, received: int, ones: int) -> Estimate:
    aggregator = SampledResponseAggregator(law)
    answers = np.repeat(np.array([[0], [1]], np.uint8), [received - ones, ones], axis=0)
    aggregator.add(1, answers, None)
    estimate = aggregator.estimate(1, Participation.constant(law.last_epoch, population))
    assert estimate is not None
    return estimate


@pytest.mark.parametrize(
    ("epsilon", "reports", "population", "received", "ones", "expected"),
    [
        (1, 1, 1_000, 250, 100, (283.6047, 159.2199, 414.2473)),
        (4, 3, 28_785, 508, 100, (4363.8815, 3302.5139, 5574.1580)),
        (2, 2, 28_785, 339, 170, (14461.5360, 11988.9468, 16932.5851)),
        (4, 1, 2_000, 50, 0, (-37.3147, -37.3147, 110.7051)),
    ],
)
def test_estimates_and_intervals_match_the_reference(
    epsilon: float,
    reports: int,
    population: int,
    received: int,
    ones: int,
    expected: tuple[float, float, float],
) -> None:
    estimate = estimate_of(law_of(epsilon, reports), population, received, ones)
    assert (estimate.value, estimate.ci95_low, estimate.ci95_high) == pytest.approx(
        expected, abs=5e-4
    )


@pytest.mark.parametrize(("population", "received", "holders"), [(5, 3, 2), (6, 2, 3), (4, 4, 1)])
def test_mean_and_stated_variance_are_exact(population: int, received: int, holders: int) -> None:
    """Enumerate all samples of users and all flips; the share of ones is never clipped here."""
    law = law_of(1.0, 1, 3)
    kept = float(law.flips.probability(0))
    mean = second = stated = 0.0
    samples = list(combinations(range(population), received))
    for sample in samples:
        values = [user < holders for user in sample]
        for flips in range(1 << received):
            bits = [flips >> place & 1 for place in range(received)]
            probability = math.prod((1 - kept) if bit else kept for bit in bits) / len(samples)
            ones = sum(value ^ bit for value, bit in zip(values, bits, strict=True))
            estimate = estimate_of(law, population, received, ones)
            assert estimate.value is not None
            mean += probability * estimate.value
            second += probability * estimate.value**2
            gap, share = law.c_gap, ones / received
            spread = max(0.0, 1 / received - 1 / population) * received / max(1, received - 1)
            unclipped = spread * share * (1 - share) + (1 - gap**2) / 4 / population
            stated += probability * population**2 * unclipped / gap**2
    share = holders / population
    sampling = (population - received) / received / (population - 1) * share * (1 - share)
    formula = population**2 * ((law.c_gap**-2 - 1) / 4 / received + sampling)
    assert mean == pytest.approx(holders)
    assert second - mean**2 == pytest.approx(formula)
    assert stated == pytest.approx(formula)


def test_intervals_cover_the_ground_truth_when_a_third_of_all_users_is_absent() -> None:
    law, users, horizon = law_of(4.0, 3, 12), 3_000, 12
    rng = seeded_generator(11)
    truth = np.arange(users) < 300
    covered = trials = 0
    errors = []
    for _ in range(60):
        devices, aggregator = SampledResponse(law), SampledResponseAggregator(law)
        devices.enroll(users, rng)
        order = rng.permutation(users)
        for epoch in range(1, horizon + 1):
            present = rng.random(users) < 0.7
            answers = devices.report(epoch, truth[order], present, rng)
            aggregator.add(epoch, answers, None)
            estimate = aggregator.estimate(epoch, Participation.constant(horizon, users))
            assert estimate is not None
            assert estimate.ci95_low is not None
            assert estimate.value is not None
            assert estimate.ci95_high is not None
            covered += estimate.ci95_low <= 300 <= estimate.ci95_high
            errors.append((estimate.value - 300) / (estimate.standard_error or 0.0))
            trials += 1
    assert 0.92 <= covered / trials <= 0.98
    assert abs(np.mean(errors)) < 4 / math.sqrt(trials)
    assert 0.9 <= np.std(errors) <= 1.1


def test_errors_stated_for_changes_are_upper_bounds_if_values_are_constant() -> None:
    """With three epochs the samples are a third of all users each, and exclude each other."""
    law, users = law_of(4.0, 1, 3), 3_000
    rng = seeded_generator(12)
    truth = np.arange(users) < users // 2
    changes, stated = [], []
    for _ in range(400):
        devices, aggregator = SampledResponse(law), SampledResponseAggregator(law)
        devices.enroll(users, rng)
        bound, values = SampledChanges(1), []
        for epoch in (1, 2):
            aggregator.add(epoch, devices.report(epoch, truth, None, rng), None)
            estimate = aggregator.estimate(epoch, Participation.constant(3, users))
            assert estimate is not None
            assert estimate.value is not None
            values.append(estimate.value)
            error = bound.next(estimate, users)
        assert error is not None
        changes.append(values[1] - values[0])
        stated.append(error)
    assert np.std(changes) == pytest.approx(np.mean(stated), rel=0.12)
    independent = math.sqrt(2) * float(np.mean(stated)) / math.sqrt(3)
    assert np.std(changes) > 1.1 * independent


def test_no_error_is_stated_for_a_change_if_some_users_answered_at_both_epochs() -> None:
    """The flips of one user are correlated, so its two answers are, too."""
    changes = PROTOCOL.aggregation.changes
    law = law_of(4.0, 3, 12)
    claimed = [lag for lag in range(1, 12) if changes(law, None, lag) is not None]
    assert claimed == [1, 2, 3, 5, 6, 7, 9, 10, 11]


def test_shrunk_estimates_follow_the_random_walk_with_pooled_noise() -> None:
    """The noise of an epoch follows from the share in all reports, online from those so far."""
    law, epochs, users = law_of(1.0, 1, 40), 40, 20_000
    rng = seeded_generator(17)
    truth = np.cumsum(np.where(np.arange(epochs) == 0, 4_000, rng.normal(0, 60, epochs)))
    devices, aggregator = SampledResponse(law), SampledResponseAggregator(law)
    devices.enroll(users, rng)
    for epoch in range(1, epochs + 1):
        answers = devices.report(epoch, np.arange(users) < truth[epoch - 1], None, rng)
        if epoch != 7:
            aggregator.add(epoch, answers, None)
    participation = Participation.constant(epochs, users)
    smoothed = aggregator.smoothed(epochs, participation)
    assert smoothed.gaps.tolist() == [epoch == 7 for epoch in range(1, epochs + 1)]
    values, received = np.zeros(epochs), np.full(epochs, users / epochs)
    for epoch in range(1, epochs + 1):
        estimate = aggregator.estimate(epoch, participation)
        if estimate is None:
            received[epoch - 1] = 0
        else:
            values[epoch - 1] = estimate.value or 0.0
            assert smoothed.standard_errors[epoch - 1] == estimate.standard_error
    known = received > 0
    assert smoothed.values[known, 0].tolist() == values[known].tolist()
    unit = (law.c_gap**-2 - 1) / 4

    def walk(shares: NDArray[np.float64]) -> Shrunk:
        with np.errstate(divide="ignore"):
            variances = (
                users**2 / received * (unit + (1 - received / users) * shares * (1 - shares))
            )
        return random_walk(values, variances, users**2, boost=0.0, decay=0.0)

    so_far = np.cumsum(values * received) / np.cumsum(received) / users
    online, offline = walk(so_far).online, walk(np.full(epochs, so_far[-1])).offline
    assert smoothed.online_shrunk is not None
    assert smoothed.shrunk is not None
    assert smoothed.online_shrunk[:, 0] == pytest.approx(online)
    assert smoothed.shrunk[:, 0] == pytest.approx(offline)
    unbiased, filtered, looked_back = (
        float(np.sqrt(np.mean((each - truth)[known] ** 2)))
        for each in (values, smoothed.online_shrunk[:, 0], smoothed.shrunk[:, 0])
    )
    assert looked_back < filtered < 0.6 * unbiased


def test_no_estimate_is_smoothed_without_reports() -> None:
    smoothed = SampledResponseAggregator(law_of(1.0, 1, 4)).smoothed(
        3, Participation.constant(4, 100)
    )
    assert smoothed.gaps.all()
    assert smoothed.standard_errors.tolist() == [100.0] * 3
