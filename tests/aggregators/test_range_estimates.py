"""Test ranges and quantiles from bucket estimates, and their JSON round trip."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP, NORMAL_95
from dpstream.aggregators.range_estimates import RangeEstimates
from dpstream.aggregators.tree_smoothing import consistent_buckets
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.value_tree import range_variances

POPULATION = 20_000


def estimates(
    values: NDArray[np.float64], variances: tuple[float, ...], flags: tuple[str, ...] = ()
) -> RangeEstimates:
    deviation = math.sqrt(float(range_variances(np.array(variances), 0, 1)))
    population = round(float(values.sum()))
    width = NORMAL_95 * deviation
    return RangeEstimates(
        values, deviation, width, 500, population, flags, level_variances=variances
    )


SMALL = estimates(np.array([10.0, 50.0, -20.0, 60.0]), (math.inf, 25.0), (GAP,))


def test_range_counts_are_sums_of_bucket_counts() -> None:
    for start, end in combinations(range(5), 2):
        found = SMALL.range(start, end)
        assert found.value == SMALL.values[start:end].sum()
        assert found.standard_error == pytest.approx(
            math.sqrt(float(range_variances(np.array([math.inf, 25.0]), start, end)))
        )
        assert (found.reports, found.population, found.flags) == (500, 100, (GAP,))
    assert SMALL.range(0, 4).standard_error == 0
    assert SMALL.range(2, 3) == SMALL.item(2)


@pytest.mark.parametrize("ends", [(-1, 2), (2, 2), (3, 2), (0, 5)])
def test_ranges_outside_the_buckets_are_rejected(ends: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"is empty or not in \[0, 4\)"):
        SMALL.range(*ends)


@pytest.mark.parametrize("variances", [None, [1.0], [1.0, 1.0, 1.0], ["x", 1.0]])
def test_malformed_json_is_rejected(variances: object) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        RangeEstimates.from_json({**SMALL.to_json(), "level_variances": variances})


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, math.nan])
def test_fractions_outside_0_to_1_are_rejected(share: float) -> None:
    with pytest.raises(ValueError, match="above 0 and below 1"):
        SMALL.quantile(share)


@pytest.mark.slow
@pytest.mark.parametrize("deviation", [pytest.param(100.0, marks=pytest.mark.verify), 1_000.0])
@pytest.mark.parametrize(
    "shape",
    ["bell", *(pytest.param(each, marks=pytest.mark.verify) for each in ("uniform", "spikes"))],
)
def test_quantile_intervals_contain_the_true_quantiles(shape: str, deviation: float) -> None:
    """Coverage is at least 95 % minus 6 deviations, and intervals are narrower than the domain."""
    buckets, levels, runs = np.arange(64), 6, 1_000
    shares = {
        "bell": np.exp(-((buckets - 20.0) ** 2) / 200),
        "uniform": np.ones(64),
        "spikes": np.isin(buckets, (10, 11, 40)).astype(float),
    }[shape]
    ground_truth = POPULATION * shares / shares.sum()
    variances = (math.inf, *[deviation**2] * (levels - 1))
    exact = estimates(ground_truth, (0.0,) * levels)
    rng = seeded_generator(3)
    wanted = (0.1, 0.25, 0.5, 0.9)
    held, widths = np.zeros(len(wanted)), np.zeros(len(wanted))
    for _ in range(runs):
        nodes = [
            ground_truth.reshape(2 << level, -1).sum(axis=1) + rng.normal(0, deviation, 2 << level)
            for level in range(levels)
        ]
        found = estimates(consistent_buckets(nodes, variances, POPULATION), variances)
        for index, share in enumerate(wanted):
            quantile = found.quantile(share)
            held[index] += quantile.ci95_low <= exact.quantile(share).value <= quantile.ci95_high
            widths[index] += quantile.ci95_high - quantile.ci95_low
    assert (held >= 0.95 * runs - 6 * math.sqrt(0.95 * 0.05 * runs)).all()
    assert (widths < 50 * runs).all()
