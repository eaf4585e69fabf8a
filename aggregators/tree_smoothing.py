"""Smoothing: estimate every epoch from the whole horizon, later reports included.

Smoothing is weighted least squares over the dyadic tree. On the way up, the estimate of every
interval is combined with the sum of its halves, weighted by inverse variance. On the way down, an
interval's excess over this sum is distributed between the halves, in proportion to their variances.
The halves of an interval then sum to the whole. The result is the best linear unbiased estimate for
the given variances.

If the number of epochs is not a power of two, several separate trees cover them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.increments import Increment

# Diffuse variance, used for an epoch without reports, as a multiple of the largest variance: large
# enough for the epoch to have no influence, small enough to lose nothing to rounding.
_DIFFUSE = 1e6
# Fractions of the diffuse variance below this are rounding errors.
_COVERED = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class TreeEstimates:
    """Estimates of one order's intervals, each from the interval's own reports.

    Attributes:
        values: float64, shape (intervals, counts); ignored where there are no reports.
        variances: float64, shape (intervals,), from the number of reports alone; determines
            weights. Infinite without reports.
        estimated: float64, shape (intervals,), from the reports; None if equal to `variances`.
    """

    values: NDArray[np.float64]
    variances: NDArray[np.float64]
    estimated: NDArray[np.float64] | None = None

    def increments(self, reports: NDArray[np.int64]) -> list[Increment | None]:
        """Return one increment per interval, given its number of reports; None if unknown."""
        estimated = self.variances if self.estimated is None else self.estimated
        columns = self.variances.tolist(), estimated.tolist(), reports.tolist()
        return [
            Increment(value, prior_variance, variance, count) if prior_variance < np.inf else None
            for value, prior_variance, variance, count in zip(self.values, *columns, strict=True)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class SmoothedPrefixes:
    """Estimated sums over the epochs 1 to t, for every t.

    Attributes:
        values: float64, shape (epochs, counts).
        variances: float64, shape (epochs,), from the estimated variances of the intervals.
        unknown: float64, shape (epochs,): sum of squared weights for the increments of single
            epochs that no report separates; usually 0.
    """

    values: NDArray[np.float64]
    variances: NDArray[np.float64]
    unknown: NDArray[np.float64]


def smoothed(orders: Sequence[TreeEstimates]) -> SmoothedPrefixes:
    """Estimate every prefix of the epochs by weighted least squares.

    With T epochs, `orders` has T >> order intervals of each order, up to the largest nonempty one.
    """
    increments = smoothed_increments(orders)
    variances, unknown = prefix_variances(
        [order.variances for order in orders],
        [order.variances if order.estimated is None else order.estimated for order in orders],
    )
    return SmoothedPrefixes(np.cumsum(increments, axis=0), variances, unknown)


def smoothed_increments(orders: Sequence[TreeEstimates]) -> NDArray[np.float64]:
    """Estimate the change at every epoch, shape (epochs, counts), by weighted least squares."""
    *shorter, longest = combined_orders(orders)
    totals = longest.values
    for order in reversed(shorter):
        totals = shared_out(totals, order)
    return totals


def combined_orders(orders: Sequence[TreeEstimates]) -> list[TreeEstimates]:
    """Estimate every interval from all reports within it, on the way up.

    Variances are finite, but very large for intervals that reports do not fully cover.
    """
    diffuse = _diffuse([order.variances for order in orders])
    combined: list[TreeEstimates] = []
    for own in orders:
        known = np.isfinite(own.variances)
        values = np.where(known[:, None], own.values, 0.0)
        if not combined:
            combined.append(TreeEstimates(values, np.where(known, own.variances, diffuse)))
            continue
        halves = pairs(combined[-1].values, len(values)).sum(axis=1)
        spread = pairs(combined[-1].variances, len(values)).sum(axis=1)
        share = _own_share(own.variances, spread)
        values = share[:, None] * values + (1 - share)[:, None] * halves
        combined.append(TreeEstimates(values, (1 - share) * spread))
    return combined


def shared_out(totals: NDArray[np.float64], halves: TreeEstimates) -> NDArray[np.float64]:
    """Split the values of an order between the halves of its intervals: one step down the tree.

    `totals`, shape (intervals // 2, counts), are the sums of neighboring halves. `halves` come from
    `combined_orders`, one order below. An interval without a neighbor remains unchanged.
    """
    values = halves.values.copy()
    two = pairs(values, len(totals))
    spread = pairs(halves.variances, len(totals))
    both = spread.sum(axis=1, keepdims=True)
    shares = np.divide(spread, both, out=np.full_like(spread, 0.5), where=both > 0)
    two += shares[:, :, None] * (totals - two.sum(axis=1))[:, None, :]
    return values


def prefix_variances(
    variances: Sequence[NDArray[np.float64]],
    estimated: Sequence[NDArray[np.float64]] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the variance of every prefix under the weights of `smoothed`, without any data.

    `variances` of own estimates, by order, determine the weights. If true variances differ,
    `estimated` states them. The results are `SmoothedPrefixes.variances` and `unknown`.
    """
    diffuse = _diffuse(variances)
    one, four = (
        _with_diffuse(variances, variances if estimated is None else estimated, scale * diffuse)
        for scale in (1, 4)
    )
    # In the limit, variances are linear in the diffuse one: known + unknown * diffuse.
    unknown = (four - one) / (3 * diffuse)
    unknown[unknown < _COVERED] = 0.0
    return np.maximum(one - unknown * diffuse, 0.0), unknown


def _with_diffuse(
    variances: Sequence[NDArray[np.float64]],
    estimated: Sequence[NDArray[np.float64]],
    diffuse: float,
) -> NDArray[np.float64]:
    """Return the variances of prefixes, given the variance `diffuse` of epochs without reports.

    The end of a prefix divides the interval around it into two parts. The covariance of the parts
    is propagated from order to order, for all prefixes at once. Arrays have two covariances on
    their first axis: the one that determines the weights, then the one to return.
    """
    epochs = np.arange(1, len(variances[0]) + 1)
    combined: list[NDArray[np.float64]] = []
    for prior, real in zip(variances, estimated, strict=True):
        known = np.isfinite(prior)
        own = np.where(known, [prior, real], 0.0)
        if not combined:
            combined.append(np.where(known, own, diffuse))
            continue
        spread = pairs(combined[-1].T, len(prior)).sum(axis=1).T
        share = _own_share(prior, spread[0])
        combined.append(share**2 * own + (1 - share) ** 2 * spread)
    # Covariance [[before, both], [both, after]], if the end is in the interior of the interval.
    before, both, after = np.zeros((3, 2, len(epochs)))
    for order in range(1, len(variances)):
        intervals = len(variances[order])
        index = (epochs - 1) >> order
        inside = (epochs & ((1 << order) - 1) != 0) & (index < intervals)
        at = np.flatnonzero(inside)
        half = 1 << (order - 1)
        in_left = (epochs[at] - 1) >> (order - 1) & 1 == 0
        fresh = epochs[at] & (half - 1) == 0
        left = combined[order - 1][:, 2 * index[at]]
        right = combined[order - 1][:, 2 * index[at] + 1]
        # The end is inside one of the halves, or between them.
        b = np.where(fresh, left, before[:, at] + np.where(in_left, 0.0, left))
        a = np.where(fresh, right, after[:, at] + np.where(in_left, right, 0.0))
        c = np.where(fresh, 0.0, both[:, at])
        prior, real = variances[order][index[at]], estimated[order][index[at]]
        known = np.isfinite(prior)
        to_before, to_after = b[0] + c[0], a[0] + c[0]
        scale = prior + to_before + to_after
        known &= scale > 0
        gain_b = np.divide(to_before, scale, out=np.zeros(len(at)), where=known)
        gain_a = np.divide(to_after, scale, out=np.zeros(len(at)), where=known)
        # 1 - gain, without subtracting nearly equal numbers.
        rest_b = np.divide(prior + to_after, scale, out=np.ones(len(at)), where=known)
        rest_a = np.divide(prior + to_before, scale, out=np.ones(len(at)), where=known)
        own = np.where(known, [prior, real], 0.0)
        before[:, at] = rest_b**2 * b - 2 * rest_b * gain_b * c + gain_b**2 * (a + own)
        after[:, at] = rest_a**2 * a - 2 * rest_a * gain_a * c + gain_a**2 * (b + own)
        both[:, at] = (
            (rest_b * rest_a + gain_b * gain_a) * c
            - rest_b * gain_a * b
            - rest_a * gain_b * a
            + gain_b * gain_a * own
        )
    # Whole intervals of the prefix: those in other trees, and one that ends where the prefix ends.
    result: NDArray[np.float64] = before[1]
    for order, piece, ends in _whole_pieces(len(epochs), epochs):
        result[ends] += combined[order][1, piece]
    return result


def _whole_pieces(
    last_epoch: int, epochs: NDArray[np.int64]
) -> Iterator[tuple[int, int, NDArray[np.intp]]]:
    """Yield each tree's root (order, and index from 0), and the prefixes that contain it."""
    start = 0
    for order in reversed(range(last_epoch.bit_length())):
        if last_epoch >> order & 1:
            end = start + (1 << order)
            yield order, start >> order, np.flatnonzero(epochs >= end)
            start = end


def pairs(values: NDArray[np.float64], intervals: int) -> NDArray[np.float64]:
    """Return the halves of the next order's intervals, shape (intervals, 2, ...); a view."""
    return values[: 2 * intervals].reshape(intervals, 2, *values.shape[1:])


def _own_share(own: NDArray[np.float64], halves: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the inverse-variance weights of intervals' own estimates; 0 without reports."""
    known = np.isfinite(own)
    total = np.where(known, own, 0.0) + halves
    share = np.divide(halves, total, out=np.full_like(total, 0.5), where=total > 0)
    return np.where(known, share, 0.0)


def _diffuse(variances: Sequence[NDArray[np.float64]]) -> float:
    finite = [own[np.isfinite(own)] for own in variances]
    return _DIFFUSE * (max((float(own.max()) for own in finite if len(own)), default=1.0) or 1.0)


def consistent_buckets(
    levels: Sequence[NDArray[np.float64]],
    variances: Sequence[float] | NDArray[np.float64],
    population: float,
) -> NDArray[np.float64]:
    """Fit the counts of all buckets, float64, shape (2^L,), to the estimates of all nodes.

    This is the best linear unbiased estimate. Its variances are those of
    `dpstream.randomizers.value_tree.range_variances`.

    Args:
        levels: Estimates of the 2^l nodes of each of the levels 1 to L.
        variances: Variance of a node's estimate on each level; infinite to leave a level out.
        population: Number of values, known exactly.

    >>> consistent_buckets([np.array([70.0, 50.0])], [1.0], 100).tolist()
    [60.0, 40.0]

    Reference: Hay et al., "Boosting the accuracy of differentially private histograms through
    consistency", 2010.
    """
    tree = [
        TreeEstimates(values[:, None], np.full(len(values), variance))
        for values, variance in zip(levels, variances, strict=True)
    ]
    root = TreeEstimates(np.array([[float(population)]]), np.zeros(1))
    return smoothed_increments([*reversed(tree), root])[:, 0]
