from __future__ import annotations

import json
from fractions import Fraction

import pytest

from dpstream.randomizers.guarantee import (
    Guarantee,
    RollingGuarantee,
    ShuffledStreams,
    held_by_a_user,
    held_or_nothing,
    percent_right,
    rounded_down,
    rounded_up,
)


def test_recurring_and_shuffled_guarantees_round_trip_through_json() -> None:
    rolling = RollingGuarantee(52, 1.0)
    guarantee = Guarantee(
        1.0, 0.0, "stream", "any two streams", "none", "exact", 1, rolling=rolling,
        shuffled=ShuffledStreams(0.1, 1e-6, 100),
    )  # fmt: skip
    body = json.loads(json.dumps(guarantee.to_json()))
    assert body["rolling"] == {"epochs": 52, "epsilon": 1.0}
    assert Guarantee.from_json(body) == guarantee
    assert "; epsilon 1 for any 52 consecutive epochs, forever: two streams" in str(guarantee)
    shuffled = "epsilon 0.1, delta 1e-06 for a user's whole stream of one horizon if these are"
    assert shuffled in str(guarantee)
    assert "delta 7e-06 for a user's whole stream of 7 horizons if" in str(guarantee.over(7))
    assert guarantee.over(7).rolling == rolling
    assert str(RollingGuarantee(1, 0.1 + 0.2)) == "epsilon 0.3 for any epoch, forever"
    assert str(RollingGuarantee(2, 1.0000004)).startswith("epsilon 1.00001 ")


def test_pure_guarantee_omits_delta() -> None:
    assert "delta" not in str(Guarantee(0.5, 0.0, "epoch", "values", "the shuffler", "bound"))


def test_guarantee_states_loss_of_a_value_and_of_the_stream() -> None:
    guarantee = Guarantee(1.0, 0.0, "value", "two values", "none", "bound", stream_epsilon=4.653032)
    assert str(guarantee) == (
        "epsilon 1 for a user's value, if it never changes, and epsilon 4.65304 for the whole "
        "stream (bound); neighbors: two values; trusted party: none"
    )
    assert guarantee.to_json()["stream_epsilon"] == 4.653032
    twice = guarantee.over(2)
    assert (twice.epsilon, twice.stream_epsilon) == (2.0, 9.306064)
    assert "and epsilon 9.30607 for the whole stream of 2 horizons" in str(twice)


def test_loss_of_many_horizons_is_never_rounded_down() -> None:
    rounded = set()
    for loss in (0.1, 0.7, 1 / 3, 4.653032):
        for horizons in range(1, 200):
            guarantee = Guarantee(loss, loss / 7, "stream", "any two streams", "none", "exact")
            several = guarantee.over(horizons)
            assert Fraction(several.epsilon) >= horizons * Fraction(loss)
            assert Fraction(several.delta) >= horizons * Fraction(loss / 7)
            assert several.epsilon <= horizons * loss * (1 + 1e-15)
            rounded.add(several.epsilon > horizons * loss)
    assert rounded == {False, True}


def test_neighbor_relation_states_the_maximum_number_of_items() -> None:
    assert held_by_a_user(1).startswith("any two items of a user")
    assert held_by_a_user(3).startswith("any two sets of at most 3 items of a user")
    assert held_or_nothing(1).startswith("having an item at an epoch and having none;")
    assert held_or_nothing(3).startswith("having a set of at most 3 items at an epoch and having")
    for held, removal in ((held_by_a_user, False), (held_or_nothing, True)):
        for items in (1, 3):
            stated = Guarantee(1.0, 0.0, "epoch", held(items), "none", "exact")
            assert stated.only_removal == removal


def test_basic_composition_with_delta_is_only_a_bound() -> None:
    def basis(delta: float, horizons: int) -> str:
        guarantee = Guarantee(1.0, delta, "stream", "any two streams", "none", "exact")
        return guarantee.over(horizons).basis

    assert (basis(1e-6, 1), basis(0.0, 3), basis(1e-6, 3)) == ("exact", "exact", "bound")


@pytest.mark.parametrize("digits", [1, 3, 6])
@pytest.mark.parametrize("number", [1e-9, 0.30000000000000004, 2.0, 5.9170001, 13.80000001, 1e7])
def test_losses_are_rounded_up_and_remaining_budgets_are_rounded_down(
    number: float, digits: int
) -> None:
    up, down = (float(each(number, digits)) for each in (rounded_up, rounded_down))
    assert down <= number * (1 + 1e-15)
    assert up >= number * (1 - 1e-15)
    assert up - down <= 1.001 * 10 ** (1 - digits) * number


def test_attack_success_rate_includes_delta() -> None:
    assert (percent_right(1.0), percent_right(1.0, 0.01)) == ("73.2 %", "73.4 %")
    assert (percent_right(0.0, 0.4), percent_right(9.0, 1e-6)) == ("70 %", "99.99 %")
