"""Devices with items: each does for its row what FutureRand does for a Boolean."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.linalg import hadamard

from aggregators.attendance import Attendance
from aggregators.hadamard_stream import HadamardStreamAggregator
from randomizers.future_rand import FutureRand
from randomizers.hadamard_stream import (
    MAX_ITEMS,
    ORDER_BITS,
    HadamardStream,
    HadamardStreamLaw,
    HadamardStreamParameters,
    rows_for,
)
from randomizers.hadamard_stream.calibration import calibrate
from randomizers.randomness import seeded_generator

FALSE_ALARM = 1e-10


def law(items: int = 5, changes: int = 2, last_epoch: int = 8, **more: Any) -> HadamardStreamLaw:
    domain = tuple(f"item {number}" for number in range(1, items + 1))
    return calibrate(HadamardStreamParameters(2.0, changes, domain, **more), last_epoch)


def enrolled(of: HadamardStreamLaw, count: int, seed: int = 1) -> HadamardStream:
    devices = HadamardStream(of)
    devices.enrol(count, seeded_generator(seed))
    return devices


@pytest.mark.parametrize("items", [2, 3, 4, 7, 20])
def test_devices_track_one_boolean_each(items: int) -> None:
    """Whatever the items, also none at times, and whoever is silent."""
    devices = enrolled(law(items), 300)
    arrays = devices.state_arrays()
    rows = arrays["row"].astype(int)
    booleans = FutureRand.restore(
        devices.law.future_rand,
        {name: array for name, array in arrays.items() if name != "row"},
        epoch=0,
    )
    matrix = hadamard(devices.law.rows)
    rng = np.random.default_rng(items)
    reports = 0
    for epoch in range(1, 9):
        values = rng.integers(0, items + 1, 300)
        present = rng.random(300) < 0.8
        tracked = np.where(values == 0, 0, (1 + matrix[rows, values]) // 2)
        who, words = booleans.follow(epoch, tracked, present, seeded_generator(2, epoch))
        expected = (rows[who] * 32 + (words >> 1)) * 2 + (words & 1)
        found = devices.report(epoch, values, present, seeded_generator(2, epoch))
        assert found.dtype == HadamardStream.word_dtype
        assert found.shape == (len(expected), HadamardStream.width)
        assert found[:, 0].tolist() == expected.tolist()
        reports += len(found)
    assert reports > 300
    assert devices.frozen == booleans.frozen > 0


def test_rows_are_drawn_uniformly_and_without_regard_to_the_order() -> None:
    arrays = enrolled(law(5), 100_000).state_arrays()
    table = np.zeros((8, 4), np.int64)
    np.add.at(table, (arrays["row"].astype(np.intp), arrays["order"].astype(np.intp)), 1)
    assert (table.sum(axis=1) > 0).all()
    assert stats.chisquare(table.sum(axis=1)).pvalue > FALSE_ALARM
    assert stats.chi2_contingency(table[:, table.any(axis=0)]).pvalue > FALSE_ALARM
    tilted = table.sum(axis=1) * np.linspace(0.9, 1.1, 8)
    assert stats.chisquare(tilted, sum_check=False).pvalue < FALSE_ALARM


def test_all_the_rows_of_the_largest_domain_fit_a_word() -> None:
    devices = enrolled(law(MAX_ITEMS), 100_000)
    words = devices.report(8, np.full(100_000, MAX_ITEMS), None, seeded_generator(3))[:, 0]
    assert rows_for(MAX_ITEMS) == 8192
    assert len(np.unique(words >> 6 & 8191)) > 8000
    assert np.unique(words >> 6 & 8191).max() < 8192


def test_the_guarantee_is_that_of_the_boolean() -> None:
    devices = enrolled(law(), 1)
    assert devices.guarantee == FutureRand(devices.law.future_rand).guarantee
    assert (devices.guarantee.epsilon, devices.guarantee.unit) == (2.0, "stream")


def test_a_law_survives_json_and_no_other_is_read() -> None:
    one = law(12, 8)
    assert HadamardStreamLaw.from_json(json.loads(json.dumps(one.to_json()))) == one
    for key, value in (("items", 1), ("items", MAX_ITEMS + 1), ("future_rand", {})):
        with pytest.raises(ValueError, match="not a law of hadamard_stream"):
            HadamardStreamLaw.from_json({**one.to_json(), key: value})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"row": None}, "HadamardStream keeps .*'row'"),
        ({"row": np.zeros(9, np.uint16)}, r"row is uint16 of shape \(9,\)"),
        ({"row": np.zeros(10, np.int64)}, "row is int64"),
        ({"row": np.full(10, 8, np.uint16)}, "row has a value that is not from 0 to 7"),
        ({"order": np.zeros(10, np.int64)}, "state array order is int64"),
    ],
)
def test_no_other_state_is_restored(changed: dict[str, Any], message: str) -> None:
    of = law()
    arrays = {**enrolled(of, 10).state_arrays(), **changed}
    known = {name: array for name, array in arrays.items() if array is not None}
    with pytest.raises(ValueError, match=message):
        HadamardStream.restore(of, known, epoch=0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.full(3, 6), "value 6 of device 0 at epoch 1, must be from 1 to 5, or 0 for no item"),
        (np.array([0, 5, -1]), "value -1 of device 2 at epoch 1"),
        (np.zeros(4, np.int8), r"values of shape \(4,\), must be \(3,\)"),
        (np.zeros(3), "values of dtype float64, must be integers"),
    ],
)
def test_values_outside_the_domain_are_refused_and_nothing_happens(
    values: Any, message: str
) -> None:
    devices, undisturbed = enrolled(law(), 3), enrolled(law(), 3)
    with pytest.raises(ValueError, match=message):
        devices.report(1, values, None, seeded_generator(1))
    fine = np.array([1, 0, 5])
    assert devices.report(1, fine, None, seeded_generator(2)).tolist() == (
        undisturbed.report(1, fine, None, seeded_generator(2)).tolist()
    )


def test_values_of_silent_devices_do_not_matter() -> None:
    devices = enrolled(law(), 3)
    devices.report(1, np.array([-7, 9999, 5]), np.array([False, False, True]), seeded_generator(1))
    assert devices.epoch == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"epsilon": 0}, "epsilon is 0, must be from 1e-06 to 64"),
        ({"epsilon": "1"}, "epsilon is '1', must be a number"),
        ({"changes": -1}, "changes is -1, must be a whole number from 0 to 1023"),
        ({"changes": 1024}, "changes is 1024"),
        ({"changes": 2.0}, "changes is 2.0"),
        ({"signs": 0}, r"signs is 0, must be a whole number from 1 to changes \+ 1, 3"),
        ({"signs": 4}, "signs is 4"),
        ({"estimator": "best"}, "estimator is 'best'"),
        ({"domain": ("a",)}, "domain has 1 labels, must have from 2 to 4,096"),
        ({"domain": tuple(map(str, range((1 << 20) + 1)))}, "domain has 1,048,577 labels"),
        ({"domain": ("a", "b", "a")}, "domain has the label 'a' twice: take one of them out"),
        ({"domain": ("a", "")}, "domain has the label '', a label must have 1 to 100 printable"),
        ({"domain": ("a", " b")}, "no space at either end"),
        ({"domain": ("a", "b\n")}, r"domain has the label 'b\\n'"),
        ({"domain": ("a", "b" * 101)}, "1 to 100 printable characters"),
    ],
)
def test_a_job_that_cannot_be_is_refused_in_one_line(changed: dict[str, Any], message: str) -> None:
    fine: dict[str, Any] = {"epsilon": 1, "changes": 2, "domain": ("a", "b")}
    HadamardStreamParameters(**fine)
    with pytest.raises(ValueError, match=message) as refused:
        HadamardStreamParameters(**{**fine, **changed})
    assert "\n" not in str(refused.value)


def test_a_horizon_whose_orders_do_not_fit_a_word_is_refused() -> None:
    with pytest.raises(ValueError, match="a horizon of 4294967296 epochs"):
        law(last_epoch=2**32)


def test_large_domains_have_a_single_epoch() -> None:
    labels = tuple(map(str, range(5000)))
    asked = HadamardStreamParameters(1.0, 3, labels)
    with pytest.raises(ValueError, match="5,000 items, must be from 2 to 4,096; with a single"):
        calibrate(asked, last_epoch=2)
    assert calibrate(asked, last_epoch=1).rows == 8192


@pytest.mark.parametrize("items", [5_000, 100_000])
def test_items_asked_once_of_large_domains_are_off_as_far_as_they_say(items: int) -> None:
    """4.328 sqrt(n) at epsilon 1, twice JL-HH with a sampled row; a word has room for all rows."""
    users = 40_000
    one = calibrate(HadamardStreamParameters(1.0, 0, tuple(map(str, range(items)))), 1)
    assert (one.signs, one.frozen_share) == (1, 0.0)
    devices, aggregator = HadamardStream(one), HadamardStreamAggregator(one)
    devices.enrol(users, seeded_generator(1))
    again = HadamardStream.restore(one, devices.state_arrays(), 0)
    held = np.where(np.arange(users) % 2 == 0, items, np.arange(users) % items + 1)
    words = devices.report(1, held, None, seeded_generator(2))
    assert np.array_equal(again.report(1, held, None, seeded_generator(2)), words)
    assert one.rows // 2 <= int(words.max()) >> ORDER_BITS + 1 < one.rows
    aggregator.add(1, words, None)
    found = aggregator.estimate(1, Attendance.constant(1, users))
    assert found.standard_deviation == pytest.approx(4.328 * math.sqrt(users), rel=1e-3)
    errors = found.values - np.bincount(held, minlength=items + 1)[1:]
    assert np.square(errors).mean() == pytest.approx(
        found.standard_deviation**2, rel=7 * math.sqrt(2 / items)
    )
    with pytest.raises(ValueError, match="at epoch 1: row"):
        aggregator.check_words(1, np.array([[one.rows << ORDER_BITS + 1]], np.uint32))
