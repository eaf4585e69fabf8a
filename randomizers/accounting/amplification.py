"""Privacy amplification by shuffling, for one message per user.

With some probability, a randomizer with a local loss of epsilon_0 draws a message independently of
the value. An observer compares two neighboring values of a target user. Suppose that the observer
sees all messages of the n users except two kinds. The first kind are clones: other users' messages
that represent either of the two values, with equal probability. The second kind is the target
user's message, if it distinguishes the two values. A message is a clone with probability `clone`,
so C ~ Binomial(n - 1, clone) fair coins hide one coin with odds e^epsilon_0. The observer sees the
number of heads among the C + 1 coins. This module evaluates that distribution exactly instead of
using the closed form of the reference.

For any locally private randomizer, clone = e^-epsilon_0. Three randomizers have better bounds:

* Randomized response over K symbols: each symbol but the true one has the probability
  q = 1 / (e^epsilon_0 + K - 1). So a message is uniform with probability K q, and a fair coin
  between the two values with probability 2 q. The target's message is one of the two values with
  probability (e^epsilon_0 + 1) q. Otherwise it reveals nothing (the privacy blanket of Balle, Bell,
  Gascon and Nissim, 2019).
* Randomizers with a set of messages for each value, where a message inside the set has e^epsilon_0
  times the weight of a message outside. A message distinguishes two values only if it is in exactly
  one of their two sets. A message about any third value is in only the first set with a probability
  of at least p, and in only the second set with the same probability. So a message is a fair coin
  with probability 2 p, and the target's message is in only one of the sets with probability
  (e^epsilon_0 + 1) p. All messages in only one set are equally likely, so a message reveals only
  which set it is in.
* RAPPOR of single items, with each bit flipped with probability f. In the target's message the bits
  of the two items differ from each other with probability (1 - f)^2 + f^2, at a loss of 2
  ln((1 - f) / f). In another user's message the two bits differ, with either one equally likely to
  be set, with probability 2 f (1 - f), or at least 2 f^2 if the user has one of the two items. If
  the user has a third item, the bit of that item is drawn like that of a non-item with probability
  f / (1 - f). All other bits are then distributed identically, so 2 f^2 of the other users'
  messages are clones.

Reference: Feldman, McMillan and Talwar, *Hiding Among the Clones*, 2021, Theorem 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpstream.randomizers.accounting.cell_noise import BinomialNoise
from dpstream.randomizers.accounting.loss_distributions import LossDistribution, Losses, composed
from dpstream.randomizers.accounting.shifted_noise import GRID_FINENESS, check_target
from dpstream.randomizers.search import largest_real, least_real

TAIL: Final = 1e-25
"""Probability that the number of clones or of heads is outside the evaluated interval."""
# Maximum number of classes of clone counts. A class uses its smallest count, which hides the least.
# The second constant limits classes times head counts, for compositions.
_CLASSES, _OUTCOMES = 4_000, 2_000_000
# Relative errors of scipy's binomial distributions: ten times the measured errors up to 10^9 coins.
_OF_FUNCTION, _OF_ROOT = 1e-13, 1e-14
_TOLERANCE = 1e-6
_MOST_LOSS = 64.0


@dataclass(frozen=True, slots=True)
class HiddenCoin:
    """A biased coin among fair ones: heads is likelier in one of two worlds, tails in the other.

    Attributes:
        loss: Natural logarithm of the biased coin's odds.
        clone: Probability that another user's message is one of the fair coins.
        shown: Probability that the biased coin is thrown at all.
    """

    loss: float
    clone: float
    shown: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.loss < math.inf or not 0 < self.clone < 1 or not 0 < self.shown <= 1:
            raise ValueError(
                f"'loss' is {self.loss}, 'clone' is {self.clone} and 'shown' is {self.shown}; "
                "expected a finite 'loss' > 0, 0 < 'clone' < 1 and 0 < 'shown' <= 1"
            )

    @property
    def odds(self) -> tuple[float, float]:
        """Probabilities of heads in the first and the second world."""
        return 1 / (1 + math.exp(-self.loss)), 1 / (1 + math.exp(self.loss))


def of_any_randomizer(loss: float) -> HiddenCoin:
    """Return the coin that bounds any randomizer, with clones of probability e^-loss."""
    return HiddenCoin(loss, math.exp(-loss))


def of_randomized_response(loss: float, symbols: int) -> HiddenCoin:
    """Return the coin for randomized response with this local loss, from its privacy blanket."""
    return of_randomizer_of_sets(loss, 1 / (math.expm1(loss) + symbols))


def of_randomizer_of_sets(loss: float, elsewhere: float) -> HiddenCoin:
    """Return the coin for messages that are e^`loss` times as likely inside the value's set.

    `elsewhere` is the probability of a message in another value's set but outside the value's own
    set. It is the same for any two values.
    """
    return HiddenCoin(loss, 2 * elsewhere, min(1.0, (math.exp(loss) + 1) * elsewhere))


def of_rappor(loss: float) -> HiddenCoin:
    """Return the coin for RAPPOR of single items, with half the local loss in each of two bits."""
    reversed_ = 1 / (math.exp(loss / 2) + 1)
    return HiddenCoin(loss, 2 * reversed_**2, (1 - reversed_) ** 2 + reversed_**2)


def amplified_delta(coin: HiddenCoin, contributors: int, epsilon: float, epochs: int = 1) -> float:
    """Return the least delta for an epsilon if each contributor sends one message.

    With c clones, x heads are (odds r + 1) / (odds + r) times as likely in the first world as in
    the second. Here r = x / (c + 1 - x) increases with x, so the worst-case event is that x exceeds
    a threshold. Two tails of Binomial(c, 1/2) give its probabilities. At least `contributors` users
    contribute, including the target user, who participates in `epochs` epochs with fresh randomness
    in each. `epsilon` must not be negative.

    >>> f"{amplified_delta(of_any_randomizer(1.0), 10_000, 0.05301):.1e}"
    '1.0e-06'
    """
    if epsilon >= epochs * coin.loss:
        return 0.0
    if epochs > 1:
        return _composed(coin, contributors, epochs).delta(epsilon)
    clones, masses, missing = _clones(coin, contributors, _CLASSES)
    heads, tails = coin.odds
    gain, cost = heads - math.exp(epsilon) * tails, math.exp(epsilon) * heads - tails
    first = np.floor((clones + 1) * (cost / (gain + cost))) + 1
    above = gain * stats.binom.sf(first - 2, clones, 0.5)
    error = _rounding_of_binomials(contributors)
    excess = above - cost * stats.binom.sf(first - 1, clones, 0.5) + 2 * error * above
    # More clones reveal less. So a relative error in the distribution function of the clone count
    # becomes the same relative error in the whole sum.
    spent = coin.shown * (float(np.maximum(excess, 0.0) @ masses) + missing)
    return min(1.0, spent * (1 + 2 * error))


def amplified_epsilon(coin: HiddenCoin, contributors: int, delta: float, epochs: int = 1) -> float:
    """Return the least epsilon for a delta, rounded up; at most the sum of the local losses.

    `contributors` and `epochs` are as for `amplified_delta`.

    >>> round(amplified_epsilon(of_any_randomizer(1.0), 100_000, 1e-6), 5)
    0.01528
    >>> round(amplified_epsilon(of_any_randomizer(1.0), 100_000, 1e-6, epochs=10), 3)
    0.053
    """
    check_target(coin.loss, delta)
    if contributors < 1 or epochs < 1:
        raise ValueError(
            f"got {contributors} contributors and {epochs} epochs; expected at least 1 of each"
        )
    if epochs == 1:
        return least_real(
            lambda epsilon: amplified_delta(coin, contributors, epsilon) <= delta,
            0.0,
            coin.loss,
            _TOLERANCE,
        )
    return min(_composed(coin, contributors, epochs).epsilon(delta), epochs * coin.loss)


def most_local_loss(
    epsilon: float,
    delta: float,
    contributors: int,
    coins: Callable[[float], Sequence[HiddenCoin]],
    windows: int = 1,
) -> float:
    """Return the largest local loss that shuffling reduces to epsilon.

    The result is at least the loss that needs no shuffling: epsilon divided by the number of
    windows. `coins` returns the coins for a local loss; each coin is a valid bound on its own. The
    user has one message in each of `windows` windows. Each window has at least `contributors`
    contributors, including the user. `epsilon` and `delta` cover all windows together.

    >>> loss = most_local_loss(1.0, 1e-6, 100_000, lambda loss: [of_any_randomizer(loss)])
    >>> round(loss, 2)
    7.07
    """
    check_target(epsilon, delta)

    def private(loss: float) -> bool:
        return any(
            amplified_delta(coin, contributors, epsilon, windows) <= delta for coin in coins(loss)
        )

    low, high, tolerance = epsilon, max(_MOST_LOSS, epsilon), _TOLERANCE
    if windows > 1:
        # An equal part of epsilon and delta for each window is private (basic composition); all of
        # epsilon and delta for each window is not. Composition is slow: the tolerance is 0.001.
        low = most_local_loss(epsilon / windows, delta / windows, contributors, coins)
        high, tolerance = most_local_loss(epsilon, delta, contributors, coins), 1e-3
    return largest_real(private, low, high, tolerance)


def _composed(coin: HiddenCoin, contributors: int, epochs: int) -> LossDistribution:
    privacy_losses = _losses(coin, contributors)
    squares = float(privacy_losses.masses @ np.square(privacy_losses.losses))
    return composed([(privacy_losses, epochs)], GRID_FINENESS * math.sqrt(squares))


def _clones(
    coin: HiddenCoin, contributors: int, classes: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Return ascending clone counts, their probabilities, and the probability of smaller counts.

    Each count represents all counts up to the next one. More clones reveal less, because the
    additional coins can be thrown afterwards.
    """
    others = contributors - 1
    low, high = BinomialNoise(others, coin.clone).window(TAIL) if others else (0, 0)
    bounds = np.unique(np.linspace(low, high + 1, classes + 1).round())[:-1]
    below = stats.binom.cdf(bounds - 1, others, coin.clone)
    return bounds, np.diff(below, append=1.0), float(below[0]) + TAIL


