"""Test ranges and quantiles from bucket estimates, and their JSON round trip."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP, NORMAL_95
from dpstream.aggregators.range_estimates import RangeEstimates
from dpstream.randomizers.value_tree import range_variances


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
