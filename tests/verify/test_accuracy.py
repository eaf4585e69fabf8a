"""Errors of every interval of a horizon match predictions, for optimal and published calibration.

`make test` runs 20 seeds and `make verify` 100, with a tolerance of six standard errors either way.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.aggregators.future_rand import FutureRandAggregator, interval_variances
from dpstream.randomizers.dyadic import FutureRandLaw
from dpstream.randomizers.future_rand import FutureRand, FutureRandParameters
from dpstream.randomizers.future_rand.calibration import calibrate
from dpstream.randomizers.randomness import seeded_generator
from tests.verify.tables import print_table

HORIZON = 256
DEVICES = 10_000
CHANGES = 4
EPSILON = 4.0
CALIBRATIONS: tuple[Literal["optimal", "published"], ...] = ("optimal", "published")
FALSE_ALARM = 1e-9
# The top order is rarely drawn, and an estimate from a few reports is not normal.
FEW_DEVICES = 100


@pytest.mark.parametrize(
    ("seeds", "tolerance"), [(20, 0.09), pytest.param(100, 0.04, marks=pytest.mark.verify)]
)
@pytest.mark.parametrize("calibration", CALIBRATIONS)
def test_interval_errors_match_predictions_at_every_order(
    calibration: Literal["optimal", "published"], seeds: int, tolerance: float
) -> None:
    law = calibrate(FutureRandParameters(EPSILON, CHANGES, calibration), HORIZON)
    orders = [h for h, p in enumerate(law.order_probabilities) if p * DEVICES > FEW_DEVICES]
    errors: list[list[NDArray[np.float64]]] = [[] for _ in orders]
    predictions: list[list[NDArray[np.float64]]] = [[] for _ in orders]
    for seed in range(seeds):
        streams = random_streams(np.random.default_rng(seed))
        aggregator = run(law, streams, (seed, CALIBRATIONS.index(calibration)))
        for order in orders:
            partial_sums = np.diff(streams[:: 1 << order], axis=0)
            errors[order].append(estimates(aggregator, order) - partial_sums.sum(axis=1))
            predictions[order].append(predicted(law, order, partial_sums))
    standardized = [
        np.concatenate(one) / np.concatenate(other)
        for one, other in zip(errors, predictions, strict=True)
    ]
    ratios = [float(np.square(values).mean()) for values in standardized]
    likelihoods = [likelihood(values) for values in standardized]
    pooled = np.concatenate(standardized)
    ratio = float(np.square(pooled).mean())

    rows = [
        [
            str(order),
            str(HORIZON >> order),
            f"{root_mean_square(np.concatenate(predictions[order])):.1f}",
            f"{root_mean_square(np.concatenate(errors[order])):.1f}",
            f"{ratios[order]:.3f}",
            f"{likelihoods[order]:.2g}",
        ]
        for order in orders
    ]
    rows.append(
        [
            "all",
            str(sum(HORIZON >> order for order in orders)),
            "",
            "",
            f"{ratio:.3f}",
            f"{likelihood(pooled):.2g}",
        ]
    )
    print_table(
        f"Standard deviation of an interval, {calibration} law: {DEVICES:,} devices, epsilon "
        f"{EPSILON:g}, {CHANGES} changes, {seeds} seeds",
        ["order", "intervals", "predicted", "measured", "ratio of variances", "p"],
        rows,
    )
    assert tolerance > 6 * math.sqrt(2 / len(pooled))
    assert abs(ratio - 1) < tolerance
    assert min(likelihoods) > FALSE_ALARM
    for scale in (0.7, 1.3):
        assert abs(scale**2 * ratio - 1) > tolerance
        assert min(likelihood(scale * values) for values in standardized) < FALSE_ALARM


def random_streams(rng: np.random.Generator) -> NDArray[np.int8]:
    """Return values, shape (horizon + 1, devices), initially 0 with up to four changes."""
    flips = np.zeros((HORIZON + 1, DEVICES), np.int8)
    for _ in range(CHANGES):
        flips[rng.integers(1, HORIZON + 1, DEVICES), np.arange(DEVICES)] ^= 1
    return np.bitwise_xor.accumulate(flips, axis=0)


def run(
    law: FutureRandLaw, streams: NDArray[np.int8], keys: tuple[int, int]
) -> FutureRandAggregator:
    devices, aggregator = FutureRand(law), FutureRandAggregator(law)
    devices.enroll(DEVICES, seeded_generator(*keys))
    rng = seeded_generator(*keys, 1)
    for epoch in range(1, HORIZON + 1):
        aggregator.add(epoch, devices.report(epoch, streams[epoch], None, rng), None)
    assert devices.exhausted == 0
    return aggregator


def estimates(aggregator: FutureRandAggregator, order: int) -> NDArray[np.float64]:
    """Estimate the sum over all devices for each interval of an order (Algorithm 2)."""
    negative, positive, *_ = aggregator.tree.order_counts(order, HORIZON).T
    means = (positive - negative) / (positive + negative)
    scaled: NDArray[np.float64] = DEVICES * means / aggregator.law.c_gaps[order]
    return scaled


def predicted(
    law: FutureRandLaw, order: int, partial_sums: NDArray[np.int8]
) -> NDArray[np.float64]:
    """Return standard deviations for known partial sums, shape (intervals, devices).

    The variances are smaller than `interval_variances`, since the contribution of values is known.
    """
    mean_squares = np.square(partial_sums.mean(axis=1))
    signs = 1 / law.c_gaps[order] ** 2 - mean_squares
    sampled = np.square(partial_sums).mean(axis=1) - mean_squares
    variances = DEVICES * (signs / law.order_probabilities[order] - sampled)
    assert (variances <= DEVICES * interval_variances(law)[order]).all()
    deviations: NDArray[np.float64] = np.sqrt(variances)
    return deviations


def root_mean_square(values: NDArray[np.float64]) -> float:
    return math.sqrt(float(np.square(values).mean()))


def likelihood(standardized: NDArray[np.float64]) -> float:
    """Return the p-value of the sum of squares, for variance 1."""
    squares, count = float(np.square(standardized).sum()), len(standardized)
    return float(2 * min(stats.chi2.cdf(squares, count), stats.chi2.sf(squares, count)))
