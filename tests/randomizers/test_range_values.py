"""Test devices on the levels of a value tree: job parameters, draws, and rejections."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.value_stream.hadamard_values import HadamardValues
from dpstream.randomizers.value_stream.range_values import (
    LEVEL_SHIFT,
    RangeValues,
    RangeValuesLaw,
    RangeValuesParameters,
)
from dpstream.randomizers.value_stream.range_values.calibration import calibrate

FALSE_ALARM = 1e-12
GIVEN: dict[str, Any] = {"epsilon": 2, "max_changes": 3, "low": 0, "high": 80, "buckets": 16}
EPOCHS = 4
LAW = calibrate(RangeValuesParameters(**GIVEN), EPOCHS)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"max_changes": 1.0}, "max_changes is 1.0"),
        ({"low": "a"}, "'low' is 'a'; expected a number"),
        ({"high": 0}, "'high' is 0; expected a number above 'low', 0"),
        ({"low": -1e308, "high": 1e308}, "'high' is 1e"),
        ({"buckets": 1}, "'buckets' is 1; expected an integer from 2 to 4,096"),
        ({"buckets": 4097}, "'buckets' is 4097"),
        ({"buckets": 16.0}, "'buckets' is 16.0"),
        ({"initial": 80}, "'initial' is 80; expected at least 0 and below 80"),
        ({"initial": -1}, "'initial' is -1"),
        ({"boosted": 5}, r"boosted is 5; expected an integer from 1 to 4 \(max_changes \+ 1"),
    ],
)
def test_invalid_job_parameters_are_rejected(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RangeValuesParameters(**{**GIVEN, **changed})


@pytest.mark.parametrize(("buckets", "levels"), [(2, 1), (4, 2), (64, 6), (4096, 12)])
def test_tree_has_a_level_for_every_halving(buckets: int, levels: int) -> None:
    assert RangeValuesParameters(**{**GIVEN, "buckets": buckets}).levels == levels


def test_constants_have_every_level_and_round_trip_through_json() -> None:
    assert [level.items for level in LAW.levels] == [2, 4, 8, 16]
    assert LAW.buckets == 16
    assert LAW.last_epoch == EPOCHS
    assert RangeValuesLaw.from_json(json.loads(json.dumps(LAW.to_json()))) == LAW


def test_every_level_loses_at_most_epsilon() -> None:
    assert RangeValues(LAW).guarantee.epsilon == 2
    assert all(1.99 < level.booleans.loss <= 2 for level in LAW.levels)


def test_number_of_boosts_can_be_set_for_all_levels() -> None:
    law = calibrate(RangeValuesParameters(**GIVEN, boosted=2), EPOCHS)
    assert {level.booleans.max_changes for level in law.levels} == {2}
    assert all(level.unboosted_share > 0 for level in law.levels)


def test_levels_are_drawn_in_proportion_to_their_weights() -> None:
    devices = RangeValues(LAW)
    devices.enroll(100_000, seeded_generator(1))
    level = devices.state_arrays()["level"]
    seen = np.bincount(np.asarray(level, np.int64), minlength=5)[1:]
    weights = np.array(LAW.level_weights)
    drawn = weights > 0
    assert not seen[~drawn].any()
    expected = weights[drawn] / weights.sum() * seen.sum()
    assert stats.chisquare(seen[drawn], expected).pvalue > FALSE_ALARM
    uniform = np.full(len(expected), expected.mean())
    assert stats.chisquare(seen[drawn], uniform).pvalue < FALSE_ALARM


def test_reports_of_a_level_equal_hadamard_values_of_its_nodes() -> None:
    only = RangeValuesLaw(LAW.levels[:3], (0, 0, 1))
    devices, nodes = RangeValues(only), HadamardValues(only.levels[2])
    devices.enroll(500, seeded_generator(1))
    arrays = {name: array for name, array in devices.state_arrays().items() if name != "level"}
    nodes = HadamardValues.restore(only.levels[2], arrays, 0)
    finer = RangeValues.restore(
        RangeValuesLaw(LAW.levels, (0, 0, 1, 1)),
        {**devices.state_arrays(), "level": np.full(500, 3, np.uint8)},
        0,
    )
    for epoch in range(1, EPOCHS + 1):
        buckets = 1 + (np.arange(500) * epoch) % 16
        found = finer.report(epoch, buckets, None, seeded_generator(epoch))
        expected = nodes.report(epoch, (buckets + 1) // 2, None, seeded_generator(epoch))
        assert found.tolist() == (expected | 3 << LEVEL_SHIFT).tolist()
