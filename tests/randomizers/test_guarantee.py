from __future__ import annotations

import json
from fractions import Fraction

from dpstream.randomizers.guarantee import Guarantee, held_by_a_user, held_or_nothing


def test_a_guarantee_reads_as_a_sentence_and_as_json() -> None:
    guarantee = Guarantee(1.0, 1e-9, "stream", "any two streams", "none", "exact")
    assert str(guarantee) == (
        "epsilon 1, delta 1e-09 for a user's whole stream (exact); "
        "neighbors: any two streams; trusted party: none"
    )
    assert json.loads(json.dumps(guarantee.to_json())) == {
        "epsilon": 1.0,
        "delta": 1e-9,
        "unit": "stream",
        "neighbors": "any two streams",
        "trust": "none",
        "basis": "exact",
    }


def test_a_pure_guarantee_does_not_speak_of_delta() -> None:
    assert "delta" not in str(Guarantee(0.5, 0.0, "epoch", "values", "the shuffler", "bound"))


def test_guarantee_states_value_and_stream_loss() -> None:
    guarantee = Guarantee(1.0, 0.0, "value", "two values", "none", "bound", stream_epsilon=4.653032)
    assert str(guarantee) == (
        "epsilon 1 for a user's single value (claimed), 4.65303 for the whole stream (bound); "
        "neighbors: two values; trusted party: none"
    )
    assert guarantee.to_json()["stream_epsilon"] == 4.653032
    twice = guarantee.over(2)
    assert (twice.epsilon, twice.stream_epsilon) == (2.0, 9.306064)
    assert "9.30606 for the whole stream of 2 horizons" in str(twice)


def test_guarantee_states_epoch_and_horizon() -> None:
    guarantee = Guarantee(
        1.0,
        1e-6,
        "epoch",
        "two sets",
        ("the shuffler, to add its dummies, to shuffle, and to keep its noise key secret; it"),
        "exact",
        stream_epsilon=1.786034,
    )
    said = "epsilon 1, delta 1e-06 for a user's value of one epoch, 1.78603 for the whole stream"
    assert str(guarantee).startswith(f"{said} (exact); ")
    renewed = guarantee.over(3)
    assert (renewed.epsilon, renewed.delta, renewed.stream_epsilon) == (1.0, 1e-6, 1.786034)
    assert str(renewed).startswith(f"{said} of each horizon (exact); ")


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


def test_neighbors_state_the_number_of_items() -> None:
    assert held_by_a_user(1).startswith("any two items of a user")
    assert held_by_a_user(3).startswith("any two sets of at most 3 items of a user")
    assert held_or_nothing(1).startswith("an item of a user")
    assert held_or_nothing(3).startswith("a set of at most 3 items of a user")
