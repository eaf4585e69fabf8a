"""Test that sets are checked before any draw: a set that is too large would lose too much."""

from __future__ import annotations

import numpy as np
import pytest

from dpstream.randomizers.counted_messages import CountedMessages, written_out
from dpstream.randomizers.given_sets import checked_sets, set_rows
from dpstream.topics.messages import Messages


def test_device_with_too_many_items_is_rejected() -> None:
    values = np.array([[1, 2, 0], [3, 3, 1], [4, 5, 6]])
    users, items = checked_sets(7, values, np.array([True, True, False]), 3, most=2)
    assert list(zip(users.tolist(), items.tolist(), strict=True)) == [
        (0, 1),
        (0, 2),
        (1, 1),
        (1, 3),
    ]
    with pytest.raises(ValueError, match="device 2 has 3 items at epoch 7; expected at most 2"):
        checked_sets(7, values, None, 3, most=2)


@pytest.mark.parametrize("values", [[[-1, 2]], [[2, -1]], [[-1, -2]]])
def test_negative_item_is_rejected(values: list[list[int]]) -> None:
    with pytest.raises(
        ValueError, match=r"item -\d at epoch 7 is out of range: items are numbered from 1"
    ):
        checked_sets(7, np.array(values), None, 1, most=2)


def test_item_outside_the_domain_is_rejected() -> None:
    values = np.array([[3, 1], [0, 2]])
    assert set_rows(7, values, None, 2, most=2, domain=3).tolist() == [[1, 3], [2, 0]]
    with pytest.raises(ValueError, match="item 3 at epoch 7 is out of range: there are"):
        set_rows(7, values, None, 2, most=2, domain=2)


def test_counted_messages_represent_a_table_of_counts() -> None:
    counted = CountedMessages.of_cells(np.array([0, 3, 0, 1, 0]), np.dtype("<u4"))
    assert counted.values.tolist() == [[1], [3]]
    assert counted.values.dtype == counted.counts.dtype == np.dtype("<u4")
    assert counted.messages == 4
    assert written_out(counted).tolist() == [[1], [1], [1], [3]]
    assert written_out(counted.values) is counted.values
    assert Messages(counted.values, counted.counts).messages == 4


def test_empty_table_has_no_messages() -> None:
    counted = CountedMessages.of_cells(np.zeros(4, np.int64), np.dtype("<u2"))
    assert counted.messages == 0
    assert counted.written_out().shape == (0, 1)
