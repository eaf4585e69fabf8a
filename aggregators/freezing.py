"""Predict, before there is any data, the bias that exhausted devices cause in estimates.

At an order with k signs, a device tracks its first k nonzero partial sums and reports 0 after that.
The bias depends on when users change. The model knows only how many changes each user makes within
the horizon, and assumes that they fall on distinct epochs chosen at random.

At order 0 each change is a nonzero partial sum. The number N of a user's changes up to epoch t is
hypergeometric, and the tracked value is the parity of min(N, k). At higher orders, two changes in
one interval cancel and use no sign. There, N is the number of odd intervals: those with an odd
number of changes. An interval's bias enters the estimates with the interval's weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.future_rand import Estimator, interval_variances
from dpstream.aggregators.increments import own_share
from dpstream.randomizers.dyadic import FutureRandLaw
from dpstream.randomizers.tree_variances import combined_variances

LONGEST = 1 << 14

# Limit on time and memory. It also limits changes: users with more count as if they had that many.
_WORK = 10**8


class FreezingModel:
    """Distribution of users by number of changes, and the expected bias of their estimates.

    Args:
        changes: float64, shape (most + 1,): fraction of the users with 0, 1, ... changes.
        last_epoch: 1 to `LONGEST`; changes fall on epochs 1 to `last_epoch`.

    Raises:
        ValueError: If the horizon is too long, or a user has more changes than epochs.

    >>> model = FreezingModel(np.array([0, 0, 0, 1.0]), last_epoch=4)  # three changes, two tracked
    >>> model.missed(order=0, signs=2).round(6).tolist()  # at epochs 0 to 4
    [0.0, 0.0, 0.0, 0.25, 1.0]
    """

    def __init__(self, changes: NDArray[np.float64], last_epoch: int) -> None:
        if not 1 <= last_epoch <= LONGEST:
            raise ValueError(
                f"a horizon of {last_epoch:,} epochs is out of range; expected 1 to {LONGEST:,}"
            )
        if len(changes) > last_epoch + 1 and changes[last_epoch + 1 :].any():
            raise ValueError(
                f"{np.flatnonzero(changes)[-1]:,} changes do not fit: a user has at most one "
                f"change per epoch, {last_epoch:,} in all"
            )
        self.last_epoch = last_epoch
        self._until = _changes_until(_capped(changes[: last_epoch + 1], last_epoch), last_epoch)
        # All change budgets to compare share the tables.
        self._excess = cache(self._make_excess)

    def missed(self, order: int, signs: int) -> NDArray[np.float64]:
        """Return, for one order, the true minus the tracked fraction of users with value 1.

        `signs` is the number of nonzero partial sums that are tracked. The result has shape
        (intervals + 1,): first for epoch 0, then for the end of each interval of 2^order epochs.
        """
        excess = self._excess(order)
        missed = np.zeros(1 + (self.last_epoch >> order))
        if signs + 1 < excess.shape[1]:
            missed[1:] = excess[:, signs + 1] * (1 if signs % 2 == 0 else -1)
        return missed

    def bias(self, law: FutureRandLaw, estimator: Estimator = "tree") -> NDArray[np.float64]:
        """Return one user's expected estimate minus the ground truth, shape (last_epoch,)."""
        signs = [composed.k for composed in law.composed]
        return self.bias_of(signs, interval_variances(law), estimator)

    def bias_of(
        self, signs: Sequence[int], own_variances: Sequence[float], estimator: Estimator = "tree"
    ) -> NDArray[np.float64]:
        """Return the `bias` of estimates from any dyadic tree.

        Args:
            signs: Number of nonzero partial sums that are tracked, by order.
            own_variances: Variance of an interval's own estimate, by order; inf without reports.
            estimator: Combination of intervals.
        """
        epochs = np.arange(1, self.last_epoch + 1)
        variances = combined_variances(own_variances)
        bias = np.zeros(self.last_epoch)
        piece = np.zeros(0)
        for order in range(self.last_epoch.bit_length()):
            own = -np.diff(self.missed(order, signs[order]))
            if order == 0 or estimator == "prefix":
                piece = own
            else:
                share = own_share(own_variances[order], 2 * variances[order - 1])
                halves = piece[: 2 * len(own)].reshape(-1, 2).sum(axis=1)
                piece = share * own + (1 - share) * halves
            part = epochs >> order & 1 == 1
            bias[part] += piece[(epochs[part] >> order) - 1]
        return bias

    def _make_excess(self, order: int) -> NDArray[np.float64]:
        """Return the fraction of users with n, n + 2, ... odd intervals, by interval and by n."""
        odd = self._odd_intervals(order)
        for count in range(odd.shape[1] - 3, -1, -1):
            odd[:, count] += odd[:, count + 2]
        return odd

    def _odd_intervals(self, order: int) -> NDArray[np.float64]:
        """Return the fraction of users by how many intervals have an odd number of changes.

        The changes up to an interval's end are placed one after the other, on free epochs. This is
        exact for intervals of one and two epochs. For longer ones it is a very close approximation:
        the number of changes in odd intervals is replaced by its mean.
        """
        if order == 0:
            return self._until.copy()
        length = 1 << order
        until = self._until[length - 1 :: length]
        intervals = np.arange(1, len(until) + 1)[:, None]
        odd = np.arange(min(len(until), until.shape[1] - 1) + 1)
        law = np.zeros((len(until), len(odd)))
        law[:, 0] = 1.0
        result = np.zeros_like(law)
        for placed in range(until.shape[1]):
            result += until[:, placed, None] * law
            free = np.maximum(intervals * length - placed, 1)
            held = _held_by_odd(intervals, odd, length, placed)
            falling = law * np.clip((odd * length - held) / free, 0.0, 1.0)
            law -= falling
            law[:, 1:], law[:, 0] = law[:, :-1].copy(), 0.0
            law[:, :-1] += falling[:, 1:]
        return result


