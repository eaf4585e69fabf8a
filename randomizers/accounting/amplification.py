"""Amplification by shuffling: what one message per user gives away among those of others.

A message of a randomizer that is locally private with a loss of epsilon_0 is with some probability
drawn as if the value did not matter. Let everything be revealed but the messages drawn so that
they stand for either of two neighbouring values with equal probabilities, and the message of the
user in question where it tells the two values apart. Then C ~ Binomial(n - 1, clone) fair coins
hide one coin with odds e^epsilon_0, and what is seen is the number of heads among C + 1
(Feldman, McMillan and Talwar, "Hiding Among the Clones", 2021, theorem 3.1). It is evaluated
exactly here instead of by their closed form.

For any locally private randomizer clone = e^-epsilon_0. Three are looked at more closely:

* randomized response over K symbols: each but the own one has the probability
  q = 1 / (e^epsilon_0 + K - 1), so with probability K q a message is uniform and with 2 q a fair
  coin between the two values; the user's own message is one of the two with (e^epsilon_0 + 1) q,
  and otherwise tells nothing (the privacy blanket of Balle, Bell, Gascon and Nissim, 2019);
* randomizers with a set of messages for each value, in which every message has e^epsilon_0 times
  the weight of one outside: messages in the set of one of two values, and not in that of the other,
  tell the two apart, and no others. Of any third value they have a probability of at least p each,
  so with 2 p a message is a fair coin, and the user's own is one of the two with
  (e^epsilon_0 + 1) p. Which message of the part it is tells nothing more: all are equally likely;
* RAPPOR of single items, each bit reversed with a probability f: the bits of the two items differ
  from each other in the user's own message with (1 - f)^2 + f^2, then with a loss of
  2 ln((1 - f) / f), and in anybody else's, as a fair coin, with 2 f (1 - f), or at least 2 f^2 if
  one of the two is its item. Any other item's bit is drawn as if it were not its item with
  f / (1 - f): all bits but two are alike then, so that 2 f^2 of the others' messages are clones.
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
"""Probability that a number of clones, or of heads, leaves the interval computed with."""

# Numbers of clones that are told apart: fewer clones than there are hide less. The second is for
# compositions, which look at every number of heads.
_CLASSES, _OUTCOMES = 4_000, 2_000_000
# Errors of scipy's binomial laws as a part of them: ten times what was measured, up to 10^9 coins.
_OF_FUNCTION, _OF_ROOT = 1e-13, 1e-14
_TOLERANCE = 1e-6
_MOST_LOSS = 64.0


@dataclass(frozen=True, slots=True)
class HiddenCoin:
    """The two worlds: a coin among fair ones, heads likelier in the first, tails in the second.

    Attributes:
        loss: ln of the odds of the coin.
        clone: the probability that somebody else's message is one of the fair coins.
        shown: the probability that the coin is thrown at all.

    Raises:
        ValueError: the loss is not positive and finite, or a probability is none.
    """

    loss: float
    clone: float
    shown: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.loss < math.inf or not 0 < self.clone < 1 or not 0 < self.shown <= 1:
            raise ValueError(f"{self} is no coin among fair ones")

    @property
    def odds(self) -> tuple[float, float]:
        """Probabilities of heads in the first world, and in the second."""
        return 1 / (1 + math.exp(-self.loss)), 1 / (1 + math.exp(self.loss))


def of_any_randomizer(loss: float) -> HiddenCoin:
    """For every randomizer with this local loss: a message is a fair coin with e^-loss."""
    return HiddenCoin(loss, math.exp(-loss))


def of_randomized_response(loss: float, symbols: int) -> HiddenCoin:
    """For randomized response over so many symbols with this local loss, from its blanket."""
    return of_randomizer_of_sets(loss, 1 / (math.expm1(loss) + symbols))


def of_randomizer_of_sets(loss: float, elsewhere: float) -> HiddenCoin:
    """For messages that are likelier by one and the same loss in a set of the value's own.

    Args:
        loss: local.
        elsewhere: the probability of a message in the part of another value's set that is not in
            the own one: the same for any two values.
    """
    return HiddenCoin(loss, 2 * elsewhere, min(1.0, (math.exp(loss) + 1) * elsewhere))


def of_rappor(loss: float) -> HiddenCoin:
    """For RAPPOR of single items with this local loss, half of it in each of two bits."""
    reversed_ = 1 / (math.exp(loss / 2) + 1)
    return HiddenCoin(loss, 2 * reversed_**2, (1 - reversed_) ** 2 + reversed_**2)


def amplified_delta(coin: HiddenCoin, contributors: int, epsilon: float, epochs: int = 1) -> float:
    """The least delta for an epsilon, of one message from each of so many contributors.

    With c clones, x heads are (odds r + 1) / (odds + r) as likely in the first world as in the
    second, where r = x / (c + 1 - x) increases in x. So the worst set is all x above some number,
    and its probabilities are those of two tails of Binomial(c, 1/2).

    Args:
        coin: what is hidden among what.
        contributors: how many there are at least, the user included.
        epsilon: of the guarantee, not negative.
        epochs: in how many the user takes part, with new randomness in each.

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
    # What numbers of clones tell decreases, so errors of their distribution function, too, count as
    # parts of the whole.
    spent = coin.shown * (float(np.maximum(excess, 0.0) @ masses) + missing)
    return min(1.0, spent * (1 + 2 * error))


