"""Shrinkage: estimates that are biased, and nearer the truth where little changes.

How large the increments of an order are beside their noise can be told from all of them together.
Where they are hardly larger, most of an estimate is noise, and taking it smaller makes it better on
average (empirical Bayes). The price is bias: a sudden change is not believed in full. Where changes
stand out of the noise, and online where few increments are known yet, that can cost more than it
brings. So these are shown beside the unbiased estimates, labelled, and without intervals.
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

# Variances beyond so many times the largest one are those of intervals that are not known.
_KNOWN = 1e3


def online_shrunk(orders: Sequence[TreeEstimates], *, combine: bool = True) -> NDArray[np.float64]:
    """Every prefix from the intervals that make it up, each shrunk by what was known at its end.

    The factor of an interval is 1 - 1 / s, or 0 if that is negative, where s is the mean square of
    the estimates for the intervals of its order up to it, each as a multiple of its variance.

    Args:
        orders: own estimates, from order 0 up, as `dpstream.aggregators.tree_smoothing.smoothed`
            takes them.
        combine: as for `dpstream.aggregators.prefix_combiner.PrefixCombiner`.

    Returns:
        shape (epochs, counts).
    """
    epochs = np.arange(1, len(orders[0].values) + 1)
    prefixes = np.zeros_like(orders[0].values)
    for order, piece in enumerate(_pieces(orders, combine)):
        known = piece.variances > 0
        variances = np.where(known, piece.variances, np.inf)[:, None]
        squares = np.cumsum(np.square(piece.values) / variances, axis=0)
        mean = squares / np.maximum(np.cumsum(known), 1)[:, None]
        # 0 has no sign: adding 0 takes it away, here and below.
        shrunk = piece.values * _kept(mean - 1, mean)
        ends = epochs >> order & 1 == 1
        prefixes[ends] += shrunk[(epochs[ends] >> order) - 1]
    return prefixes + 0.0


def offline_shrunk(orders: Sequence[TreeEstimates]) -> NDArray[np.float64]:
    """Every prefix by weighted least squares, where intervals are shared out evenly when in doubt.

    On the way down an interval is shared out between its halves. How far that departs from one half
    each is shrunk: by s / (s + v), where v is the variance of the departure and s the mean square
    of the true departures, estimated from all intervals of the order together and for every count
    on its own. An interval that is in no larger one is shrunk towards 0 in the same way.

    Args:
        orders: as for `online_shrunk`.

    Returns:
        shape (epochs, counts).
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
        # The last interval, if it has no neighbour.
        values[2 * count :] *= _factors(halves.values, halves.variances, known)[2 * count :]
        totals = values
    prefixes: NDArray[np.float64] = np.cumsum(totals, axis=0) + 0.0
    return prefixes


def _pieces(orders: Sequence[TreeEstimates], combine: bool) -> list[TreeEstimates]:
    """All intervals as `PrefixCombiner` combines them: without reports they are 0, of variance 0.

    Halves with a gap say nothing about an interval that has reports of its own.
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
    """How much of each value is kept: s / (s + its variance), s by weighted moments for each count.

    Values with a large variance weigh less. The three quarters with the smaller ones weigh alike:
    they may be so small because few were enrolled then, and say nothing about the others.
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
    """Their quotient, from 0 to 1."""
    signal, total = np.broadcast_arrays(np.maximum(signal, 0.0), total)
    return np.divide(signal, total, out=np.zeros(total.shape), where=total > 0)
