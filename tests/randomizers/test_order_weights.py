"""The shares of the orders: nothing near them is better."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpstream.randomizers.accounting.calibration import optimal
from dpstream.randomizers.accounting.order_weights import WEIGHT_TOTAL, optimal_order_weights
from dpstream.randomizers.tree_variances import combined_variances, order_shares, smoothed_variances
from tests.support.dyadic_pieces import dyadic_pieces


def test_equal_variances_combine_to_the_known_series() -> None:
    combined = combined_variances([3.0] * 8)
    assert combined == pytest.approx([3.0 / (2 - 2.0**-order) for order in range(8)])


def test_an_order_without_reports_is_what_its_halves_are() -> None:
    assert combined_variances([1.0, math.inf, 2.0]) == [1.0, 2.0, 2 * 4 / (2 + 4)]
    assert combined_variances([math.inf, math.inf, 3.0]) == [math.inf, math.inf, 3.0]


@pytest.mark.parametrize("last_epoch", [1, 2, 3, 7, 8, 170, 256])
def test_shares_count_the_prefixes_that_have_an_interval_of_the_order(last_epoch: int) -> None:
    counted = np.zeros(last_epoch.bit_length())
    for epoch in range(1, last_epoch + 1):
        for order, _ in dyadic_pieces(epoch):
            counted[order] += 1
    assert order_shares(last_epoch) == pytest.approx((counted / last_epoch).tolist())


@pytest.mark.parametrize("last_epoch", [1, 2, 7, 16, 23])
def test_smoothed_variances_are_those_of_weighted_least_squares(last_epoch: int) -> None:
    variances = [1.0, 0.5, 3.0, 2.0, 1.5][: last_epoch.bit_length()]
    rows, precisions = [], []
    for order, variance in enumerate(variances):
        for index in range(last_epoch >> order):
            rows.append(np.zeros(last_epoch))
            rows[-1][index << order : (index + 1) << order] = 1
            precisions.append(1 / variance)
    design = np.array(rows)
    covariance = np.linalg.inv(design.T @ (np.array(precisions)[:, None] * design))
    prefixes = np.tril(np.ones((last_epoch, last_epoch)))
    expected = np.diag(prefixes @ covariance @ prefixes.T)
    found = smoothed_variances(variances, last_epoch, np.arange(1, last_epoch + 1))
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(("last_epoch", "changes"), [(2, 1), (37, 2), (170, 4), (1024, 16)])
def test_no_other_weights_are_better(last_epoch: int, changes: int) -> None:
    horizon = 1 << (last_epoch - 1).bit_length()
    orders = horizon.bit_length()
    signs = [optimal(min(changes, horizon >> order), 1.0).c_gap ** -2 for order in range(orders)]
    weights = optimal_order_weights(signs, last_epoch)
    best = objective(weights, signs, last_epoch)
    assert best < objective((1,) * orders, signs, last_epoch)
    rng = np.random.default_rng(last_epoch)
    for size in (0.01, 0.1, 1.0):
        for _ in range(50):
            scale = np.exp(size * rng.normal(size=orders))
            other = tuple(np.rint(weights * scale).astype(int).tolist())
            assert objective(other, signs, last_epoch) > best * (1 - 1e-3)


def test_weights_are_integers_about_as_many_as_said() -> None:
    weights = optimal_order_weights([2.0] * 9, 170)
    assert all(type(weight) is int for weight in weights)
    assert sum(weights) == pytest.approx(WEIGHT_TOTAL, abs=9)
    assert weights[8] == 0
    assert optimal_order_weights([2.0], 1) == (WEIGHT_TOTAL,)


def objective(weights: tuple[int, ...], signs: list[float], last_epoch: int) -> float:
    """The product of the mean variances of online and smoothed estimates."""
    variances = [
        sign * sum(weights) / weight if weight else math.inf
        for sign, weight in zip(signs, weights, strict=True)
    ]
    shares = order_shares(last_epoch)
    variances = variances[: len(shares)]
    smoothed = smoothed_variances(variances, last_epoch, np.arange(1, last_epoch + 1))
    return float(np.dot(shares, combined_variances(variances)) * smoothed.mean())
