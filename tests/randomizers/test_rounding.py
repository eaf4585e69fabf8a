"""Test that bounds on rounding errors are at least the possible errors."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest

from dpstream.randomizers.accounting import rounding
from dpstream.randomizers.accounting.loss_distributions import Losses, on_grid
from dpstream.randomizers.accounting.renyi_shift import _divergence

LOSSES = np.array([-0.4, -0.1, 0.0, 0.2, 0.5])
MASSES = np.array([0.1, 0.3, 0.3, 0.2, 0.1])


@dataclass(frozen=True)
class Counted:
    """Number that tracks the number of additions applied to its first term."""

    depth: int = 0

    def __add__(self, other: Counted) -> Counted:
        return Counted(max(self.depth, other.depth) + 1)


@pytest.mark.parametrize("terms", [1, 2, 3, 7, 100, 10**4, 10**8])
def test_error_bound_of_sums_is_at_least_higham_s_bound(terms: int) -> None:
    """Higham's gamma bounds the error of products and of their sum in any order."""
    lost = terms * Fraction(rounding.UNIT)
    assert Fraction(rounding.of_sum(terms)) >= lost / (1 - lost)
    assert Fraction(1, 2**53) == rounding.UNIT
    assert 4 * np.finfo(np.float64).eps <= rounding.FUNCTION


def test_terms_pass_through_at_most_the_counted_additions() -> None:
    for length in (*range(1, 70), 127, 128, 129, 1000):
        terms = np.array([Counted() for _ in range(length)], dtype=object)
        sums = rounding.running_sums(terms)
        assert max(each.depth for each in sums) <= rounding.additions(length)


@pytest.mark.parametrize("alpha", [1.2, 2.0, 20.0])
def test_divergence_includes_slack_and_rounding(alpha: float) -> None:
    slack, more = 0.01, 0.02
    likelier, less_likely = MASSES * (LOSSES > 0), MASSES * (LOSSES < 0)
    gained = likelier * np.expm1(more)
    masses = MASSES + gained - less_likely * gained.sum() / less_likely.sum()
    assert masses.sum() == pytest.approx(1)
    assert np.all(masses >= MASSES * np.exp(-more))
    order = alpha - 1
    largest = np.log(masses @ np.exp(order * (LOSSES + slack))) / order
    found = _divergence(Losses(LOSSES, MASSES, 0.0, slack, more), alpha)
    assert largest <= found <= largest + slack + more / order


def test_rounding_error_of_merged_masses_includes_that_of_summing() -> None:
    told = Losses(np.zeros(1_000), np.full(1_000, 1e-3), 0.0, 0.0, rounding=1e-9)
    assert on_grid(told, 0.1).rounding >= 1e-9 + rounding.of_sum(1_000)
