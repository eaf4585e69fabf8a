"""Test intervals of ratios, shares, differences and sums: coverage, power, refusals.

Every coverage test has wrong methods beside the right one, and rejects them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.estimate import NORMAL_95
from dpstream.pipeline.results.ratios import (
    NO_DENOMINATOR,
    WEAK_DENOMINATOR,
    Amount,
    DerivedNumber,
    correlation_of,
    difference,
    difference_in_time,
    difference_of_groups,
    difference_of_parts,
    margin,
    quantile_of,
    ratio,
    share,
)

DRAWS = 20_000
# The standard deviation of a coverage over this many draws is .0015.
ENOUGH, TOO_WIDE = 0.94, 0.97


def coverage(truth: float, found: Iterable[DerivedNumber]) -> float:
    """Return how often an interval contains the truth, of those that are answered."""
    triples = [each.triple for each in found if each.refused is None]
    return float(np.mean([low <= truth <= high for _, low, high in filter(None, triples)]))


def draws(
    deviations: tuple[float, float], covariance: float = 0.0, seed: int = 1
) -> NDArray[np.float64]:
    matrix = [[deviations[0] ** 2, covariance], [covariance, deviations[1] ** 2]]
    return np.random.default_rng(seed).multivariate_normal([0.0, 0.0], matrix, DRAWS)


def delta_method(x: Amount, y: Amount, covariance: float = 0.0) -> DerivedNumber:
    """Return the usual approximation, in which the noise of the denominator is small."""
    if y.value <= NORMAL_95 * y.deviation:
        return DerivedNumber(refused=NO_DENOMINATOR)
    r = x.value / y.value
    variance = (x.variance + r**2 * y.variance - 2 * r * covariance) / y.value**2
    return DerivedNumber.around(r, math.sqrt(max(variance, 0.0)), NORMAL_95)


def halved(amount: Amount) -> Amount:
    return replace(amount, variance=amount.variance / 2)


RATIOS: Mapping[str, Callable[[Amount, Amount, float], DerivedNumber]] = {
    "right": ratio,
    "delta method": delta_method,
    "half the noise": lambda x, y, c: ratio(halved(x), halved(y), c / 2),
    "exact denominator": lambda x, y, c: ratio(x, Amount(y.value), 0.0),
    "no covariance": lambda x, y, c: ratio(x, y),
    "opposite covariance": lambda x, y, c: ratio(x, y, -c),
}


def covered_ratios(method: str, true_ratio: float, size: float, correlation: float) -> float:
    """Return the coverage with errors of standard deviation 1, and a denominator of `size`."""
    errors = draws((1.0, 1.0), correlation)
    return coverage(
        true_ratio,
        (
            RATIOS[method](Amount(true_ratio * size + x, 1.0), Amount(size + y, 1.0), correlation)
            for x, y in errors.tolist()
        ),
    )


@pytest.mark.parametrize("size", [2.0, 4.0, 6.0, 20.0])
@pytest.mark.parametrize(("true_ratio", "correlation"), [(0.3, 0.0), (1.5, 0.0), (0.5, -0.5)])
def test_interval_of_a_ratio_holds_in_95_of_100_answers(
    size: float, true_ratio: float, correlation: float
) -> None:
    assert ENOUGH <= covered_ratios("right", true_ratio, size, correlation) <= TOO_WIDE


@pytest.mark.parametrize(
    ("method", "true_ratio", "size", "correlation"),
    [
        ("delta method", 0.3, 2.0, 0.0),
        ("half the noise", 0.3, 6.0, 0.0),
        ("exact denominator", 1.5, 20.0, 0.0),
        ("no covariance", 0.5, 20.0, -0.5),
        ("opposite covariance", 0.5, 20.0, 0.5),
    ],
)
def test_coverage_rejects_wrong_intervals_of_a_ratio(
    method: str, true_ratio: float, size: float, correlation: float
) -> None:
    assert not ENOUGH <= covered_ratios(method, true_ratio, size, correlation) <= TOO_WIDE


def test_ratio_without_a_denominator_is_refused_and_a_weak_one_is_flagged() -> None:
    for value in (1.95, 0.0, -1.0, -9.0):
        refused = ratio(Amount(1.0, 1.0), Amount(value, 1.0))
        assert refused == DerivedNumber(refused="the denominator is not distinguishable from 0")
        assert refused.to_json() == {"refused": NO_DENOMINATOR}
    for value, flags in ((1.97, (WEAK_DENOMINATOR,)), (2.99, (WEAK_DENOMINATOR,)), (3.01, ())):
        assert ratio(Amount(1.0, 1.0), Amount(value, 1.0)).flags == flags
    assert ratio(Amount(1.0, 1.0), Amount(0.0)).refused == NO_DENOMINATOR
    # Below 2 standard deviations, intervals hold less often: hence the flag.
    assert covered_ratios("right", 1.5, 1.0, 0.0) < 0.9


def test_interval_of_a_ratio_agrees_with_its_definition() -> None:
    x, y, c = Amount(30.0, 25.0), Amount(70.0, 100.0), -10.0
    triple = ratio(x, y, c).triple
    assert triple is not None
    for end in triple[1:]:
        distance = (x.value - end * y.value) ** 2
        variance = x.variance + end**2 * y.variance - 2 * end * c
        assert distance == pytest.approx(NORMAL_95**2 * variance)
    known = ratio(x, Amount(200.0))
    assert known.triple == pytest.approx((0.15, 0.15 - NORMAL_95 * 0.025, 0.15 + NORMAL_95 * 0.025))
    assert known.standard_error == 0.025


@pytest.mark.parametrize(
    ("covariance_of", "holds"), [(lambda x, rest: x, True), (lambda x, rest: 0.0, False)]
)
def test_share_of_a_sum_that_includes_the_part_has_its_variance_as_covariance(
    covariance_of: Callable[[float, float], float], holds: bool
) -> None:
    found = []
    for x, rest in draws((3.0, 1.0)).tolist():
        part, whole = Amount(48.0 + x, 9.0), Amount(60.0 + x + rest, 10.0)
        found.append(ratio(part, whole, covariance_of(9.0, 1.0)))
    assert (ENOUGH <= coverage(0.8, found) <= TOO_WIDE) == holds


def test_share_is_cut_to_what_a_share_can_be() -> None:
    low = share(Amount(-2.0, 4.0), Amount(100.0)).triple
    assert low == pytest.approx((0.0, 0.0, -0.02 + NORMAL_95 * 0.02))
    high = share(Amount(99.0, 4.0), Amount(100.0)).triple
    assert high is not None
    assert high[2] == 1.0
    # Cutting changes no coverage: the true share is between 0 and 1.
    errors = draws((2.0, 1.0))[:, 0].tolist()
    found = [share(Amount(1.0 + error, 4.0), Amount(100.0)) for error in errors]
    assert ENOUGH <= coverage(0.01, found) <= TOO_WIDE


@pytest.mark.parametrize("size", [4.0, 6.0, 50.0])
@pytest.mark.parametrize("half", [False, True])
def test_difference_of_ratios_holds_and_half_the_noise_is_rejected(size: float, half: bool) -> None:
    less = halved if half else lambda amount: amount
    first, second = draws((1.0, 1.0), seed=2), draws((1.0, 1.0), seed=3)
    found = []
    for (x, y), (v, w) in zip(first.tolist(), second.tolist(), strict=True):
        arm_a = ratio(less(Amount(0.21 * size + x, 1.0)), less(Amount(size + y, 1.0)))
        arm_b = ratio(less(Amount(0.17 * size + v, 1.0)), less(Amount(size + w, 1.0)))
        found.append(difference(arm_a, arm_b))
    assert (ENOUGH <= coverage(0.04, found) <= TOO_WIDE) == (not half)


@pytest.mark.parametrize("accounted", [True, False])
def test_difference_of_correlated_ratios_uses_their_correlation(accounted: bool) -> None:
    """Two parts of one sample: where one is too large, the other is too small."""
    matrix = np.eye(4)
    matrix[0, 2] = matrix[2, 0] = -0.8
    found, size = [], 20.0
    for errors in np.random.default_rng(4).multivariate_normal(np.zeros(4), matrix, DRAWS):
        x, y, v, w = errors.tolist()
        arms = (
            ratio(Amount(0.6 * size + x, 1.0), Amount(size + y, 1.0)),
            ratio(Amount(0.4 * size + v, 1.0), Amount(size + w, 1.0)),
        )
        values = (arms[0].value or 0.0, arms[1].value or 0.0)
        found.append(difference(*arms, correlation_of(values, matrix) if accounted else 0.0))
    assert (ENOUGH <= coverage(0.2, found) <= TOO_WIDE) == accounted


def test_difference_of_ratios_is_refused_with_either_and_keeps_flags() -> None:
    strong, weak = Amount(50.0, 1.0), Amount(2.5, 1.0)
    refused = ratio(strong, Amount(1.0, 1.0))
    assert difference(ratio(strong, strong), refused).refused == NO_DENOMINATOR
    assert difference(refused, ratio(strong, strong)).refused == NO_DENOMINATOR
    assert difference(ratio(weak, weak), ratio(strong, weak)).flags == (WEAK_DENOMINATOR,)


@pytest.mark.parametrize("effect", [True, False])
def test_difference_of_groups_holds_for_the_effect_and_not_without_its_variance(
    effect: bool,
) -> None:
    rng, users, deviation = np.random.default_rng(5), 4_000, 20.0
    found = []
    for _ in range(DRAWS):
        a, b = rng.binomial(users, [0.25, 0.20]) + deviation * rng.standard_normal(2)
        groups = (
            *(Amount(float(a), deviation**2), users),
            *(Amount(float(b), deviation**2), users),
        )
        found.append(difference_of_groups(*groups, of_counts=effect))
    assert (ENOUGH <= coverage(0.05, found) <= TOO_WIDE) == effect
    assert difference_of_groups(Amount(1.0), 0, Amount(1.0), 5).refused == NO_DENOMINATOR


@pytest.mark.parametrize(("assumed", "holds"), [(-0.8, True), (0.0, False), (0.8, False)])
def test_difference_of_parts_accounts_for_their_covariance(assumed: float, holds: bool) -> None:
    errors = draws((1.0, 1.0), -0.8).tolist()
    found = [
        difference_of_parts(Amount(30.0 + x, 1.0), 100, Amount(20.0 + y, 1.0), 100, assumed)
        for x, y in errors
    ]
    assert (ENOUGH <= coverage(0.1, found) <= TOO_WIDE) == holds
    assert difference_of_parts(Amount(1.0), 0, Amount(1.0), 0).refused == NO_DENOMINATOR


@pytest.mark.parametrize("correlation", [0.9, 0.0])
def test_change_of_a_share_uses_the_error_of_the_change(correlation: float) -> None:
    """The number of users doubles: the error of the change of the counts is not enough."""
    errors = draws((1.0, 1.0), 0.9).tolist()
    of_change = math.sqrt(2 - 2 * correlation)
    found = [
        difference_in_time(
            *(Amount(60.0 + x, 1.0), 200),
            *(Amount(40.0 + y, 1.0), 100),
            of_change,
        )
        for x, y in errors
    ]
    assert (ENOUGH <= coverage(-0.1, found) <= TOO_WIDE) == (correlation == 0.9)
    assert difference_in_time(Amount(1.0), 0, Amount(1.0), 5, 1.0).refused == NO_DENOMINATOR


def test_margin_uses_the_head_count_where_the_other_cells_are_fewer() -> None:
    cells, noise = np.array([50.0, 30.0, 20.0, 5.0]), 4.0 * np.eye(4)
    three = np.array([True, True, True, False])
    assert margin(three, noise).amount(cells, noise) == Amount(100.0, 12.0)
    assert margin(three, noise, 103).amount(cells, noise) == Amount(98.0, 4.0)
    assert margin(~three, noise, 103).amount(cells, noise) == Amount(5.0, 4.0)
    # A sum has its part's variance in common with the part, and nothing if it is a complement.
    part = margin(np.array([True, False, False, False]), noise)
    assert part.covariance(margin(three, noise), noise) == 4.0
    assert part.covariance(margin(three, noise, 103), noise) == 0.0
    # Cells of a sample are negatively correlated, so a sum has less variance.
    noise[0, 1] = noise[1, 0] = -1.0
    assert margin(three, noise).amount(cells, noise) == Amount(100.0, 10.0)


def test_simultaneous_intervals_hold_together() -> None:
    errors = np.random.default_rng(7).standard_normal((4_000, 8))
    for comparisons, holds in ((8, True), (1, False)):
        found = [
            [ratio(Amount(x, 1.0), Amount(10.0), quantile=quantile_of(comparisons)) for x in row]
            for row in errors.tolist()
        ]
        together = np.mean(
            [all(each.low <= 0 <= each.high for each in row) for row in found]  # type: ignore[operator]
        )
        assert (0.94 <= together <= 0.97) == holds
