"""Test that counted messages represent as many messages as their counts state."""

from __future__ import annotations

import numpy as np

from dpstream.randomizers.counted_messages import CountedMessages, written_out
from dpstream.topics.messages import Messages


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
