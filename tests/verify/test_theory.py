"""The theory table: epsilon 1, horizons of 64, 256 and 1,024 epochs, 1, 4 and 16 changes.

Real devices against the predictions. Streams change at random epochs, as often as the budget allows
half of the time. Node variances are measured with 100,000 devices; errors of the estimates over
200 seeds with fewer, since the error over the square root of the number of devices is the same.
"""

from __future__ import annotations

import math
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.aggregators.attendance import Attendance
from dpstream.aggregators.future_rand import (
    FutureRandAggregator,
    interval_variances,
    predicted_smoothed_variances,
    predicted_variances,
)
from dpstream.aggregators.tree_smoothing import TreeEstimates, smoothed_increments
from dpstream.randomizers.future_rand import FutureRand, FutureRandLaw, FutureRandParameters
from dpstream.randomizers.future_rand.calibration import calibrate
from dpstream.randomizers.randomness import seeded_generator
from tests.verify.tables import print_table

pytestmark = pytest.mark.verify

Array = NDArray[np.float64]

HORIZONS = (64, 256, 1024)
CHANGES = (1, 4, 16)
SEEDS = 200
DEVICES = 2_000
MANY_DEVICES = 100_000
TOLERANCE = 0.12
NODE_TOLERANCE = 0.09
FALSE_ALARM = 1e-9

# RMSE over the square root of the number of devices, from the reference: online and smoothed.
REFERENCE = {
    (64, 1): (7.0, 5.5),
    (64, 4): (14.9, 10.6),
    (64, 16): (25.8, 17.5),
    (256, 1): (9.1, 6.8),
    (256, 4): (19.6, 13.6),
    (256, 16): (35.8, 22.9),
    (1024, 1): (11.3, 8.0),
    (1024, 4): (24.4, 16.3),
    (1024, 16): (45.8, 29.2),
}


@dataclass(frozen=True)
class Measured:
    """Mean squares over epochs, one a seed: of the errors, divided by the number of devices."""

    online: Array
    smoothed: Array


def test_errors_are_those_of_the_theory_table() -> None:
    rows, ratios = [], []
    for (horizon, changes), (online, smoothed) in REFERENCE.items():
        law = calibrate(FutureRandParameters(1.0, changes), horizon)
        measured = measure(horizon, changes)
        for name, wanted, planned, squares in (
            ("online", online, predicted_variances(law, horizon), measured.online),
            ("smoothed", smoothed, predicted_smoothed_variances(law, horizon), measured.smoothed),
        ):
            found, plan = math.sqrt(squares.mean()), math.sqrt(planned.mean())
            ratios.append((name, found / wanted, found / plan))
            rows.append(
                [
                    f"{horizon:,}",
                    str(changes),
                    name,
                    f"{wanted}",
                    f"{plan:.1f}",
                    f"{found:.1f}",
                    f"{found / wanted:.1%}",
                    f"{found / plan:.1%}",
                ]
            )
    print_table(
        f"RMSE over the square root of {DEVICES:,} devices, epsilon 1, {SEEDS} seeds",
        ["epochs", "changes", "", "reference", "planned", "measured", "of reference", "of plan"],
        rows,
    )
    for name, of_reference, of_planned in ratios:
        assert of_reference - 1 < TOLERANCE, name
        assert abs(of_planned - 1) < TOLERANCE, name


def test_nodes_vary_as_predicted_with_many_devices() -> None:
    rows = []
    for horizon, changes in product(HORIZONS, CHANGES):
        law = calibrate(FutureRandParameters(1.0, changes), horizon)
        streams = random_streams(np.random.default_rng(horizon + changes), horizon, MANY_DEVICES)
        aggregator = run(law, limited(streams, changes), seed=0)
        standardized = np.concatenate(list(standardized_nodes(law, aggregator, streams, changes)))
        ratio = float(np.square(standardized).mean())
        likelihood = chi_square(standardized)
        rows.append([f"{horizon:,}", str(changes), str(len(standardized)), f"{ratio:.3f}"])
        rows[-1].append(f"{likelihood:.2g}")
        assert likelihood > FALSE_ALARM
        assert abs(ratio - 1) < max(NODE_TOLERANCE, 6 * math.sqrt(2 / len(standardized)))
        assert chi_square(1.7 * standardized) < FALSE_ALARM
        assert chi_square(0.5 * standardized) < FALSE_ALARM
    print_table(
        f"Variance of an interval's estimate, {MANY_DEVICES:,} devices, epsilon 1",
        ["epochs", "changes", "intervals", "measured of predicted", "p"],
        rows,
    )


