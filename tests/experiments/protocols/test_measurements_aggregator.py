"""Test items found from noisy measurements, with the noise of a realistic number of users."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.randomizers.randomness import seeded_generator
from experiments.protocols.measurements import (
    BucketParameters,
    Measurements,
    MeasurementsLaw,
    SparseRecoveryParameters,
)
from experiments.protocols.measurements.aggregator import (
    MeasurementsAggregator,
    solved,
    sum_variance,
)
from experiments.protocols.measurements.calibration import calibrate
from experiments.protocols.measurements.clamped_noise import ClampedNoise
from experiments.protocols.measurements.entries import MeasurementsForecast

ITEMS = tuple(map(str, range(16_470)))


def received(law: MeasurementsLaw, held: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    rng = np.random.default_rng(seed)
    assert law.noise is not None
    entries = law.matrix.entries(np.arange(1, law.items + 1))
    laws = {each: probabilities(law.noise, each) for each in (-1, 0, 1)}
    seen = np.arange(2 * law.noise.most + 1)
    sums = [
        sum(
            int(rng.multinomial(int(held[entries[:, row] == entry].sum()), law_of) @ seen)
            for entry, law_of in laws.items()
        )
        for row in range(law.matrix.measurements)
    ]
    return np.array([held.sum(), *sums])


def probabilities(noise: ClampedNoise, entry: int) -> NDArray[np.float64]:
    found = np.array([mass / 2**128 for mass in noise.masses(entry)])
    return np.asarray(found / found.sum(), np.float64)


def test_solved_equations_match_exhaustive_search() -> None:
    rng = np.random.default_rng(5)
    rows = rng.integers(1, 64, (400, 6))
    items = rng.integers(0, 64, 400)
    bits = (np.bitwise_count(rows & items[:, None]) & 1).astype(np.bool_)
    bits[::3, 0] ^= True
    found = solved(rows, bits, items=60)
    for row, bit, item in zip(rows, bits, found, strict=True):
        every = [x for x in range(64) if ((np.bitwise_count(row & x) & 1) == bit).all()]
        assert item == (every[0] if len(every) == 1 and 1 <= every[0] <= 60 else 0)
    assert 100 < np.count_nonzero(found) < 350


def test_sparse_recovery_finds_exactly_the_items_above_noise() -> None:
    """For 88,162 users, the noise of a count is 28,000 users in 40 rows, above most counts."""
    requested = SparseRecoveryParameters(1.0, ITEMS, sparsity=5, calibration="published")
    law = calibrate(requested, 1, 88_162)
    rows = law.matrix.measurements
    deviation = math.sqrt(sum_variance(law, 88_162) * 40 / rows)
    # The noise is 28,059 with 40 rows; here, rows are whole buckets with a test for each bit.
    assert rows == 48
    assert deviation == pytest.approx(28_059, rel=0.01)
    shop = np.bincount(np.minimum(np.arange(88_162) // 5_000, 16_469), minlength=16_470)
    crowd = np.zeros(16_470, np.int64)
    crowd[[12, 4_711]] = 20_000_000, 40_000_000
    for held, expected in ((shop, []), (crowd, [4_712, 13])):
        aggregator = MeasurementsAggregator(law)
        aggregator._tables.add_table(1, received(law, held, 2))
        assert aggregator.recovered(1).tolist() == expected


@pytest.mark.parametrize("item", [1, 7, 30])
def test_bucket_error_includes_the_mean_contribution_of_other_items(item: int) -> None:
    """No row is 0, so products with other columns are -1/31 on average, not 0."""
    law = calibrate(
        BucketParameters(1.0, tuple(map(str, range(30))), calibration="sampled"), last_epoch=1
    )
    ground_truth = np.full(30, 138)
    ground_truth[item - 1] = 6_000
    held = np.repeat(np.arange(1, 31), ground_truth)
    aggregator, errors, stated = MeasurementsAggregator(law), [], 0.0
    assert aggregator.together == pytest.approx(-1 / 31, rel=0.2)
    for seed in range(20):
        devices, rng = Measurements(law), seeded_generator(seed)
        devices.enroll(len(held), rng)
        aggregator = MeasurementsAggregator(law)
        aggregator.add(1, np.asarray(devices.report(1, held[:, None], None, rng)), None)
        found = aggregator.estimate(1, Participation.constant(1, len(held)))
        assert isinstance(found, ItemEstimates)
        errors.append(np.delete(found.values - ground_truth, item - 1))
        stated = found.standard_error
    measured = math.sqrt(float(np.square(errors).mean()))
    assert measured == pytest.approx(stated, rel=0.12)
    # `plan` predicts this error; without the common shift it would be 0.87 of it.
    forecast = MeasurementsForecast(aggregator, 1.0, 1, held=ground_truth / len(held))
    planned = float(forecast.standard_errors(len(held))[0])
    assert measured == pytest.approx(planned, rel=0.12)
