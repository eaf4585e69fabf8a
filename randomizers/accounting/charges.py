"""Total privacy loss of several charges of the same users, each an epsilon and a delta.

A mechanism with (epsilon, delta) reveals no more than this one: with probability delta the truth,
and otherwise randomized response with epsilon (Kairouz, Oh and Viswanath 2015). So totals are
computed for these mechanisms.

The operator who deploys a job has seen the estimates of earlier ones, and chooses its epsilon
accordingly. Enforced limits have to hold then, too. Two do:

* The **sum** of the charges (basic composition).
* A **filter** (Feldman and Zrnic 2021): the Rényi divergences of the charges, each at the time it
  is made, are summed at one order that was fixed before. While their sum stays within the budget's
  capacity, everything seen has that divergence, and so an epsilon at a delta (Balle and others
  2020, "Hypothesis testing interpretations and Rényi differential privacy"). This `Filter` derives
  order and capacity from the budget alone. Half of the budget's delta is for that step, the other
  half for the charges' own deltas. Concurrent deployments do not change it (Haney and others 2023,
  "Concurrent composition for interactive differential privacy with adaptive privacy-loss
  parameters").

Charges may be admitted that one *or* the other admits. Let the filter be fixed by a budget of
epsilon and delta, and let the own deltas of all charges sum to at most delta / 2, whichever admits
them. Outcomes that reveal the truth have a probability of at most delta / 2. Of the others, those
whose charges sum to epsilon or less have no loss above it. The rest lie in what is seen if
everything ends before the filter's capacity is used up, where losses above epsilon weigh delta / 2.

The charges **composed** by their loss distributions are less than either, and are valid for
epsilons that were all fixed in advance. They are for information.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpstream.randomizers.accounting import rounding
from dpstream.randomizers.accounting.loss_distributions import LossDistribution, Losses, composed

# Points of the grid of losses: a wider composition is made coarser on the way.
_POINTS = 2000
# Orders of the filter: 1 + 1/64 and up, in steps of an eighth.
_ORDERS = 1 + np.geomspace(1 / 64, 4096, 146)
# Far more than the total error of logarithms and exponentials of a few numbers.
_LOST = 64 * rounding.UNIT


@dataclass(frozen=True, slots=True)
class MechanismCost:
    """Cost of one mechanism, used `times` times, each time with draws of its own."""

    epsilon: float
    delta: float
    times: int = 1


def divergence(epsilon: float, order: float) -> float:
    """Return the Rényi divergence of randomized response with epsilon, rounded up.

    No mechanism with that epsilon and delta 0 has a larger one. `order` is above 1.

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
    """Return the excess of epsilon at a delta over the divergence of an order, rounded up."""
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta!r}; expected a number above 0 and below 1")
    terms = math.log1p(-1 / order), -math.log(delta) / (order - 1), -math.log(order) / (order - 1)
    return math.fsum(terms) + math.fsum(map(abs, terms)) * _LOST


@dataclass(frozen=True)
class Filter:
    """Bound on charges with adaptively chosen epsilons, as a function of the budget.

    Half of the budget's `delta`, which is above 0, is for the charges' own deltas.
    """

    epsilon: float
    delta: float

    @property
    def own(self) -> float:
        """Maximum sum of the charges' own deltas."""
        return self.delta / 2

    @cached_property
    def order(self) -> float:
        """The order with the largest capacity for many small charges."""
        rooms = [(self.epsilon - step_to_epsilon(order, self.own)) / order for order in _ORDERS]
        return float(_ORDERS[int(np.argmax(rooms))])

    def epsilon_of(self, charges: Iterable[MechanismCost]) -> float:
        """Return the total epsilon of charges at the budget's delta, rounded up."""
        parts = [each.times * divergence(each.epsilon, self.order) for each in charges]
        total = math.fsum(parts) * (1 + rounding.of_sum(2))
        figure = total + step_to_epsilon(self.order, self.own)
        return max(0.0, figure + (total + abs(figure)) * _LOST)

    def admits(self, charges: Sequence[MechanismCost]) -> bool:
        """Return whether epsilons are within the budget; own deltas must be too (not checked)."""
        return self.epsilon_of(charges) <= self.epsilon


def composed_epsilon(charges: Iterable[MechanismCost], delta: float) -> float:
    """Return the epsilon of charges at a delta, had all been fixed in advance; rounded up.

    It is infinite if the charges' own deltas exceed `delta`.

    >>> composed_epsilon([MechanismCost(0.5, 0.0)], 0.0) >= 0.5
    True
    """
    if not 0 <= delta < 1:
        raise ValueError(f"delta is {delta!r}; expected 0 to below 1")
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
    # The sum is valid at the charges' own deltas, and the grid rounds up.
    own = math.fsum(each * times for (_, each), times in counts.items())
    added = total * (1 + rounding.of_sum(len(counts))) if own <= delta else math.inf
    return min(distribution.epsilon(delta), added)


def _losses(epsilon: float, delta: float) -> Losses:
    """Return the losses of the mechanism that reveals most for this epsilon and delta."""
    less = math.exp(-epsilon) / (1 + math.exp(-epsilon))
    return Losses(
        losses=np.array([epsilon, -epsilon]),
        masses=np.array([(1 - delta) * (1 - less), (1 - delta) * less]),
        certain=delta,
        slack=0.0,
        rounding=4 * rounding.FUNCTION,
    )


def _width(counts: Counter[tuple[float, float]], total: float) -> float:
    """Return a grid width whose points include the most frequent losses."""
    epsilon = max(counts, key=lambda kind: (counts[kind] * kind[0], kind))[0]
    return epsilon / math.ceil(epsilon * _POINTS / total)
