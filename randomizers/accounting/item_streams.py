"""Privacy loss from messages about items over time, either hashed or boosted in separate cells.

Without a boost, a user sends one message about an item in every epoch. Its neighbor sends one about
another item. The possible messages of items can overlap: see
`dpstream.randomizers.accounting.overlapping_cells`.

With a boost, every item has its own cell. In an epoch a user sends c messages about an item, where
c is 1 + r if a change is boosted and 1 otherwise. For a boosted change, it also sends r messages
about the previous item, in separate cells. The neighbor sends equally many messages about other
items. With Poisson dummies of mean lambda, c added messages multiply the probability of a count n
by n (n - 1) ... / lambda^c, with c factors. Fewer messages are no worse: Poisson distributions are
log-concave, so all shifts have the same optimal tests, whose power grows with the shift.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.accounting import rounding
from dpstream.randomizers.accounting.cell_noise import PoissonNoise
from dpstream.randomizers.accounting.loss_distributions import LossDistribution, Losses, composed
from dpstream.randomizers.accounting.overlapping_cells import (
    epsilon_for_overlapping,
    poisson_for_overlapping,
)
from dpstream.randomizers.accounting.shifted_noise import (
    GRID_FINENESS,
    LEAST_MASS,
    TAIL,
    check_target,
)
from dpstream.randomizers.search import least_parameter


@dataclass(frozen=True, slots=True)
class ItemReports:
    """Inputs to the noise for item streams; `last_epoch` is T and `boost` is r.

    Attributes:
        max_changes: k, the number of boosted changes per user, including its first item.
        overlap: q, the maximum fraction of an item's possible messages that another item shares;
            0 with a boost.
        levels: Number of messages, in separate cells, that replace each message.
    """

    last_epoch: int
    max_changes: int
    boost: int
    overlap: float
    levels: int = 1

    def __post_init__(self) -> None:
        if self.boost and self.overlap:
            raise ValueError(
                f"boost is {self.boost} and overlap is {self.overlap}; expected one of them to be "
                "0, because no noise is proven to suffice for both"
            )

    @property
    def plus(self) -> dict[int, int]:
        """Worst-case number of cells, over all epochs, by number of messages about a current item.

        >>> ItemReports(64, 2, 2, 0.0).plus
        {1: 62, 3: 2}
        """
        boosted = min(self.max_changes, self.last_epoch)
        epochs_by_messages = {1: self.last_epoch - boosted, 1 + self.boost: boosted}
        return {
            messages: epochs * self.levels
            for messages, epochs in epochs_by_messages.items()
            if epochs
        }

    @property
    def minus(self) -> dict[int, int]:
        """Worst-case number of cells, over all epochs, by number of messages about a previous item.

        The first item has no previous item.

        >>> ItemReports(64, 2, 2, 0.0).minus
        {2: 1}
        """
        boosted = min(self.max_changes, self.last_epoch) - 1
        return {self.boost: boosted * self.levels} if boosted else {}

    @property
    def minus_share(self) -> float:
        """Optimal ratio of the noise for previous items to that for current items.

        The loss is approximately a sum of squared shifts divided by means. The variance of a count
        is proportional to the sum of the two means. So each optimal mean is proportional to the
        root of its sum of squared shifts.
        """
        plus, minus = (
            sum(epochs * messages**2 for messages, epochs in shifts.items())
            for shifts in (self.plus, self.minus or {self.boost: self.levels})
        )
        return math.sqrt(minus / plus)


def noise_for_items(
    epsilon: float, delta: float, reports: ItemReports
) -> tuple[float, float | None]:
    """Return the least mean numbers of dummies per item that keep streams private.

    The first mean is for current items, the second for previous items (None without a boost).

    >>> [round(mean) for mean in noise_for_items(1.0, 1e-6, ItemReports(64, 2, 2, 0.0))]
    [3497, 782]
    """
    if not reports.boost:
        return poisson_for_overlapping(
            epsilon, delta, reports.overlap, epochs=reports.last_epoch
        ), None
    check_target(epsilon, delta)
    share = reports.minus_share
    squares = sum(epochs * messages**2 for messages, epochs in reports.plus.items())
    guess = 2 * squares * (math.log(1 / delta) / epsilon**2 + 1 / epsilon)

    mean = least_parameter(
        lambda mean: _composed(mean, share * mean, reports).delta(epsilon), delta, guess
    )
    return mean, share * mean


def epsilon_for_items(held: float, left: float | None, delta: float, reports: ItemReports) -> float:
    """Return the least epsilon for a whole stream, rounded up; infinite if delta is too small.

    `held` and `left` are the mean numbers of dummies for a current and for a previous item. `left`
    is None without a boost.

    >>> round(epsilon_for_items(3496, 782, 1e-6, ItemReports(64, 2, 2, 0.0)), 3)
    1.0
    """
    if left is None:
        return epsilon_for_overlapping(held, delta, reports.overlap, epochs=reports.last_epoch)
    check_target(1.0, delta)
    return _composed(held, left, reports).epsilon(delta)


def raised_losses(mean: float, messages: int) -> tuple[Losses, Losses]:
    """Return the losses of a cell with `messages` added, and of one without; `mean` is lambda.

    >>> without, _ = raised_losses(2.0, 1)[::-1]
    >>> without.losses[:2].round(3).tolist()  # ln 2, ln 1
    [0.693, -0.0]
    """
    absent, low, error = _window(mean, messages)
    ratio = _falling(low + np.arange(len(absent)), messages, mean)
    present = absent * ratio
    kept = (absent > LEAST_MASS) & (present > LEAST_MASS)
    losses = np.log(ratio[kept])
    # Products of `messages` + 2 factors.
    of_ratio = rounding.of_sum(4 * messages + 8)
    slack = of_ratio + rounding.FUNCTION * (1 + float(np.abs(losses).max()))
    error += of_ratio
    certain = (float(each[~kept].sum()) * (1 + 2 * error) + 4 * TAIL for each in (present, absent))
    return (
        Losses(losses, present[kept], next(certain), slack, error),
        Losses(-losses, absent[kept], next(certain), slack, error),
    )


def _composed(plus: float, minus: float, reports: ItemReports) -> LossDistribution:
    kinds = []
    squares = cells = 0.0
    for mean, shifts in ((plus, reports.plus), (minus, reports.minus)):
        for messages, epochs in shifts.items():
            kinds += [(privacy_losses, epochs) for privacy_losses in raised_losses(mean, messages)]
            squares += epochs * messages**2 / mean
            cells += epochs
    return composed(kinds, GRID_FINENESS * math.sqrt(squares / cells))


def _window(mean: float, more: int) -> tuple[NDArray[np.float64], int, float]:
    """Return Poisson probabilities in a window widened by `more`, its start, and the error."""
    noise = PoissonNoise(mean)
    low, high = noise.window(TAIL)
    masses, error = noise.weights(low, high + more)
    return masses, low, error


def _falling(counts: NDArray[np.int64], factors: int, scale: float) -> NDArray[np.float64]:
    """Return n (n - 1) ... with `factors` factors, each divided by `scale`, for every count n."""
    found = np.ones(len(counts))
    for taken in range(factors):
        found *= np.maximum(counts - taken, 0) / scale
    return found
