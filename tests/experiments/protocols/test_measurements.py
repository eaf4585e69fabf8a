"""Test measurements with noise: exact losses and the distribution of the noise."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations, pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.randomizers.composed import log_rounded_up
from dpstream.randomizers.randomness import seeded_generator
from experiments.protocols.measurements import (
    BucketParameters,
    Calibration,
    JlHhParameters,
    Measurements,
    MeasurementsLaw,
    SparseRecoveryParameters,
)
from experiments.protocols.measurements.aggregator import (
    MeasurementsAggregator,
    solved,
    sum_variance,
)
from experiments.protocols.measurements.calibration import (
    calibrate,
    composed_loss,
    noise_of,
    published_loss,
)
from experiments.protocols.measurements.clamped_noise import ClampedNoise
from experiments.protocols.measurements.entries import MeasurementsForecast
from experiments.protocols.measurements.exact_law import ExactMeasurements
from experiments.protocols.measurements.public_matrices import (
    OneHot,
    PublicMatrix,
    SignedBuckets,
    distinct_rows,
)

THOUSAND = tuple(map(str, range(1000)))


def test_noise_table_is_the_discrete_laplace_distribution() -> None:
    """The probability of z is q^|z| (1 - q) / (1 + q); the end points have the whole tails."""
    noise = ClampedNoise(0.875, 40)
    q = Fraction(noise.decay)
    masses = [high - low for low, high in pairwise((0, *noise.table.bounds))]
    assert noise.table.first == -41
    assert len(masses) == 83
    for z, mass in zip(range(-41, 42), masses, strict=True):
        likely = q ** abs(z) * (1 - q) / (1 + q) / (1 - q if abs(z) == 41 else 1)
        assert Fraction(mass, 1 << 128) == pytest.approx(likely, rel=1e-30)


@pytest.mark.parametrize("loss", [0.003, 0.2, 1.0, 5.0])
def test_loss_under_clamped_noise_is_at_most_and_close_to_epsilon(loss: float) -> None:
    noise = noise_of(loss)
    assert loss - 1e-9 < log_rounded_up(noise.odds(1)) <= loss
    assert log_rounded_up(noise.odds(2)) == pytest.approx(2 * loss, abs=1e-9)
    q = noise.decay
    assert noise.variance == pytest.approx(2 * q / (1 - q) ** 2, rel=1e-4)
    assert noise.gap == pytest.approx(1.0, abs=1e-4)


def test_masses_are_the_probabilities_of_shifted_and_clamped_noise() -> None:
    noise = ClampedNoise(0.5, 3)
    masses = [high - low for low, high in pairwise((0, *noise.table.bounds))]
    for measurement in (-1, 0, 1):
        expected = [0] * 7
        for z, mass in zip(range(-4, 5), masses, strict=True):
            expected[max(-3, min(3, z + measurement)) + 3] += mass
        assert noise.masses(measurement) == tuple(expected)


@pytest.mark.parametrize(("epsilon", "delta", "measurements"), [(12.0, 0.2, 2), (1.0, 0.3, 1)])
@pytest.mark.parametrize("calibration", ["published", "replacement"])
def test_worst_loss_of_any_two_items_equals_the_stated_epsilon(
    epsilon: float, delta: float, measurements: int, calibration: Calibration
) -> None:
    """Enumerate six items, some of them opposite in all rows; half of the noise would fail."""
    requested = JlHhParameters(epsilon, tuple("abcdef"), delta, measurements, calibration)
    law = calibrate(requested, 1)
    views = ExactMeasurements(law, 1)
    held = [(0,), *((item,) for item in range(1, 7))]
    pairs = combinations(held, 2) if calibration == "replacement" else [(held[0], x) for x in held]
    ratios = []
    for one, other in pairs:
        first, second = views.views((one,)), views.views((other,))
        ratios += [first[view] / second[view] for view in first]
    worst = log_rounded_up(max(max(ratios), 1 / min(ratios)))
    assert worst == pytest.approx(law.epsilon, rel=1e-9)
    assert worst <= law.epsilon * (1 + 1e-15)
    assert law.delta == 0


@pytest.mark.parametrize("removal", [True, False], ids=["removal", "replacement"])
@pytest.mark.parametrize(
    ("items", "matrix"),
    [
        (5, OneHot(5)),
        (5, distinct_rows("test", 5, 8)),
        (5, SignedBuckets(5, 1, "test")),
        (9, SignedBuckets(9, 3, "test")),
    ],
    ids=["histogram", "rows", "one bucket", "three buckets"],
)
def test_neighbors_differ_in_at_most_the_stated_number_of_measurements(
    items: int, matrix: PublicMatrix, removal: bool
) -> None:
    columns = matrix.entries(np.arange(items + 1)).astype(int)
    said = {step: count for count, step in matrix.moved(removal=removal)}
    pairs = [(0, item) for item in range(1, items + 1)]
    for one, other in pairs if removal else combinations(range(items + 1), 2):
        steps = np.abs(columns[one] - columns[other])
        for step in (1, 2):
            assert np.count_nonzero(steps == step) <= said.get(step, 0)


def test_loss_of_many_measurements_follows_advanced_composition() -> None:
    law = calibrate(JlHhParameters(1.0, THOUSAND, 1e-6, 256, "published"), 4)
    single = published_loss(256, 1.0, 1e-6)
    for epochs, stated in ((1, law.epsilon), (4, law.stream_epsilon)):
        count = 256 * epochs
        expected = single * math.sqrt(2 * count * math.log(1e6)) + count * single * math.expm1(
            single
        )
        assert stated == pytest.approx(expected, rel=1e-6)
    assert law.delta == 1e-6
    assert composed_loss(3, Fraction(2), 0.0) == (log_rounded_up(Fraction(2), 3), 0.0)


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