def amplified_epsilon(coin: HiddenCoin, contributors: int, delta: float, epochs: int = 1) -> float:
    """The least epsilon for a delta, rounded up; the local losses where shuffling adds nothing.

    Args:
        coin: what is hidden among what.
        contributors: how many there are at least in every epoch, the user included.
        delta: wanted.
        epochs: in how many the user takes part, with new randomness in each.

    Raises:
        ValueError: delta is out of range, or a number is below 1.

    >>> round(amplified_epsilon(of_any_randomizer(1.0), 100_000, 1e-6), 5)
    0.01528
    >>> round(amplified_epsilon(of_any_randomizer(1.0), 100_000, 1e-6, epochs=10), 3)
    0.053
    """
    check_target(coin.loss, delta)
    if contributors < 1 or epochs < 1:
        raise ValueError(f"{contributors} contributors and {epochs} epochs, must be at least 1")
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
    """The largest local loss that shuffling brings down to epsilon.

    At least what needs no shuffling: epsilon itself, or of several windows an equal part of it.

    Args:
        epsilon: wanted of the shuffled messages of an epoch.
        delta: wanted.
        contributors: how many there are at least, the user included.
        coins: given a local loss, what it may be seen as; each of them a bound for itself.
        windows: in how many the user has a message, each with so many contributors; epsilon and
            delta are those of all of them together.

    Raises:
        ValueError: epsilon or delta is out of range.

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
        # An equal part of epsilon and delta for each is enough (basic composition), all is too
        # much. Composition takes its time, and a thousandth of the loss is little.
        low = most_local_loss(epsilon / windows, delta / windows, contributors, coins)
        high, tolerance = most_local_loss(epsilon, delta, contributors, coins), 1e-3
    return largest_real(private, low, high, tolerance)


def _composed(coin: HiddenCoin, contributors: int, epochs: int) -> LossDistribution:
    """The privacy loss of so many epochs, with new randomness in each."""
    told = _losses(coin, contributors)
    squares = float(told.masses @ np.square(told.losses))
    return composed([(told, epochs)], GRID_FINENESS * math.sqrt(squares))


def _clones(
    coin: HiddenCoin, contributors: int, classes: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Numbers of clones in ascending order, their probabilities, and that of still fewer.

    Each stands for those up to the next one. With more clones less is seen: the heads of the
    additional ones can be thrown afterwards.
    """
    others = contributors - 1
    low, high = BinomialNoise(others, coin.clone).window(TAIL) if others else (0, 0)
    bounds = np.unique(np.linspace(low, high + 1, classes + 1).round())[:-1]
    below = stats.binom.cdf(bounds - 1, others, coin.clone)
    return bounds, np.diff(below, append=1.0), float(below[0]) + TAIL


def _rounding_of_binomials(contributors: int) -> float:
    """The error of scipy's binomial laws of so many coins, as a part of them."""
    return _OF_FUNCTION + _OF_ROOT * math.sqrt(contributors)


def _losses(coin: HiddenCoin, contributors: int) -> Losses:
    """The privacy loss of one epoch: outcomes are numbers of clones and of heads."""
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