def _rounding_of_binomials(contributors: int) -> float:
    return _OF_FUNCTION + _OF_ROOT * math.sqrt(contributors)


def _losses(coin: HiddenCoin, contributors: int) -> Losses:
    """Return the privacy losses of one epoch; an outcome is a pair (clones, heads)."""
    widest = math.sqrt(2 * math.log(2 / TAIL) * contributors * coin.clone)
    classes = max(20, min(200, int(_OUTCOMES / (widest + 1))))
    clones, masses, certain = _clones(coin, contributors, classes)
    heads, tails = coin.odds
    losses, likelihoods = [np.zeros(1)], [np.array([1 - coin.shown])]
    for count, mass in zip(clones.tolist(), masses.tolist(), strict=True):
        # Hoeffding's inequality, on both sides.
        width = math.sqrt(math.log(2 / TAIL) / 2 * count)
        low, high = max(0, math.floor(count / 2 - width)), math.ceil(count / 2 + width)
        seen = np.arange(low, min(high, count) + 2)
        fair = stats.binom.pmf(np.arange(low - 1, seen[-1] + 1), count, 0.5)
        first = heads * fair[:-1] + tails * fair[1:]
        second = tails * fair[:-1] + heads * fair[1:]
        losses.append(np.log(first / second))
        likelihoods.append(coin.shown * mass * first)
        certain += mass * TAIL
    error = 2 * _rounding_of_binomials(contributors)
    return Losses(np.concatenate(losses), np.concatenate(likelihoods), certain, 2 * error, error)
