"""Test that every search ends on the safe side of the boundary."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_least_parameter_accepts_zero_and_infinite_losses() -> None:
    found = least_parameter(lambda noise: math.inf if noise < 7 else 0.0, 1e-6, 1.0)
    assert 7 <= found <= 7 * (1 + 3e-5)
    with pytest.raises(ValueError, match="noise of up to"):
        least_parameter(lambda noise: 1.0, 0.5, 1.0)


def test_least_parameter_is_safe_next_to_the_end_of_the_bracket() -> None:
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
def test_least_integer_is_exact_with_and_without_a_bound(low: int, above: int, step: int) -> None:
    wanted = low + above
    assert least_integer(lambda number: number >= wanted, low, step=step) == wanted
    assert least_integer(lambda number: number >= wanted, low, wanted + step) == wanted
    assert least_integer(lambda number: False, low, wanted) == wanted


def test_least_integer_raises_when_no_integer_suffices() -> None:
    with pytest.raises(ValueError, match="no number up to"):
        least_integer(lambda number: False, 0)


def test_search_upward_multiplies_by_increasing_factors() -> None:
    assert raised(lambda value: value in (0.5, 1.0), 0.0, 0.5, growth=2) == 0.5
    assert raised(lambda value: value >= 1.5, 0.5, 0.5, growth=2) == 1.5
    assert raised(lambda value: value >= 1.5, 0.5, 0.5) == 1.6875
