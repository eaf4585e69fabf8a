"""Errors of ranges, prefixes and buckets from sampled responses: planned, measured, reference."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.sampled_numbers import sampled_numbers
from dpstream.aggregators.sampled_ranges import SampledRanges
from dpstream.pipeline.protocols.sampled_response import SampledNumbersForecast
from dpstream.pipeline.results.expected_errors import forecast_of, rmse_of
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.sampled_response import SampledResponseParameters
from dpstream.randomizers.sampled_response.calibration import calibrate_numbers
from dpstream.randomizers.sampled_response.leveled_response import LeveledResponse
from tests.support.new_jobs import new_job
from tests.verify.tables import print_table

pytestmark = pytest.mark.verify

EPSILONS = (0.5, 1.0, 2.0, 4.0)
EPOCHS, USERS = 64, 100_000
MOST_RANGES = 4_000

TABLE: dict[int, tuple[tuple[float, float, float], ...]] = {
    16: ((6.86, 6.52, 4.67), (3.09, 2.72, 2.26), (1.40, 1.25, 1.01), (0.54, 0.55, 0.31)),
    64: ((10.4, 9.06, 6.07), (4.85, 3.95, 2.96), (2.20, 1.81, 1.33), (0.81, 0.71, 0.43)),
    256: ((13.8, 11.5, 7.05), (6.55, 5.15, 3.44), (2.93, 2.33, 1.52), (1.07, 0.90, 0.51)),
    1_024: ((17.3, 14.0, 7.90), (8.24, 6.34, 3.85), (3.69, 2.86, 1.71), (1.31, 1.07, 0.56)),
}
"""Reference RMSE of ranges, prefixes and a bucket, divided by sqrt(users * epochs), by buckets."""

Edges = tuple[NDArray[np.int64], NDArray[np.int64]]


@cache
def queries(buckets: int) -> tuple[Edges, Edges, Edges]:
    """Return all ranges (or a sample), all prefixes and all buckets."""
    starts, ends = np.triu_indices(buckets + 1, 1)
    if len(starts) > MOST_RANGES:
        some = np.random.default_rng(0).choice(len(starts), MOST_RANGES, replace=False)
        starts, ends = starts[some], ends[some]
    edges = np.arange(buckets + 1)
    return (starts, ends), (0 * edges[1:], edges[1:]), (edges[:-1], edges[1:])


def planned(buckets: int, epsilon: float) -> list[float]:
    law = calibrate_numbers(epsilon, buckets, EPOCHS)
    requested = SampledResponseParameters(epsilon, low=0, high=1, buckets=buckets)
    forecast = SampledNumbersForecast(law, requested, EPOCHS)
    return [
        math.sqrt(float(np.square(forecast.range_deviations(USERS, *edges)).mean()))
        for edges in queries(buckets)
    ]


def estimates(buckets: int, epsilon: float, values: NDArray[np.int64]) -> Iterator[SampledRanges]:
    """Yield the estimates of all epochs of one horizon."""
    law = calibrate_numbers(epsilon, buckets, EPOCHS)
    devices, rng = LeveledResponse(law), seeded_generator(buckets, int(8 * epsilon))
    devices.enroll(USERS, rng)
    participation = Participation.constant(EPOCHS, USERS)
    for epoch in range(1, EPOCHS + 1):
        aggregator = sampled_numbers(law)
        aggregator.add(epoch, devices.report(epoch, values, None, rng), None)
        found = aggregator.estimate(epoch, participation)
        assert found is not None
        yield found


def before_edges(values: NDArray[np.int64], buckets: int) -> NDArray[np.int64]:
    return np.insert(np.cumsum(np.bincount(values - 1, minlength=buckets)), 0, 0)


def measured(buckets: int, epsilon: float) -> list[float]:
    """Return the RMSE for the three queries if all buckets are equally full."""
    values = 1 + np.arange(USERS, dtype=np.int64) % buckets
    truth, squares = before_edges(values, buckets), []
    for found in estimates(buckets, epsilon, values):
        errors = found.cumulative()[0] - truth
        squares.append(
            [np.square(errors[ends] - errors[starts]).mean() for starts, ends in queries(buckets)]
        )
    return [math.sqrt(each) for each in np.mean(squares, axis=0)]


def coverage_of(buckets: int, epsilon: float, values: NDArray[np.int64]) -> list[float]:
    """Return the share of intervals that contain the truth, for the three queries."""
    truth, covered = before_edges(values, buckets), []
    for found in estimates(buckets, epsilon, values):
        row = []
        for starts, ends in queries(buckets):
            _, low, high = found.ranges(starts, ends)
            count = truth[ends] - truth[starts]
            # The range of all buckets is known.
            row.append(((low - 1e-6 <= count) & (count <= high + 1e-6)).mean())
        covered.append(row)
    return [float(each) for each in np.mean(covered, axis=0)]


def test_errors_match_the_planned_errors_and_are_at_most_the_reference_errors() -> None:
    rows, scale = [], math.sqrt(USERS * EPOCHS)
    for buckets, reference in TABLE.items():
        cells = []
        for epsilon, of_reference in zip(EPSILONS, reference, strict=True):
            expected, found = planned(buckets, epsilon), measured(buckets, epsilon)
            pairs = zip(expected, found, strict=True)
            cells.append("; ".join(f"{a / scale:.3g} {b / scale:.3g}" for a, b in pairs))
            for plan, error, other in zip(expected, found, of_reference, strict=True):
                assert error == pytest.approx(plan, rel=0.1), (buckets, epsilon)
                assert plan / scale < 1.04 * other, (buckets, epsilon)
        rows.append([f"{buckets:,}", *cells])
    print_table(
        "RMSE / sqrt(users * epochs), planned and measured: ranges; prefixes; one bucket",
        ["buckets", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS)],
        rows,
    )


@pytest.mark.parametrize("epsilon", EPSILONS[1:])
def test_intervals_for_skewed_values_have_nominal_coverage(epsilon: float) -> None:
    found = []
    for buckets in TABLE:
        rng = np.random.default_rng(buckets)
        values = 1 + np.minimum(rng.exponential(buckets / 8, USERS), buckets - 1).astype(np.int64)
        found.append(coverage_of(buckets, epsilon, values))
    coverage = np.mean(found, axis=0)
    print_table(
        f"share of 95 % intervals that contain the truth, epsilon {epsilon:g}",
        ["buckets", "ranges", "prefixes", "one bucket"],
        [
            [label, *(f"{each:.3f}" for each in row)]
            for label, row in zip((*map(str, TABLE), "all"), (*found, coverage), strict=True)
        ],
    )
    assert (coverage > 0.94).all()
    assert (coverage < 0.97).all()


@pytest.mark.parametrize(
    ("epochs", "epsilon", "tracked", "sampled"),
    [
        (4, 1, 1_740, 1_432),
        (12, 1, 2_556, 2_480),
        (52, 1, 3_662, 5_162),
        (4, 4, 561, 199),
        (12, 4, 746, 344),
        (52, 4, 1_014, 717),
        (170, 4, 1_255, 1_296),
    ],
)
def test_plan_names_the_better_protocol_for_a_bucket(
    epochs: int, epsilon: float, tracked: int, sampled: int
) -> None:
    def error_of(protocol: str, **others: Any) -> float:
        numbers = {"epsilon": epsilon, "low": 0, "high": 80, "buckets": 16, **others}
        job = new_job("plan", protocol, numbers, count=epochs)
        return rmse_of(forecast_of(job, job.calibrate()), 100_000)

    assert error_of("range_values", max_changes=2) == pytest.approx(tracked, rel=0.003)
    # The reference neglects that a quarter of all users is not a small sample.
    small = 0.9 if epochs == 4 and epsilon == 4 else 0.96
    assert small * sampled < error_of("sampled_response") < 1.04 * sampled
