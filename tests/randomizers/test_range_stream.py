"""Devices on the levels of a value tree: what a job may say, what is drawn, and what is refused."""

from __future__ import annotations

import json
import math
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from scipy import stats

from randomizers.hadamard_stream import HadamardStream
from randomizers.randomness import seeded_generator
from randomizers.range_stream import (
    LEVEL_SHIFT,
    RangeStream,
    RangeStreamLaw,
    RangeStreamParameters,
)
from randomizers.range_stream.calibration import calibrate, flip_law

FALSE_ALARM = 1e-12
GIVEN: dict[str, Any] = {"epsilon": 2, "changes": 3, "low": 0, "high": 80, "buckets": 16}
EPOCHS = 4
LAW = calibrate(RangeStreamParameters(**GIVEN), EPOCHS)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"epsilon": 0}, "epsilon is 0, must be from"),
        ({"changes": -1}, "changes is -1, must be a whole number from 0 to"),
        ({"changes": 1.0}, "changes is 1.0"),
        ({"low": "a"}, "low is 'a', must be a number"),
        ({"high": math.inf}, "high is inf, must be a number"),
        ({"low": True}, "low is True, must be a number"),
        ({"high": 0}, "high is 0, must be a number above low, 0"),
        ({"low": -1e308, "high": 1e308}, "high is 1e"),
        ({"buckets": 1}, "buckets is 1, must be a whole number from 2 to 4,096"),
        ({"buckets": 4097}, "buckets is 4097"),
        ({"buckets": 16.0}, "buckets is 16.0"),
        ({"initial": 80}, "initial is 80, must be from low, 0, to below high, 80"),
        ({"initial": -1}, "initial is -1"),
        ({"initial": math.nan}, "initial is nan, must be a number"),
        ({"signs": 5}, "signs is 5, must be a whole number from 1 to changes . 1, 4"),
        ({"signs": 0}, "signs is 0"),
        ({"estimator": "forest"}, "estimator is 'forest'"),
    ],
)
def test_what_a_job_cannot_say_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RangeStreamParameters(**{**GIVEN, **changed})


@pytest.mark.parametrize(("buckets", "levels"), [(2, 1), (4, 2), (64, 6), (4096, 12)])
def test_there_is_a_level_for_every_halving(buckets: int, levels: int) -> None:
    assert RangeStreamParameters(**{**GIVEN, "buckets": buckets}).levels == levels


@pytest.mark.parametrize(
    ("buckets", "nearest"),
    [(3, "2 or 4"), (5, "4 or 8"), (24, "16 or 32"), (63, "32 or 64"), (4095, "2048 or 4096")],
)
def test_the_powers_of_two_around_other_numbers_of_buckets_are_named(
    buckets: int, nearest: str
) -> None:
    with pytest.raises(ValueError, match=f"is {buckets}, must be a power of two: give {nearest}$"):
        RangeStreamParameters(**{**GIVEN, "buckets": buckets})


def test_a_law_has_a_level_for_every_halving_and_survives_json() -> None:
    assert [level.items for level in LAW.levels] == [2, 4, 8, 16]
    assert LAW.buckets == 16
    assert LAW.horizon == EPOCHS
    assert RangeStreamLaw.from_json(json.loads(json.dumps(LAW.to_json()))) == LAW


def test_no_more_is_spent_than_was_asked_for_on_any_level() -> None:
    assert 1.99 < RangeStream(LAW).guarantee.epsilon <= 2
    assert all(level.future_rand.loss <= 2 for level in LAW.levels)


def test_signs_may_be_set_for_all_levels() -> None:
    law = calibrate(RangeStreamParameters(**GIVEN, signs=2), EPOCHS)
    assert {level.signs for level in law.levels} == {2}
    assert all(level.frozen_share > 0 for level in law.levels)


def broken_laws() -> list[dict[str, Any]]:
    body = LAW.to_json()
    return [
        {},
        {**body, "levels": body["levels"][1:]},
        {**body, "levels": []},
        {**body, "level_weights": [1]},
        {**body, "level_weights": [1, 1, 1, 0]},
        {**body, "level_weights": [-1, 1, 1, 1]},
        {**body, "level_weights": [1.0, 1, 1, 1]},
        {**body, "levels": [*body["levels"][:3], calibrated_for_longer()]},
    ]


