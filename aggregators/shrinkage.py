"""Shrinkage: biased estimates that are closer to the ground truth if little changes.

The increments of an order jointly show how large true changes are compared with the noise. If the
increments are hardly larger than the noise, shrinking an estimate improves it on average (empirical
Bayes). The price is bias: a sudden change is not fully accepted. Shrinking can cost more than it
gains if changes exceed the noise or if, online, few increments are known so far. These estimates
are therefore shown alongside the unbiased ones, labeled, and without intervals.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.tree_smoothing import (
    TreeEstimates,
    combined_orders,
    pairs,
    shared_out,
)

# An interval is unknown if its variance exceeds the largest known variance by this factor.
_KNOWN = 1e3


def online_shrunk(orders: Sequence[TreeEstimates], *, combine: bool = True) -> NDArray[np.float64]:
    """Estimate every prefix from its intervals, shrunk by factors known when each interval ends.

    The factor of an interval is 1 - 1 / s, or 0 if that is negative. Here s is the mean of squared
    estimates divided by their variances, for all intervals of its order up to this one. The result
    has shape (epochs, counts).
    """
    epochs = np.arange(1, len(orders[0].values) + 1)
    prefixes = np.zeros_like(orders[0].values)
    for order, piece in enumerate(_pieces(orders, combine)):
        known = piece.variances > 0
        variances = np.where(known, piece.variances, np.inf)[:, None]
        squares = np.cumsum(np.square(piece.values) / variances, axis=0)
        mean = squares / np.maximum(np.cumsum(known), 1)[:, None]
        # Adding 0 removes the sign of -0.0, here and below.
        shrunk = piece.values * _kept(mean - 1, mean)
        ends = epochs >> order & 1 == 1
        prefixes[ends] += shrunk[(epochs[ends] >> order) - 1]
    return prefixes + 0.0


def offline_shrunk(orders: Sequence[TreeEstimates]) -> NDArray[np.float64]:
    """Estimate every prefix by weighted least squares, shrunk towards even splits of intervals.

    From the largest intervals down, each estimate is split between the interval's halves. The
    departure from an even split is multiplied by s / (s + v). Here v is the variance of the
    departure, and s is the mean square of true departures, estimated for every count from all
    intervals of the order. An interval not contained in a larger one is shrunk towards 0 in the
    same way. The result has shape (epochs, counts).
    """
    *shorter, longest = combined_orders(orders)
    finite = [own.variances[np.isfinite(own.variances)] for own in orders]
    known = _KNOWN * max((float(own.max()) for own in finite if own.size), default=0.0)
    totals = longest.values * _factors(longest.values, longest.variances, known)
    for halves in reversed(shorter):
        values, count = shared_out(totals, halves), len(totals)
        left, right = pairs(halves.variances, count).T
        even = totals / 2
        departures = values[: 2 * count : 2] - even
        noise = np.divide(left * right, left + right, out=np.zeros(count), where=left + right > 0)
        departures *= _factors(departures, noise, known)
        values[: 2 * count : 2] = even + departures
        values[1 : 2 * count : 2] = even - departures
        # The last interval, if it has no neighbor.
        values[2 * count :] *= _factors(halves.values, halves.variances, known)[2 * count :]
        totals = values
    prefixes: NDArray[np.float64] = np.cumsum(totals, axis=0) + 0.0
    return prefixes


def _pieces(orders: Sequence[TreeEstimates], combine: bool) -> list[TreeEstimates]:
    """Combine all intervals like `PrefixCombiner`; those without reports are 0, with variance 0.

    Halves with a gap are ignored if the interval has own reports.
    """
    pieces: list[TreeEstimates] = []
    gaps: NDArray[np.bool_] = np.zeros(0, np.bool_)
    for own in orders:
        known = np.isfinite(own.variances)
        values = np.where(known[:, None], own.values, 0.0)
        variances = np.where(known, own.variances, 0.0)
        if pieces:
            halves = pairs(pieces[-1].values, len(values)).sum(axis=1)
            spread = pairs(pieces[-1].variances, len(values)).sum(axis=1)
            gaps = gaps[0 : 2 * len(values) : 2] | gaps[1 : 2 * len(values) : 2]
            total = variances + spread
            share = np.divide(spread, total, out=np.full_like(total, 0.5), where=total > 0)
            share = np.where(known, np.where(gaps, 1.0, share if combine else 1.0), 0.0)
            values = share[:, None] * values + (1 - share)[:, None] * halves
            variances = share**2 * variances + (1 - share) ** 2 * spread
            gaps &= ~known
        else:
            gaps = ~known
        pieces.append(TreeEstimates(values, variances))
    return pieces


def _factors(
    values: NDArray[np.float64], variances: NDArray[np.float64], known: float
) -> NDArray[np.float64]:
    """Return the factor of each value, s / (s + variance), with s from weighted moments.

    s is estimated separately for each count. Values with a large variance weigh less. The three
    quarters of values with the smallest variances get equal weights: a variance can be small only
    because few devices were enrolled at the time.
    """
    noise = np.maximum(variances, np.finfo(np.float64).tiny)[:, None]
    used = (variances > 0) & (variances <= known)
    if not used.any():
        used = np.full(len(variances), True)
    reference = float(np.quantile(noise[used], 0.75))
    weights = np.where(used[:, None], np.square(reference / np.maximum(noise, reference)), 0.0)
    signal = (weights * (np.square(values) - noise)).sum(axis=0) / max(float(weights.sum()), 1e-300)
    return _kept(signal, np.maximum(signal, 0.0) + noise)


def _kept(signal: NDArray[np.float64], total: NDArray[np.float64]) -> NDArray[np.float64]:
    signal, total = np.broadcast_arrays(np.maximum(signal, 0.0), total)
    return np.divide(signal, total, out=np.zeros(total.shape), where=total > 0)
