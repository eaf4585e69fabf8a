"""What messages about items over time give away: hashed without a boost, or boosted in cells.

Without a boost a user sends a message about an item in every epoch, and its neighbour one about
another item: `dpstream.randomizers.accounting.overlapping_cells`, where words of items overlap.

With a boost every item has a cell of its own. In an epoch a user sends c messages about an item, c
is 1, or 1 + r where a change is boosted; and r messages about the item it left, in cells of their
own. Its neighbour sends as many about another item. With n Poisson dummies of mean lambda and the c
messages, what is seen is n (n - 1) ... (c factors) / lambda^c times as likely: the law of a cell
shifted by c. Fewer messages are no worse: Poisson laws are log-concave, so all shifts have the same
best tests, and their power grows with the shift.
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
    """What decides about the noise of item streams.

    Attributes:
        last_epoch: T, number of epochs.
        changes: k, how many of a user are boosted, its first item included.
        boost: r.
        overlap: q, the part of its words that an item shares with another one, at most; 0 with a
            boost.
        levels: how many messages there are where another code has one, each in a cell of its own.

    Raises:
        ValueError: items share words, and there is a boost.
    """

    last_epoch: int
    changes: int
    boost: int
    overlap: float
    levels: int = 1

    def __post_init__(self) -> None:
        if self.boost and self.overlap:
            raise ValueError(
                f"a boost of {self.boost} for items that share words: no noise is proven to suffice"
            )

    @property
    def plus(self) -> dict[int, int]:
        """In how many epochs and cells a user sends so many messages about its item, at worst.

        >>> ItemReports(64, 2, 2, 0.0).plus
        {1: 62, 3: 2}
        """
        boosted = min(self.changes, self.last_epoch)
        epochs_by_messages = {1: self.last_epoch - boosted, 1 + self.boost: boosted}
        return {
            messages: epochs * self.levels
            for messages, epochs in epochs_by_messages.items()
            if epochs
        }

    @property
    def minus(self) -> dict[int, int]:
        """The same, about items that it left; the first one comes after none.

        >>> ItemReports(64, 2, 2, 0.0).minus
        {2: 1}
        """
        boosted = min(self.changes, self.last_epoch) - 1
        return {self.boost: boosted * self.levels} if boosted else {}

    @property
    def minus_share(self) -> float:
        """How much weaker the noise among the words for items that were left is best.

        What is spent is nearly a sum of squared shifts over means, and both means add up in the
        variance of a count: so they are best in proportion to the roots of the squared shifts.
        """
        plus, minus = (
            sum(epochs * messages**2 for messages, epochs in shifts.items())
            for shifts in (self.plus, self.minus or {self.boost: self.levels})
        )
        return math.sqrt(minus / plus)


def noise_for_items(
    epsilon: float, delta: float, reports: ItemReports
) -> tuple[float, float | None]:
    """The least mean number of dummies in an item's words that is (epsilon, delta)-private.

    Args:
        epsilon: wanted, of a whole stream.
        delta: wanted.
        reports: what decides about it.

    Returns:
        That of the items held, and that of the items left; None without a boost.

    Raises:
        ValueError: something is out of range.

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
    """The least epsilon for a delta, rounded up; infinite where delta is not enough.

    Args:
        held: mean number of dummies in an item's words, of the items held.
        left: the same, of the items left; None without a boost.
        delta: wanted, of a whole stream.
        reports: what decides about it.

    Raises:
        ValueError: something is out of range.

    >>> round(epsilon_for_items(3496, 782, 1e-6, ItemReports(64, 2, 2, 0.0)), 3)
    1.0
    """
    if left is None:
        return epsilon_for_overlapping(held, delta, reports.overlap, epochs=reports.last_epoch)
    check_target(1.0, delta)
    return _composed(held, left, reports).epsilon(delta)


def raised_losses(mean: float, messages: int) -> tuple[Losses, Losses]:
    """What a cell with so many messages tells, and one without them.

    Args:
        mean: lambda, of the dummies in an item's cell.
        messages: c, at least 1.

    >>> without, _ = raised_losses(2.0, 1)[::-1]
    >>> without.losses[:2].round(3).tolist()  # ln 2, ln 1
    [0.693, -0.0]
    """
    absent, low, error = _window(mean, messages)
    ratio = _falling(low + np.arange(len(absent)), messages, mean)
    present = absent * ratio
    kept = (absent > LEAST_MASS) & (present > LEAST_MASS)
    losses = np.log(ratio[kept])
    # Products, of two factors more than there are messages.
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
            kinds += [(told, epochs) for told in raised_losses(mean, messages)]
            squares += epochs * messages**2 / mean
            cells += epochs
    return composed(kinds, GRID_FINENESS * math.sqrt(squares / cells))


def _window(mean: float, more: int) -> tuple[NDArray[np.float64], int, float]:
    """Probabilities of Poisson numbers and `more` of them, the first number, and the error."""
    noise = PoissonNoise(mean)
    low, high = noise.window(TAIL)
    masses, error = noise.weights(low, high + more)
    return masses, low, error


def _falling(counts: NDArray[np.int64], factors: int, scale: float) -> NDArray[np.float64]:
    """Products n (n - 1) ... of so many factors, each over the scale."""
    found = np.ones(len(counts))
    for taken in range(factors):
        found *= np.maximum(counts - taken, 0) / scale
    return found
