"""Test that every search ends on the safe side of the boundary."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpstream.randomizers.accounting import rounding
from dpstream.randomizers.accounting.loss_distributions import Losses, on_grid
from dpstream.randomizers.accounting.renyi_shift import _divergence
from dpstream.randomizers.search import (
    largest_real,
    least_integer,
    least_parameter,
    least_real,
    raised,
)


@given(st.floats(1e-2, 1e3), st.floats(1e-2, 1e3))
def test_least_parameter_is_sufficient_and_minimal(needed: float, guess: float) -> None:
    tried: list[float] = []

    def loss(parameter: float) -> float:
        tried.append(parameter)
        return needed / parameter

    found = least_parameter(loss, 1.0, guess)
    assert needed <= found <= needed * (1 + 3e-5)
    assert found in tried


def test_search_for_the_least_parameter_accepts_zero_and_infinite_losses() -> None:
    found = least_parameter(lambda noise: math.inf if noise < 7 else 0.0, 1e-6, 1.0)
    assert 7 <= found <= 7 * (1 + 3e-5)
    with pytest.raises(ValueError, match="noise of up to"):
        least_parameter(lambda noise: 1.0, 0.5, 1.0)


def test_least_parameter_is_safe_next_to_the_end_of_the_searched_interval() -> None:
    guess = 55.0
    needed = math.nextafter(guess, math.inf)
    assert math.exp(math.log(guess)) > needed, "the rounded logarithm is on the other side"
    found = least_parameter(lambda noise: needed / noise, 1.0, guess)
    assert needed <= found <= needed * (1 + 3e-5)


@given(st.floats(0, 1), st.sampled_from([0.0, 1e-6, 1e-3]))
def test_searches_for_real_numbers_round_to_the_safe_side(wanted: float, tolerance: float) -> None:
    least = least_real(lambda number: number >= wanted, 0.0, 2.0, tolerance)
    assert wanted <= least <= wanted * (1 + 2 * tolerance)
    largest = largest_real(lambda number: number <= wanted, 0.0, 2.0, tolerance)
    assert wanted * (1 - 2 * tolerance) <= largest <= wanted


@given(st.integers(-50, 50), st.integers(1, 10**9), st.integers(1, 100))
def test_least_integer_is_exact_with_and_without_an_upper_bound(
    low: int, above: int, step: int
) -> None:
    wanted = low + above
    assert least_integer(lambda number: number >= wanted, low, step=step) == wanted
    assert least_integer(lambda number: number >= wanted, low, wanted + step) == wanted
    assert least_integer(lambda number: False, low, wanted) == wanted


def test_search_for_the_least_integer_fails_if_no_integer_suffices() -> None:
    with pytest.raises(ValueError, match="no number up to"):
        least_integer(lambda number: False, 0)


def test_upward_search_multiplies_by_increasing_factors() -> None:
    assert raised(lambda value: value in (0.5, 1.0), 0.0, 0.5, growth=2) == 0.5
    assert raised(lambda value: value >= 1.5, 0.5, 0.5, growth=2) == 1.5
    assert raised(lambda value: value >= 1.5, 0.5, 0.5) == 1.6875


LOSSES = np.array([-0.4, -0.1, 0.0, 0.2, 0.5])
MASSES = np.array([0.1, 0.3, 0.3, 0.2, 0.1])


@dataclass(frozen=True)
class Counted:
    """Number that tracks the number of additions applied to its first term."""

    depth: int = 0

    def __add__(self, other: Counted) -> Counted:
        return Counted(max(self.depth, other.depth) + 1)


@pytest.mark.parametrize("terms", [1, 2, 3, 7, 100, 10**4, 10**8])
def test_error_bound_of_sums_is_at_least_the_bound_by_higham(terms: int) -> None:
    """Higham's gamma bounds the error of products and of their sum in any order."""
    lost = terms * Fraction(rounding.UNIT)
    assert Fraction(rounding.of_sum(terms)) >= lost / (1 - lost)
    assert Fraction(1, 2**53) == rounding.UNIT
    assert 4 * np.finfo(np.float64).eps <= rounding.FUNCTION


def test_each_term_passes_through_at_most_the_counted_number_of_additions() -> None:
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


def test_rounding_error_of_merged_masses_includes_the_error_of_summation() -> None:
    told = Losses(np.zeros(1_000), np.full(1_000, 1e-3), 0.0, 0.0, rounding=1e-9)
    assert on_grid(told, 0.1).rounding >= 1e-9 + rounding.of_sum(1_000)
