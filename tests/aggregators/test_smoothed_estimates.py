"""Compare retrospective smoothing of real reports with matrix algebra and the ground truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.aggregators.estimate import GAP, NORMAL_95, Participation
from dpstream.aggregators.future_rand import Estimator, FutureRandAggregator
from dpstream.randomizers.dyadic import FutureRandLaw, orders_due
from dpstream.randomizers.future_rand import FutureRand, FutureRandParameters
from dpstream.randomizers.future_rand.calibration import calibrate
from dpstream.randomizers.randomness import seeded_generator

Array = NDArray[np.float64]
FALSE_ALARM = 1e-10
LAW = calibrate(FutureRandParameters(2.0, 2), 16)


@pytest.mark.parametrize("last_epoch", [1, 2, 7, 12, 16])
def test_smoothing_is_weighted_least_squares_over_all_reports(last_epoch: int) -> None:
    for seed in range(5):
        aggregator, participation = run_with_newcomers(seed)
        found = aggregator.smoothed(last_epoch, participation)
        design, values, prior, estimated = system(aggregator, participation, last_epoch)
        weights = design.T / prior
        solution = np.tril(np.ones((last_epoch, last_epoch))) @ np.linalg.solve(
            weights @ design, weights
        )
        assert found.values[:, 0] == pytest.approx(solution @ values, rel=1e-4, abs=1e-3)
        deviations = np.sqrt(np.square(solution) @ estimated)
        assert found.standard_errors == pytest.approx(deviations, rel=1e-4)
        assert found.half_widths == pytest.approx(NORMAL_95 * deviations, rel=1e-4)
        assert found.population.tolist() == participation.population[1 : last_epoch + 1].tolist()
        assert not found.gaps.any()


def test_suppressed_epoch_is_estimated_from_its_neighbors() -> None:
    """No report due at epoch 3 arrives, but longer intervals cover it, so there is no gap.

    Epoch 3 itself is one half of an interval whose other half and sum are known.
    """
    counts, participation = constant_reports(8, missing=(3,)), Participation.constant(16, 1000)
    found = counts.smoothed(8, participation)
    assert not found.gaps.any()
    assert counts.estimate(3, participation).flags == (GAP,)
    whole = constant_reports(8).smoothed(8, participation)
    assert found.standard_errors[2] > 1.2 * whole.standard_errors[2]


def test_epochs_that_no_report_distinguishes_get_a_flag_and_wider_intervals() -> None:
    """Epochs 3 and 4 are covered only by longer intervals, and epoch 7, the last, by none."""
    participation = Participation.constant(16, 1000)
    aggregator = constant_reports(7, missing=(3, 7), orders={4: (1, 2)})
    found = aggregator.smoothed(7, participation)
    assert found.gaps.tolist() == [False, False, True, False, False, False, True]
    scale = 1000 / LAW.c_gaps[0]
    typical = scale * 0.2  # for every known single epoch, from 40 and 60 reports
    widening = found.half_widths - NORMAL_95 * found.standard_errors
    share = math.sqrt(0.5)
    assert widening == pytest.approx(
        [0, 0, NORMAL_95 * typical * share, 0, 0, 0, NORMAL_95 * typical], rel=1e-3
    )
    increments = np.diff(found.values[:, 0], prepend=0)
    assert increments[2] == pytest.approx(increments[3])
    assert increments[6] == pytest.approx(0)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["tree", pytest.param("prefix", marks=pytest.mark.verify)])
def test_intervals_contain_the_ground_truth_at_the_nominal_rate(estimator: Estimator) -> None:
    runs, devices, horizon = 400, 1500, LAW.horizon
    participation = Participation.constant(horizon, devices)
    standardized = np.empty((runs, horizon))
    for seed in range(runs):
        streams = random_streams(np.random.default_rng(seed), devices, horizon)
        aggregator = run(LAW, streams, seed, estimator)
        found = aggregator.smoothed(horizon, participation)
        ground_truth = streams[1:].sum(axis=1)
        standardized[seed] = (found.values[:, 0] - ground_truth) / found.standard_errors
        low, high = found.intervals[1:, :, 0]
        inside = (low <= ground_truth) & (ground_truth <= high)
        assert inside.tolist() == (np.abs(standardized[seed]) <= NORMAL_95).tolist()
    for epoch in (0, 4, 8, 12, 15):
        errors = standardized[:, epoch]
        assert abs(float(errors.mean())) < 6.5 / math.sqrt(runs)
        for scale, right in ((1.0, True), (0.7, False), (1.35, False)):
            squares = float(np.square(scale * errors).sum())
            tail = min(stats.chi2.cdf(squares, runs), stats.chi2.sf(squares, runs))
            assert (2 * tail > FALSE_ALARM) == right


def constant_reports(
    last_epoch: int, missing: tuple[int, ...] = (), orders: dict[int, tuple[int, ...]] | None = None
) -> FutureRandAggregator:
    aggregator = FutureRandAggregator(LAW)
    for epoch in range(1, last_epoch + 1):
        for order in (orders or {}).get(epoch, range(orders_due(epoch))):
            if epoch not in missing:
                words = np.repeat(np.array([2 * order, 2 * order + 1], np.uint8), [40, 60])
                aggregator.add(epoch, words[:, None], None)
    return aggregator


def run_with_newcomers(seed: int) -> tuple[FutureRandAggregator, Participation]:
    devices, aggregator = FutureRand(LAW), FutureRandAggregator(LAW)
    participation, rng = Participation.empty(LAW.horizon), np.random.default_rng(seed)
    for epoch in range(1, LAW.horizon + 1):
        if epoch in (1, 6, 11):
            devices.enroll(300, seeded_generator(seed, epoch))
        values = rng.integers(0, 2, devices.population).astype(np.int8)
        present = rng.random(devices.population) < 0.7
        words = devices.report(epoch, values, present, seeded_generator(seed, 99, epoch))
        aggregator.add(epoch, words, None)
        participation.set(epoch, int(present.sum()), devices.population)
    return aggregator, participation


def system(
    aggregator: FutureRandAggregator, participation: Participation, last_epoch: int
) -> tuple[Array, Array, Array, Array]:
    rows, values, prior, estimated = [], [], [], []
    for epoch in range(1, last_epoch + 1):
        for order, increment in enumerate(aggregator.own_increments(epoch, participation)):
            if increment is not None:
                ends = range(1, last_epoch + 1)
                rows.append([float(epoch - (1 << order) < other <= epoch) for other in ends])
                values.append(float(increment.value[0]))
                prior.append(increment.prior_variance)
                estimated.append(increment.variance)
    return np.array(rows), np.array(values), np.array(prior), np.array(estimated)


def random_streams(rng: np.random.Generator, devices: int, horizon: int) -> NDArray[np.int8]:
    changes = np.sort(rng.integers(1, 2 * horizon, (2, devices)), axis=0)
    epochs = np.arange(horizon + 1)[:, None]
    values: NDArray[np.int8] = ((epochs >= changes[0]) & (epochs < changes[1])).astype(np.int8)
    return values


def run(
    law: FutureRandLaw, streams: NDArray[np.int8], seed: int, estimator: Estimator = "tree"
) -> FutureRandAggregator:
    devices, aggregator = FutureRand(law), FutureRandAggregator(law, estimator)
    devices.enroll(streams.shape[1], seeded_generator(seed, 1))
    rng = seeded_generator(seed, 2)
    for epoch in range(1, len(streams)):
        aggregator.add(epoch, devices.report(epoch, streams[epoch], None, rng), None)
    return aggregator
