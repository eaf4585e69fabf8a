"""Test measurements with noise: exact losses and the distribution of the noise."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations, pairwise
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.composed import log_rounded_up
from dpstream.randomizers.randomness import seeded_generator
from experiments.protocols.measurements import (
    Calibration,
    JlHhParameters,
    LaplaceHistogramParameters,
    Measurements,
    MeasurementsLaw,
)
from experiments.protocols.measurements.aggregator import (
    MeasurementsAggregator,
    sum_variance,
)
from experiments.protocols.measurements.calibration import (
    calibrate,
    composed_loss,
    noise_of,
    published_loss,
    with_noise,
)
from experiments.protocols.measurements.clamped_noise import ClampedNoise
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


@pytest.mark.parametrize("calibration", ["published", "replacement"])
def test_jl_hh_noise_is_one_or_two_times_the_noise_in_the_paper(calibration: Calibration) -> None:
    """The scale is sqrt(8 ln(1/delta)) / epsilon for entries 1/sqrt(m): 14,868 for 10^6 users."""
    law = calibrate(JlHhParameters(1.0, THOUSAND, 1e-6, 256, calibration), 1)
    times = 1 if calibration == "published" else 2
    deviation = math.sqrt(sum_variance(law, 1_000_000) / 256)
    assert deviation == pytest.approx(times * 14_868, rel=1e-4)
    assert math.sqrt(16e6 * math.log(1e6)) == pytest.approx(14_868, rel=1e-4)
    assert law.neighbors == ("removal" if times == 1 else "replacement")


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


@pytest.mark.parametrize(("calibration", "cells"), [("published", 1), ("replacement", 2)])
def test_histogram_noise_covers_two_cells_for_replacement(calibration: str, cells: int) -> None:
    requested = LaplaceHistogramParameters(1.0, THOUSAND, calibration)  # type: ignore[arg-type]
    law = calibrate(requested, 1)
    q = math.exp(-1 / cells)
    assert law.noise is not None
    assert law.noise.variance == pytest.approx(2 * q / (1 - q) ** 2, rel=1e-4)
    assert law.epsilon == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("calibration", ["published", "replacement", "sampled"])
def test_jl_hh_errors_match_stated_and_planned_errors(
    calibration: Calibration,
) -> None:
    users, labels = 20_000, THOUSAND[:300]
    requested = JlHhParameters(1.0, labels, 1e-6, None, calibration)
    law = calibrate(requested, 1)
    rng = np.random.default_rng(3)
    held = np.floor(301 * rng.random(users) ** 4).astype(np.int64)
    ground_truth = np.bincount(held, minlength=301)[1:]
    found = estimated(law, held)
    assert found.reports == users
    squared = float(np.square(found.values - ground_truth).mean())
    # The mean square of 300 errors is within seven standard deviations of its expectation.
    assert squared == pytest.approx(found.standard_error**2, rel=7 * math.sqrt(2 / 300))
    planning = PROTOCOLS["jl_hh"].planning
    assert planning is not None
    planned = planning.forecast(law, requested, 1).standard_errors(users)[0]
    assert found.standard_error == pytest.approx(planned, rel=0.02)
    if calibration == "sampled":
        assert planned == pytest.approx(2.164 * math.sqrt(users), rel=1e-3)


def estimated(law: MeasurementsLaw, held: NDArray[np.int64]) -> ItemEstimates:
    devices, aggregator = Measurements(law), MeasurementsAggregator(law)
    devices.enroll(len(held), seeded_generator(1))
    aggregator.add(1, devices.report(1, held[:, None], None, seeded_generator(2)), None)
    found = aggregator.window([1], Participation.constant(1, len(held)))
    assert found is not None
    return found


def test_delta_is_stated_if_any_possible_composition_requires_it() -> None:
    """The sum of losses bounds few large steps, but many small steps need a delta."""
    steps = {9: Fraction(2), 1: Fraction(1001, 1000)}
    noise = cast(ClampedNoise, SimpleNamespace(odds=steps.__getitem__))
    for counts in ([(1, 9), (5000, 1)], [(5000, 1), (1, 9)]):
        matrix = cast(PublicMatrix, SimpleNamespace(moved=lambda counts=counts, **_: counts))
        spent = with_noise(matrix, noise, "sampled", 50.0, 1e-6, 1, removal=False)
        alone = composed_loss(5000, steps[1], 1e-6)
        assert alone[1] == spent["delta"] == 1e-6
        assert composed_loss(1, steps[9], 1e-6)[1] == 0
        assert spent["epsilon"] >= alone[0]
