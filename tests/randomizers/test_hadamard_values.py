"""Test parameters of hadamard_values and range_values, and the number of boosted flips."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpstream.randomizers.flip_laws import flip_law
from dpstream.randomizers.value_stream.hadamard_values import (
    HadamardValuesParameters,
)
from dpstream.randomizers.value_stream.hadamard_values.calibration import best_boosts, calibrate

ITEMS = ("a", "b", "c")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epsilon": 11}, "epsilon is 11; expected 0.001 to 10"),
        ({"max_changes": 1 << 15}, "max_changes is 32768"),
        ({"boosted": 4}, r"boosted is 4; expected an integer from 1 to 3 \(max_changes \+ 1"),
        (
            {"domain": tuple(map(str, range(4097)))},
            "domain has 4,097 labels; expected 2",
        ),
    ],
)
def test_invalid_item_parameters_are_rejected(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HadamardValuesParameters(**{"epsilon": 1, "max_changes": 2, "domain": ITEMS, **wrong})


def test_mechanism_boosts_about_half_of_the_possible_flips() -> None:
    found = [best_boosts(flip_law(20, values=changes + 1), 64) for changes in (1, 2, 4, 8, 16, 32)]
    assert found == [2, 2, 3, 5, 9, 18]
    # A user with one item flips at most once.
    assert best_boosts(np.full(2, 0.5), 64) == 1
    assert calibrate(HadamardValuesParameters(1.0, 5, ITEMS), 1).booleans.max_changes == 1
    assert (
        calibrate(HadamardValuesParameters(1.0, 5, ITEMS, boosted=2), 64).booleans.max_changes == 2
    )
