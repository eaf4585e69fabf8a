"""Test the composed loss of several charges: exact where known, never below the true loss."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpstream.randomizers.accounting.charges import (
    Filter,
    MechanismCost,
    composed_epsilon,
    divergence,
    step_to_epsilon,
)


class Exact:
    """Exact losses of composed responses that reveal the value with probability delta."""

    def __init__(self, charges: list[MechanismCost]) -> None:
        self.added = sum(each.epsilon * each.times for each in charges)
        self.certain, self.pairs = mpmath.mpf(1), [(mpmath.mpf(1), mpmath.mpf(1))]
        with mpmath.workdps(40):
            for each in charges:
                self.certain *= (1 - mpmath.mpf(each.delta)) ** each.times
                odds = mpmath.exp(mpmath.mpf(each.epsilon))
                more, times = odds / (1 + odds), each.times
                grown = []
                for ups in range(times + 1):
                    ways = mpmath.binomial(times, ups)
                    up = ways * more**ups * (1 - more) ** (times - ups)
                    down = ways * more ** (times - ups) * (1 - more) ** ups
                    grown += [(one * up, other * down) for one, other in self.pairs]
                self.pairs = grown

    def delta(self, epsilon: float) -> float:
        with mpmath.workdps(40):
            factor = mpmath.exp(epsilon)
            over = mpmath.fsum(max(0, one - factor * other) for one, other in self.pairs)
            return float(1 - self.certain + self.certain * over)

    def epsilon(self, delta: float) -> float:
        low, high = 0.0, self.added
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if self.delta(middle) <= delta else (middle, high)
        return high


@pytest.mark.parametrize(
    ("times", "epsilon", "delta", "golden"),
    [
        (1, 1.0, 1e-6, 0.999999),
        (10, 0.5, 1e-6, 4.999885),
        (40, 0.25, 1e-6, 7.755088),
        (100, 0.1, 1e-6, 4.774568),
        (365, 0.05, 1e-8, 5.441756),
        (20, 2.0, 1e-5, 39.999873),
    ],
)
def test_epsilon_of_identical_charges_matches_the_binomial_formula(
    times: int, epsilon: float, delta: float, golden: float
) -> None:
    charges = [MechanismCost(epsilon, 0.0, times)]
    exact = Exact(charges)
    figure = composed_epsilon(charges, delta)
    assert exact.delta(figure) <= delta
    assert figure <= exact.epsilon(delta) + 1e-9
    assert figure == pytest.approx(golden, rel=1e-4)
    apart = composed_epsilon([MechanismCost(epsilon, 0.0)] * times, delta)
    assert apart == figure, "independent of the grouping"


@pytest.mark.parametrize(
    ("charges", "delta"),
    [
        ([MechanismCost(1.0, 1e-7, 3), MechanismCost(0.3, 0.0, 7), MechanismCost(2.0, 1e-8)], 1e-6),
        ([MechanismCost(0.7, 0.0, 5), MechanismCost(math.pi / 10, 1e-6, 5)], 1e-4),
        ([MechanismCost(0.11, 0.0, 20), MechanismCost(0.07, 1e-9, 20)], 1e-5),
    ],
)
def test_epsilon_of_different_charges_is_barely_above_the_exact_value(
    charges: list[MechanismCost], delta: float
) -> None:
    exact, figure = Exact(charges), composed_epsilon(charges, delta)
    assert exact.delta(figure) <= delta
    assert figure <= exact.epsilon(delta) * (1 + 1e-4)


def test_epsilon_is_accurate_for_thousands_of_charges() -> None:
    times, epsilon, delta = 5_000, 0.01, 1e-6
    ups, kept = np.arange(times + 1), 1 / (1 + math.exp(-epsilon))
    one, other = stats.binom.pmf(ups, times, kept), stats.binom.pmf(ups, times, 1 - kept)
    figure = composed_epsilon([MechanismCost(epsilon, 0.0, times)], delta)
    close = figure * (1 - 1e-3)
    spent, more = (np.maximum(0, one - math.exp(e) * other).sum() for e in (figure, close))
    assert spent <= delta < more


def test_composition_includes_the_deltas_of_charges() -> None:
    assert composed_epsilon([MechanismCost(1.0, 1e-6)], 1e-7) == math.inf
    assert composed_epsilon([MechanismCost(0.0, 1e-6)], 1e-7) == math.inf
    assert composed_epsilon([MechanismCost(0.0, 1e-7, 9)], 1e-6) == 0
    assert composed_epsilon([], 0.0) == 0
    assert 1 <= composed_epsilon([MechanismCost(1.0, 1e-6)], 1e-6) <= 1 + 1e-9
    assert composed_epsilon([MechanismCost(1.0, 0.0, 3)], 0.0) == pytest.approx(3, rel=1e-12)


@pytest.mark.parametrize("epsilon", [0.0, 1e-9, 0.01, 0.5, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("order", [1 + 1 / 64, 1.5, 2.0, 7.25, 64.0, 4096.0])
def test_divergence_of_randomized_response_is_accurate_and_rounded_up(
    epsilon: float, order: float
) -> None:
    slack = divergence(epsilon, order) - true_divergence(epsilon, order)
    assert slack >= 0
    assert slack <= 1e-11 * (1 + epsilon)
    assert divergence(epsilon, order) <= epsilon


def test_divergence_is_never_rounded_down() -> None:
    coin = random.Random(1)
    for _ in range(300):
        epsilon, order = coin.uniform(0, 40), 1 + math.exp(coin.uniform(-4, 8))
        assert divergence(epsilon, order) >= true_divergence(epsilon, order)


def true_divergence(epsilon: float, order: float) -> mpmath.mpf:
    with mpmath.workdps(60):
        loss, a = mpmath.mpf(epsilon), mpmath.mpf(order)
        p = mpmath.exp(loss) / (1 + mpmath.exp(loss))
        q = 1 - p
        return mpmath.log(p**a * q ** (1 - a) + q**a * p ** (1 - a)) / (a - 1)


def test_conversion_of_divergence_to_epsilon_is_accurate_and_rounded_up() -> None:
    for order, delta in itertools.product((1 + 1 / 64, 2.0, 9.35, 4096.0), (0.4, 1e-6, 1e-30)):
        with mpmath.workdps(60):
            a, d = mpmath.mpf(order), mpmath.mpf(delta)
            true = mpmath.log((a - 1) / a) - (mpmath.log(d) + mpmath.log(a)) / (a - 1)
            slack = step_to_epsilon(order, delta) - true
        assert 0 <= slack <= 1e-10 * (1 + abs(true))
        # At that epsilon, with a divergence of 0, the worst loss has a tail of at most delta.
        epsilon = step_to_epsilon(order, delta)
        worst = order / (order - 1)
        tail = (1 - 1 / worst) * math.exp(-(order - 1) * (epsilon + math.log(worst)))
        assert tail <= delta * (1 + 1e-9)


def test_renyi_order_of_the_privacy_filter_depends_only_on_the_budget() -> None:
    one, same = Filter(8.0, 1e-6), Filter(8.0, 1e-6)
    assert one.epsilon_of([MechanismCost(0.1, 0.0)] * 3) < one.epsilon_of(
        [MechanismCost(0.1, 0.0)] * 4
    )
    assert one.order == same.order
    assert one.own == 5e-7
    assert Filter(8.0, 1e-9).order > one.order > Filter(80.0, 1e-6).order > 1


@given(
    st.lists(
        st.builds(
            MechanismCost, st.floats(0.01, 1.0), st.sampled_from([0.0, 1e-9]), st.integers(1, 5)
        ),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([1e-3, 1e-6]),
)
@settings(max_examples=40, deadline=None)
def test_filter_admits_charges_up_to_the_budget(charges: list[MechanismCost], delta: float) -> None:
    total = sum(each.epsilon * each.times for each in charges)
    budget = Filter(max(1.0, total), delta)
    figure = budget.epsilon_of(charges)
    own = sum(each.delta * each.times for each in charges)
    assert own <= budget.own
    assert Exact(charges).delta(figure) <= delta


def test_adaptively_chosen_charges_stay_within_the_budget() -> None:
    """Enumerate all adaptive choices between two epsilons, to find the worst.

    After each answer, the adversary chooses the next of the two, if the sum or the filter admits
    it. It maximizes the probability mass of the loss above the budget's epsilon.
    """
    epsilon, delta = 2.0, 0.2
    budget = Filter(epsilon, delta)
    sizes = (0.25, 0.5)

    def admitted(spent: tuple[float, ...]) -> bool:
        charges = [MechanismCost(size, 0.0) for size in spent]
        return (
            sum(map(Fraction, spent)) <= Fraction(epsilon) or budget.epsilon_of(charges) <= epsilon
        )

    longest = 0

    def worst(spent: tuple[float, ...], loss: float, known: dict[object, float]) -> float:
        """Return the maximum mean of (1 - e^(epsilon - loss))+ over all continuations."""
        nonlocal longest
        key = tuple(sorted(spent)), round(loss * 4)
        if key not in known:
            longest = max(longest, len(spent))
            best = max(0.0, 1 - math.exp(epsilon - loss))
            for size in sizes:
                if admitted((*spent, size)):
                    up = math.exp(size) / (1 + math.exp(size))
                    more = worst((*spent, size), loss + size, known)
                    less = worst((*spent, size), loss - size, known)
                    best = max(best, up * more + (1 - up) * less)
            known[key] = best
        return known[key]

    lost = worst((), 0.0, {})
    assert longest > 8, "the filter admits more than the sum does"
    assert 1e-4 < lost <= delta / 2
