"""Test the baselines of FutureRand: published sign distributions, and their exact losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import product

import pytest

from dpstream.randomizers.accounting.calibration import optimal
from dpstream.randomizers.composed import ComposedLaw
from experiments.protocols.baselines import (
    SplitBudget,
    SplitBudgetParameters,
)
from experiments.protocols.baselines.calibration import (
    bun,
    calibrate,
    erlingsson,
    independent,
)

# For epsilon 1: k, then the printed c_gap and the exact loss of independent response, of Erlingsson
# et al. as published and with all of epsilon, and of Bun et al.
GOLDEN = [
    (1, (".4621", 1.0), (".2449", 0.5), (".4621", 1.0), (".0536", 0.107310)),
    (2, (".2449", 1.0), (".1225", 0.5), (".2311", 1.0), (".0357", 0.142839)),
    (4, (".1244", 1.0), (".0612", 0.5), (".1155", 1.0), (".0236", 0.189092)),
    (8, (".0624", 1.0), (".0306", 0.5), (".0578", 1.0), (".0157", 0.250440)),
    (16, (".0312", 1.0), (".0153", 0.5), (".0289", 1.0), (".0103", 0.249744)),
    (64, (".0078", 1.0), (".0038", 0.5), (".0072", 1.0), (".0046", 0.242866)),
    (256, (".0020", 1.0), (".0010", 0.5), (".0018", 1.0), (".0021", 0.243404)),
    (1024, (".0005", 1.0), (".0002", 0.5), (".0005", 1.0), (".0010", 0.243473)),
]


@pytest.mark.parametrize(("k", "one_each", "half", "full", "annulus"), GOLDEN)
def test_baselines_match_golden_table(
    k: int,
    one_each: tuple[str, float],
    half: tuple[str, float],
    full: tuple[str, float],
    annulus: tuple[str, float],
) -> None:
    laws = independent(k, 1.0), erlingsson(k, 0.5), erlingsson(k, 1.0), bun(k, 1.0)
    for law, (c_gap, loss) in zip(laws, (one_each, half, full, annulus), strict=True):
        assert f"{law.c_gap:.4f}" == f"0{c_gap}"
        assert law.k == k
        assert round(law.loss, 6) == loss


@pytest.mark.parametrize("epsilon", [1e-6, 0.5, 1.0, 8.0, 64.0])
@pytest.mark.parametrize("k", [1, 2, 3, 32, 1024])
def test_c_gaps_of_baselines_have_a_closed_form_and_their_loss_is_epsilon(
    k: int, epsilon: float, exponential_below: Callable[[float], Fraction]
) -> None:
    one_each, one_drawn = independent(k, epsilon), erlingsson(k, epsilon)
    assert one_each.c_gap == pytest.approx(math.tanh(epsilon / (2 * k)), rel=1e-12)
    assert one_drawn.c_gap == pytest.approx(math.tanh(epsilon / 2) / k, rel=1e-12)
    for law in (one_each, one_drawn):
        ratio = Fraction(max(law.weights), min(law.weights))
        assert 0 <= exponential_below(epsilon) - ratio < Fraction(1, 2**98)
        assert law.loss == epsilon
        assert law.c_gap <= optimal(k, epsilon).c_gap


@pytest.mark.parametrize("k", [1, 2, 4])
def test_erlingsson_baseline_randomizes_one_sign_and_sends_others_as_fair_coins(k: int) -> None:
    kept = 1 / (1 + math.exp(-2.0))

    def probability(signs: tuple[int, ...]) -> float:
        return sum(chance(sign, kept) / k * 0.5 ** (k - 1) for sign in signs)

    assert_law(erlingsson(k, 2.0), probability)


@pytest.mark.parametrize(("k", "epsilon"), [(1, 1.0), (4, 1.0), (4, 20.0), (9, 4.0), (12, 40.0)])
def test_bun_baseline_is_randomized_response_within_its_annulus(k: int, epsilon: float) -> None:
    """The parameter is found independently, by bisection of its equation."""
    root = math.sqrt(k)

    def log_inverse_beta(single: float) -> float:
        return -2 / 3 * math.log(single * root / (2 * (k + 1)))

    def spent_epsilon(single: float) -> float:
        return 6 * single * math.sqrt(k * log_inverse_beta(single))

    low, high = 0.0, 2 * (k + 1) / root * math.exp(-0.5)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if spent_epsilon(middle) < epsilon else (low, middle)
    assert spent_epsilon(low) == pytest.approx(epsilon)
    flip = 1 / (math.exp(low) + 1)
    radius = math.sqrt(k * (math.log(2) + log_inverse_beta(low)) / 2)

    def distance(signs: tuple[int, ...]) -> int:
        return signs.count(-1)

    def inside(signs: tuple[int, ...]) -> bool:
        return abs(distance(signs) - k * flip) <= radius

    def independently(signs: tuple[int, ...]) -> float:
        return math.prod(chance(sign, 1 - flip) for sign in signs)

    outside = [signs for signs in product((1, -1), repeat=k) if not inside(signs)]
    elsewhere = sum(map(independently, outside)) / max(1, len(outside))
    assert_law(bun(k, epsilon), lambda signs: independently(signs) if inside(signs) else elsewhere)


def test_bun_baseline_loses_less_than_epsilon_and_rejects_a_large_epsilon() -> None:
    for k in (1, 3, 50, 1024):
        for epsilon in (1e-6, 0.3, 1.0, 8.0):
            assert bun(k, epsilon).loss < epsilon
    with pytest.raises(
        ValueError, match=r"epsilon is 9; expected at most 8\.40 .* with k = 1\. Lower"
    ):
        bun(1, 9.0)


def chance(sign: int, kept: float) -> float:
    return kept if sign > 0 else 1 - kept


def assert_law(law: ComposedLaw, probability: Callable[[tuple[int, ...]], float]) -> None:
    vectors = list(product((1, -1), repeat=law.k))
    for signs in vectors:
        assert float(law.probability(signs.count(-1))) == pytest.approx(probability(signs))
    assert sum(map(probability, vectors)) == pytest.approx(1)


@pytest.mark.parametrize("epsilon", [1e-6, 0.3, 1.0, 64.0])
@pytest.mark.parametrize("last_epoch", [1, 3, 7, 256, 1000])
def test_losses_of_all_epochs_sum_to_at_most_epsilon(
    epsilon: float, last_epoch: int, exponential_below: Callable[[float], Fraction]
) -> None:
    law = calibrate(SplitBudgetParameters(epsilon), last_epoch)
    kept, reversed_ = law.response.weights
    # exponential_below is within 2^-400 of the true value.
    assert Fraction(kept, reversed_) ** last_epoch <= exponential_below(epsilon)
    assert law.loss == SplitBudget(law).guarantee.epsilon == epsilon
    assert law.c_gap == pytest.approx(math.tanh(epsilon / last_epoch / 2), rel=1e-12)