def calibrated_for_longer() -> dict[str, Any]:
    return calibrate(RangeStreamParameters(**GIVEN), 2 * EPOCHS).levels[3].to_json()


@pytest.mark.parametrize("body", broken_laws())
def test_fields_that_contradict_each_other_are_no_law(body: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a law of range_stream"):
        RangeStreamLaw.from_json(body)


@pytest.mark.parametrize(("level", "levels", "values"), [(1, 1, 3), (1, 2, 4), (2, 3, 3)])
def test_flips_by_enumeration(level: int, levels: int, values: int) -> None:
    """All rows, and all ways to have so many values one after the other."""
    rows, buckets = 2 << level, 1 << levels
    found = np.zeros(values + 1)
    for row, stream in product(range(rows), product(range(buckets), repeat=values)):
        if all(one != other for one, other in pairwise(stream)):
            nodes = [1 + (bucket >> (levels - level)) for bucket in stream]
            tracked = [0, *(1 - (row & node).bit_count() % 2 for node in nodes)]
            found[np.count_nonzero(np.diff(tracked))] += 1
    assert flip_law(level, levels, values) == pytest.approx(found / found.sum())


@pytest.mark.parametrize(("last_epoch", "changes"), [(1, 0), (3, 2), (4, 3), (5, 4), (9, 5)])
def test_no_more_changes_are_followed_than_epochs_allow(last_epoch: int, changes: int) -> None:
    """A first value and then a change at each further epoch: that is the same as asked for 5."""
    law = calibrate(RangeStreamParameters(2.0, 5, 0, 80, 16), last_epoch)
    assert {level.changes for level in law.levels} == {changes}
    assert law == calibrate(RangeStreamParameters(2.0, changes, 0, 80, 16), last_epoch)


def test_levels_are_drawn_in_proportion() -> None:
    devices = RangeStream(LAW)
    devices.enrol(100_000, seeded_generator(1))
    level = devices.state_arrays()["level"]
    seen = np.bincount(np.asarray(level, np.int64), minlength=5)[1:]
    weights = np.array(LAW.level_weights)
    drawn = weights > 0
    assert not seen[~drawn].any()
    expected = weights[drawn] / weights.sum() * seen.sum()
    assert stats.chisquare(seen[drawn], expected).pvalue > FALSE_ALARM
    uniform = np.full(len(expected), expected.mean())
    assert stats.chisquare(seen[drawn], uniform).pvalue < FALSE_ALARM


def test_a_level_reports_what_a_stream_over_its_nodes_does() -> None:
    """Given the same draws: the nodes of level 3 hold two buckets each."""
    only = RangeStreamLaw(LAW.levels[:3], (0, 0, 1))
    devices, nodes = RangeStream(only), HadamardStream(only.levels[2])
    devices.enrol(500, seeded_generator(1))
    arrays = {name: array for name, array in devices.state_arrays().items() if name != "level"}
    nodes = HadamardStream.restore(only.levels[2], arrays, 0)
    finer = RangeStream.restore(
        RangeStreamLaw(LAW.levels, (0, 0, 1, 1)),
        {**widened(devices), "level": np.full(500, 3, np.uint8)},
        0,
    )
    for epoch in range(1, EPOCHS + 1):
        buckets = 1 + (np.arange(500) * epoch) % 16
        found = finer.report(epoch, buckets, None, seeded_generator(epoch))
        expected = nodes.report(epoch, (buckets + 1) // 2, None, seeded_generator(epoch))
        assert found.tolist() == (expected | 3 << LEVEL_SHIFT).tolist()


def widened(devices: RangeStream) -> dict[str, Any]:
    """The state as a population keeps it that also has devices on the level of 16 nodes."""
    empty = RangeStream(RangeStreamLaw(LAW.levels, (0, 0, 1, 1))).state_arrays()
    arrays = dict(devices.state_arrays())
    missing = empty["signs"].shape[1] - arrays["signs"].shape[1]
    arrays["signs"] = np.pad(np.asarray(arrays["signs"], np.uint8), ((0, 0), (0, missing)))
    arrays["used"] = arrays["used"].astype(empty["used"].dtype)
    return arrays


def test_levels_with_different_numbers_of_signs_are_kept_together() -> None:
    """Budgets of 3 and of 300: other widths and other types."""
    law = RangeStreamLaw(
        (
            calibrate(RangeStreamParameters(2.0, 299, 0, 80, 2, signs=300), 512).levels[0],
            calibrate(RangeStreamParameters(2.0, 299, 0, 80, 4, signs=3), 512).levels[1],
        ),
        (1, 1),
    )
    devices = RangeStream(law)
    devices.enrol(200, seeded_generator(2))
    devices.report(1, np.full(200, 3), None, seeded_generator(3))
    arrays = devices.state_arrays()
    assert arrays["signs"].shape == (200, 38)
    assert arrays["used"].dtype == np.uint16
    again = RangeStream.restore(law, arrays, 1)
    for name, array in again.state_arrays().items():
        assert np.array_equal(array, arrays[name])
    values = np.ones(200, np.int64)
    found, expected = (
        each.report(2, values, None, seeded_generator(4)) for each in (again, devices)
    )
    assert np.array_equal(found, expected)


def test_devices_that_run_out_of_signs_freeze() -> None:
    law = calibrate(RangeStreamParameters(4.0, 3, 0, 80, 4, signs=1), EPOCHS)
    devices = RangeStream(law)
    devices.enrol(1_000, seeded_generator(5))
    for epoch in range(1, EPOCHS + 1):
        devices.report(epoch, np.full(1_000, 1 + 3 * (epoch % 2)), None, seeded_generator(epoch))
    assert 100 < devices.frozen < 900


@pytest.mark.parametrize(
    ("values", "present", "message"),
    [
        (np.ones(2, np.int64), None, "must be integers of shape .3,."),
        (np.ones(3), None, "values are float64"),
        (np.array([1, 17, 2]), None, "value 17 of device 1 at epoch 1, must be from 1 to 16"),
        (np.array([1, 2, -1]), None, "value -1 of device 2"),
        (np.ones(3, np.int64), np.ones(2, np.bool_), "present is bool of shape .2,."),
        (np.ones(3, np.int64), np.ones(3, np.int64), "present is int64"),
    ],
)
def test_values_that_are_no_buckets_are_refused_and_nothing_changes(
    values: Any, present: Any, message: str
) -> None:
    devices = RangeStream(LAW)
    devices.enrol(3, seeded_generator(6))
    before = {name: array.copy() for name, array in devices.state_arrays().items()}
    with pytest.raises(ValueError, match=message):
        devices.report(1, values, present, seeded_generator(7))
    assert devices.epoch == 0
    for name, array in devices.state_arrays().items():
        assert np.array_equal(array, before[name])


def test_the_value_of_a_silent_device_is_not_looked_at() -> None:
    devices = RangeStream(LAW)
    devices.enrol(3, seeded_generator(6))
    present = np.array([True, False, True])
    assert len(devices.report(1, np.array([1, 99, 2]), present, seeded_generator(7))) <= 2


@pytest.mark.parametrize("name", ["level", "row", "order", "signs", "used", "boundary"])
def test_state_of_another_shape_or_type_is_refused(name: str) -> None:
    devices = RangeStream(LAW)
    devices.enrol(5, seeded_generator(8))
    arrays = devices.state_arrays()
    missing = {other: array for other, array in arrays.items() if other != name}
    for broken in (missing, {**arrays, name: arrays[name].astype(np.float32)}):
        with pytest.raises(ValueError, match="state array"):
            RangeStream.restore(LAW, broken, 0)


def test_a_level_that_there_is_not_is_refused() -> None:
    devices = RangeStream(LAW)
    devices.enrol(5, seeded_generator(8))
    for level in (0, 5):
        arrays = {**devices.state_arrays(), "level": np.full(5, level, np.uint8)}
        with pytest.raises(ValueError, match="not from 1 to 4"):
            RangeStream.restore(LAW, arrays, 0)
