"""Variances of estimates in a dyadic tree, given the variances of its intervals' own estimates."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def combined_variances(variances: Sequence[float]) -> list[float]:
    """Return, by order, the variance of a dyadic interval combined with its halves.

    Combining by inverse variance adds the inverses. Two halves have twice the variance of one.
    `variances` are those of an interval's own estimate, by order from 0; infinite without reports.

    >>> combined_variances([1.0, 1.0, 1.0])  # V / (2 - 2^-h)
    [1.0, 0.6666666666666666, 0.5714285714285714]
    """
    combined = [variances[0]]
    for variance in variances[1:]:
        precision = 1 / variance + 1 / (2 * combined[-1])
        combined.append(1 / precision if precision else math.inf)
    return combined


def order_shares(last_epoch: int) -> list[float]:
    """Return, for every order, the fraction of epochs whose prefix has an interval of that order.

    >>> order_shares(4)  # 1 = 1, 2 = 2, 3 = 2 + 1, 4 = 4
    [0.5, 0.5, 0.25]
    """
    return [
        _epochs_with_bit(order, last_epoch) / last_epoch for order in range(last_epoch.bit_length())
    ]


def smoothed_variances(
    variances: Sequence[float], last_epoch: int, epochs: NDArray[np.integer]
) -> NDArray[np.float64]:
    """Return prefix variances by weighted least squares over all intervals, including later ones.

    `variances` are those of an interval's own estimate, by order from 0 to the last that has one.
    `epochs` are the requested prefixes, from 1.

    >>> smoothed_variances([1.0, 1.0], 2, np.array([1, 2]))  # half of 2 - 2/3, and 2/3
    array([0.66666667, 0.66666667])
    """
    combined = combined_variances(variances)
    # Covariance [[before, both], [both, after]], once the end is inside the interval.
    before, both, after = np.zeros((3, len(epochs)))
    for order in range(1, len(variances)):
        half = combined[order - 1]
        inside = (epochs & (1 << order) - 1 != 0) & (epochs - 1 >> order < last_epoch >> order)
        # The end lies between the two halves, or inside one of them.
        between = epochs & (1 << order - 1) - 1 == 0
        in_left = epochs - 1 >> order - 1 & 1 == 0
        left = np.where(between, half, before + np.where(in_left, 0.0, half))
        right = np.where(between, half, after + np.where(in_left, half, 0.0))
        across = np.where(between, 0.0, both)
        with_left, with_right = left + across, right + across
        total = variances[order] + with_left + with_right
        before = np.where(inside, left - with_left * (with_left / total), before)
        both = np.where(inside, across - with_left * (with_right / total), both)
        after = np.where(inside, right - with_right * (with_right / total), after)
    # The intervals that cover all epochs are separate trees: some lie entirely in a prefix.
    result: NDArray[np.float64] = before
    end = 0
    for order in reversed(range(last_epoch.bit_length())):
        if last_epoch >> order & 1:
            end += 1 << order
            result = result + np.where(epochs >= end, combined[order], 0.0)
    return result


def _epochs_with_bit(order: int, last_epoch: int) -> int:
    period = 2 << order
    whole, rest = divmod(last_epoch + 1, period)
    return whole * (period >> 1) + max(0, rest - (period >> 1))