def _held_by_odd(
    intervals: NDArray[np.int64], odd: NDArray[np.int64], length: int, placed: int
) -> NDArray[np.float64]:
    """Return the mean number of changes in odd intervals: `odd` (m,) out of `intervals` (n, 1).

    Each odd interval has at least one change. Further changes are distributed in proportion to the
    mean excess of a binomial count over 1 (odd) or 0 (even).
    """
    rate = np.clip(placed / (intervals * length), 1e-6, 1.0)
    tilt, power = 1 - 2 * rate, (1 - 2 * rate) ** (length - 1)
    odds, evens = (np.maximum(1 + sign * power * tilt, 1e-12) for sign in (-1, 1))
    beyond_odd = np.maximum(length * rate * (1 + power) / odds - 1, 0.0)
    beyond_even = length * rate * (1 - power) / evens
    shares = odd * beyond_odd
    total = shares + np.maximum(intervals - odd, 0) * beyond_even
    others = np.maximum(placed - odd, 0)
    held: NDArray[np.float64] = odd + others * np.divide(
        shares, total, out=np.zeros_like(shares), where=total > 0
    )
    return held


def _capped(changes: NDArray[np.float64], last_epoch: int) -> NDArray[np.float64]:
    """Move users with too many changes to one of the two largest counts, keeping the parity."""
    most = max(2, int((_WORK / last_epoch) ** 0.5))
    capped = changes[: most + 1].copy()
    for count, share in enumerate(changes[most + 1 :].tolist(), most + 1):
        capped[most - (count - most) % 2] += share
    return capped


def _changes_until(changes: NDArray[np.float64], last_epoch: int) -> NDArray[np.float64]:
    """Return the fractions of users with n changes by epoch t, shape (last_epoch, values of n)."""
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, last_epoch + 1)))])

    def choose(total: NDArray[np.int64], part: NDArray[np.int64]) -> NDArray[np.float64]:
        possible = (part >= 0) & (part <= total)
        part = np.where(possible, part, 0)
        return np.where(possible, logs[total] - logs[part] - logs[total - part], -np.inf)

    epochs = np.arange(1, last_epoch + 1)[:, None]
    until = np.zeros((last_epoch, len(changes)))
    for count in np.flatnonzero(changes).tolist():
        early = np.arange(count + 1)[None, :]
        log_law = choose(epochs, early) + choose(last_epoch - epochs, count - early)
        whole = logs[last_epoch] - logs[count] - logs[last_epoch - count]
        until[:, : count + 1] += changes[count] * np.exp(log_law - whole)
    return until
