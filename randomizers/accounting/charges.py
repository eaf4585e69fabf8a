"""Total privacy loss from several charges to the same users, each with an epsilon and a delta.

For any epsilon and delta, one mechanism dominates all others: with probability delta it reveals the
true value, and otherwise it is randomized response with epsilon. No (epsilon, delta)-private
mechanism reveals more (Kairouz, Oh and Viswanath 2015). Totals are those of dominating mechanisms.

The operator who deploys a job has seen the estimates of earlier jobs and can choose epsilon
accordingly. So enforced limits must hold for adaptive choices, too. Two limits do:

* The **sum** of the charges (basic composition).
* A **filter** (Feldman and Zrnic 2021): whenever a charge is made, its Rényi divergence, at an
  order fixed in advance, is added to a sum. While the sum stays within the budget's capacity, the
  combined output has at most that divergence, which implies an epsilon for each delta (Balle and
  others 2020, "Hypothesis testing interpretations and Rényi differential privacy"). `Filter`
  derives order and capacity only from the budget. Half of the budget's delta is for the conversion
  to epsilon, and half for the charges' own deltas. The filter also holds for concurrent deployments
  (Haney and others 2023, "Concurrent composition for interactive differential privacy with adaptive
  privacy-loss parameters").

A charge can be admitted if the sum *or* the filter admits it. Suppose that a budget of epsilon and
delta fixes the filter, and that the own deltas of all charges, whichever limit admits them, sum to
at most delta / 2. Then outcomes that reveal the true value have a total probability of at most
delta / 2. Of the other outcomes, those whose charges sum to at most epsilon have no loss above
epsilon. The rest would also occur in a process that stops before the filter's capacity is exceeded.
In such a process, losses above epsilon contribute at most delta / 2.

The loss distributions of the charges can also be **composed**, which gives a total below both
limits. It is valid only if all epsilons were fixed in advance, and is shown for information.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpstream.randomizers.accounting import rounding
from dpstream.randomizers.accounting.loss_distributions import LossDistribution, Losses, composed

# Number of points of the loss grid; a composition that needs more gets a coarser grid.
_POINTS = 2000
# Candidate orders of the filter, from 1 + 1/64: their excess over 1 grows in steps of an eighth.
_ORDERS = 1 + np.geomspace(1 / 64, 4096, 146)
# Far above the total relative error of the logarithms and exponentials used here.
_LOST = 64 * rounding.UNIT


@dataclass(frozen=True, slots=True)
class MechanismCost:
    """Privacy cost of one mechanism that runs `times` times with fresh randomness."""

    epsilon: float
    delta: float
    times: int = 1


def divergence(epsilon: float, order: float) -> float:
    """Return the Rényi divergence of randomized response with epsilon, rounded up.

    No mechanism with that epsilon and delta 0 has a larger divergence. `order` must be above 1.

    >>> round(divergence(1.0, 2.0), 12) == round(math.log(math.exp(2) + math.exp(-1)) - math.log1p(
    ...     math.exp(1)), 12)
    True
    """
    # ln((e^(order epsilon) + e^((1 - order) epsilon)) / (1 + e^epsilon)) / (order - 1)
    above = order * epsilon + math.log1p(math.exp((1 - 2 * order) * epsilon))
    below = epsilon + math.log1p(math.exp(-epsilon))
    size = (above + below) * _LOST
    return min(epsilon, max(0.0, (above - below + size) / (order - 1)) * (1 + _LOST))


def step_to_epsilon(order: float, delta: float) -> float:
    """Return the excess of epsilon at a delta over the Rényi divergence of an order, rounded up."""
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta!r}; expected a number above 0 and below 1")
    terms = math.log1p(-1 / order), -math.log(delta) / (order - 1), -math.log(order) / (order - 1)
    return math.fsum(terms) + math.fsum(map(abs, terms)) * _LOST


@dataclass(frozen=True)
class Filter:
    """Limit on charges with adaptively chosen epsilons, derived from the budget.

    Half of the budget's `delta`, which must be above 0, is for the charges' own deltas.
    """

    epsilon: float
    delta: float

    @property
    def own(self) -> float:
        """Maximum sum of the charges' own deltas."""
        return self.delta / 2

    @cached_property
    def order(self) -> float:
        """Rényi order with the largest capacity for many small charges."""
        rooms = [(self.epsilon - step_to_epsilon(order, self.own)) / order for order in _ORDERS]
        return float(_ORDERS[int(np.argmax(rooms))])

    def epsilon_of(self, charges: Iterable[MechanismCost]) -> float:
        """Return the total epsilon of charges at the budget's delta, rounded up."""
        parts = [each.times * divergence(each.epsilon, self.order) for each in charges]
        total = math.fsum(parts) * (1 + rounding.of_sum(2))
        figure = total + step_to_epsilon(self.order, self.own)
        return max(0.0, figure + (total + abs(figure)) * _LOST)


def composed_epsilon(charges: Iterable[MechanismCost], delta: float) -> float:
    """Return the joint epsilon of charges at a delta, rounded up, if all were fixed in advance.

    The result is infinite if the charges' own deltas exceed `delta`.

    >>> composed_epsilon([MechanismCost(0.5, 0.0)], 0.0) >= 0.5
    True
    """
    if not 0 <= delta < 1:
        raise ValueError(f"delta is {delta!r}; expected a number of at least 0 and below 1")
    counts: Counter[tuple[float, float]] = Counter()
    for each in charges:
        if each.epsilon or each.delta:
            counts[each.epsilon, each.delta] += each.times
    total = math.fsum(epsilon * times for (epsilon, _), times in counts.items())
    if not total:
        certain = 1 - math.prod((1 - own) ** times for (_, own), times in counts.items())
        return 0.0 if certain * (1 + _LOST * (1 + len(counts))) <= delta else math.inf
    kinds = [(_losses(epsilon, own), times) for (epsilon, own), times in counts.items()]
    distribution: LossDistribution = composed(kinds, _width(counts, total))
    # If the own deltas fit, the sum is valid too, and can be smaller because the grid rounds up.
    own = math.fsum(each * times for (_, each), times in counts.items())
    added = total * (1 + rounding.of_sum(len(counts))) if own <= delta else math.inf
    return min(distribution.epsilon(delta), added)


def _losses(epsilon: float, delta: float) -> Losses:
    """Return the losses of the mechanism that reveals the most with this epsilon and delta."""
    less = math.exp(-epsilon) / (1 + math.exp(-epsilon))
    return Losses(
        losses=np.array([epsilon, -epsilon]),
        masses=np.array([(1 - delta) * (1 - less), (1 - delta) * less]),
        certain=delta,
        slack=0.0,
        rounding=4 * rounding.FUNCTION,
    )


def _width(counts: Counter[tuple[float, float]], total: float) -> float:
    epsilon = max(counts, key=lambda kind: (counts[kind] * kind[0], kind))[0]
    return epsilon / math.ceil(epsilon * _POINTS / total)