def measure(horizon: int, changes: int) -> Measured:
    tasks = [(horizon, changes, seed) for seed in range(SEEDS)]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        squares = list(pool.map(one_seed, tasks, chunksize=10))
    print(f"{horizon} epochs, {changes} changes: {SEEDS} seeds", file=sys.stderr, flush=True)
    online, smoothed = np.array(squares).T
    return Measured(online, smoothed)


def one_seed(task: tuple[int, int, int]) -> tuple[float, float]:
    """Mean square error of the online and of the smoothed estimates, per device."""
    horizon, changes, seed = task
    law = calibrate(FutureRandParameters(1.0, changes), horizon)
    streams = random_streams(np.random.default_rng(seed), horizon, DEVICES)
    streams = limited(streams, changes)
    aggregator = run(law, streams, seed)
    attendance = Attendance.constant(horizon, DEVICES)
    values = [aggregator.estimate(epoch, attendance).value for epoch in range(1, horizon + 1)]
    truth = streams[1:].sum(axis=1)
    tree = list(tree_of(law, aggregator))
    smoothed = np.cumsum(smoothed_increments(tree)[:, 0])
    return mean_square(np.array(values) - truth), mean_square(smoothed - truth)


def mean_square(errors: Array) -> float:
    return float(np.square(errors).mean()) / DEVICES


def tree_of(law: FutureRandLaw, aggregator: FutureRandAggregator) -> list[TreeEstimates]:
    estimates = []
    for order, c_gap in enumerate(law.c_gaps):
        negative, positive, *_ = aggregator.tree.order_counts(order, law.horizon).T
        received = positive + negative
        known = np.maximum(received, 1)
        values = DEVICES * (positive - negative) / known / c_gap
        variances = np.where(received > 0, DEVICES**2 / known / c_gap**2, np.inf)
        estimates.append(TreeEstimates(values[:, None], variances))
    return estimates


def standardized_nodes(
    law: FutureRandLaw, aggregator: FutureRandAggregator, streams: NDArray[np.int8], changes: int
) -> list[Array]:
    streams = limited(streams, changes)
    users = streams.shape[1]
    found = []
    for order, (variance, c_gap) in enumerate(
        zip(interval_variances(law), law.c_gaps, strict=True)
    ):
        if users * law.order_probabilities[order] < 100:
            continue
        negative, positive, *_ = aggregator.tree.order_counts(order, law.horizon).T
        values = users * (positive - negative) / (positive + negative) / c_gap
        truth = np.diff(streams[:: 1 << order].sum(axis=1, dtype=np.int64))
        found.append((values - truth) / math.sqrt(users * variance))
    return found


def random_streams(rng: np.random.Generator, horizon: int, devices: int) -> NDArray[np.int8]:
    """Epochs at which values change, shape (horizon + 1, devices): about sixteen of each device."""
    changes = (rng.random((horizon + 1, devices), np.float32) < max(CHANGES) / horizon).astype(
        np.int8
    )
    changes[0] = 0
    return changes


def limited(changes: NDArray[np.int8], budget: int) -> NDArray[np.int8]:
    """Values of devices that make no more changes than the budget, half of them fewer."""
    rank = np.cumsum(changes, axis=0, dtype=np.int16)
    allowed = np.where(np.arange(changes.shape[1]) % 2, budget, budget // 2)
    kept: NDArray[np.int8] = (np.minimum(rank, allowed) & 1).astype(np.int8)
    return kept


def run(law: FutureRandLaw, streams: NDArray[np.int8], seed: int) -> FutureRandAggregator:
    devices, aggregator = FutureRand(law), FutureRandAggregator(law)
    devices.enrol(streams.shape[1], seeded_generator(seed))
    rng = seeded_generator(seed, 1)
    for epoch in range(1, law.horizon + 1):
        aggregator.add(epoch, devices.report(epoch, streams[epoch], None, rng), None)
    assert devices.frozen == 0
    return aggregator


def chi_square(standardized: Array) -> float:
    squares, count = float(np.square(standardized).sum()), len(standardized)
    return float(2 * min(stats.chi2.cdf(squares, count), stats.chi2.sf(squares, count)))
