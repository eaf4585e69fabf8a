"""Test that all deserializers reject states that cannot result from reports."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import numpy as np
import pytest

from dpstream.aggregators.dyadic_tree import DyadicTree
from dpstream.aggregators.epoch_responses import EpochResponsesAggregator
from dpstream.aggregators.epoch_tables import EpochTables
from dpstream.aggregators.hadamard_values import HadamardValuesAggregator
from dpstream.aggregators.message_counts import MessageCounts
from dpstream.aggregators.shuffled_value_stream import ShuffledValueStreamAggregator
from dpstream.aggregators.value_stream import ValueStreamAggregator
from dpstream.randomizers import value_stream
from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import MOST_SUM
from dpstream.randomizers.shuffled_counts.shuffled_value_stream.calibration import (
    calibrate as calibrate_sums,
)
from dpstream.randomizers.value_stream import calibration as of_value_stream
from dpstream.randomizers.value_stream.hadamard_values import HadamardValuesParameters
from dpstream.randomizers.value_stream.hadamard_values.calibration import (
    calibrate as calibrate_items,
)
from experiments.protocols import baselines
from experiments.protocols.baselines import calibration as of_baselines

EPOCHS, CELLS = 8, 100
STREAM = of_value_stream.calibrate(value_stream.ValueStreamParameters(4.0, 2), EPOCHS)
ITEMS = calibrate_items(HadamardValuesParameters(2.0, 3, tuple("abcde"), 3), EPOCHS)
SPLIT = of_baselines.calibrate(baselines.SplitBudgetParameters(3 * math.log(3)), last_epoch=3)
SUMS = calibrate_sums(ShuffledCountsParameters(4, 1e-3, 2, dummies="shuffle"), EPOCHS, 100)


def integers(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


def tables(position: int, value: int) -> bytes:
    state = EpochTables(CELLS)
    for epoch, count in ((3, 1), (7, 300), (8, 1 << 40)):
        state.add(epoch, np.array([[5]], np.uint32), np.array([count], np.uint64))
    data = bytearray(state.to_bytes())
    data[position] = value
    return bytes(data)


def items_of(epoch: int, *sums: int) -> bytes:
    return integers(epoch, *sums, *[0] * (1 + ITEMS.rows - len(sums)))


def read_tables(data: bytes) -> object:
    return EpochTables.from_bytes(CELLS, EPOCHS, data)


def read_tree(data: bytes) -> object:
    return DyadicTree.from_bytes(32, 3, data)


def read_messages(data: bytes) -> object:
    return MessageCounts.from_bytes(np.dtype("<u4"), data, 0)


def read_stream(data: bytes) -> object:
    return ValueStreamAggregator.from_bytes(STREAM, data)


def read_items(data: bytes) -> object:
    return HadamardValuesAggregator.from_bytes(ITEMS, data)


def read_responses(data: bytes) -> object:
    return EpochResponsesAggregator.from_bytes(SPLIT, data)


def read_sums(data: bytes) -> object:
    return ShuffledValueStreamAggregator.from_bytes(SUMS, data)


@pytest.mark.parametrize(
    ("read", "data", "message"),
    [
        (read_tables, tables(0, 9), "epoch 9 follows epoch 0; expected"),
        (read_tables, tables(8, 99), "expected 100"),
        (
            read_tables,
            tables(2 * 17 + CELLS * 3, 9),
            "epoch 9 follows epoch 7; expected increasing",
        ),
        (read_tables, tables(-1, 0x80), r"count at epoch 8 is out of range; expected 0 to 2\^53"),
        (
            read_tree,
            integers(63 * 3, 1),
            ("cell 189 is out of range: a horizon of 32 epochs has 63 nodes with"),
        ),
        (read_tree, integers(2, 1, 2, 1), "tree cells are out of order"),
        *(
            (read_tree, integers(2, n), ("a count in a tree is out of range; expected 1 to 2"))
            for n in (-1, 0, 2**53 + 1)
        ),
        (read_messages, b"\0\0", "message counts are malformed at byte"),
        (read_messages, integers(2) + b"\1" + bytes(9), "message counts end at byte"),
        (read_messages, integers(2) + b"\1\5\0\0\0\5\0\0\0\1\1", "messages are out of order"),
        (read_messages, integers(1) + b"\1\5\0\0\0\0", "expected 1 to 2"),
        *(
            (read_stream, integers(1, *sums), "epoch 1: no set of symbols has the count, sum")
            for sums in ((1, 73, 73**2), (2, 3, 4), (2, 1, 2), (0, 0, 0), (-1, 0, 0))
        ),
        (read_stream, integers(EPOCHS + 1, 1, 0, 0), "expected increasing epochs from 1 to 8"),
        (read_items, items_of(1, 1, 73), "out of range for 1 symbols"),
        (read_items, items_of(1, 1, 40, -40), "out of range for 1 symbols"),
        (read_items, items_of(1, 0, 0), "out of range for 0 symbols"),
        (read_items, items_of(EPOCHS + 1, 1), "expected increasing epochs from 1 to 8"),
        (read_responses, integers(4, 1, 1), "counts of epoch 4 follow those of epoch 0; expected"),
        (read_responses, integers(1, 0, 0), r"expected 0 to 2\^53 each, and not both 0"),
        (read_sums, integers(0, 1, 0), "sums of epoch 0 follow those of epoch 0"),
        (read_sums, integers(EPOCHS + 1, 1, 0), "expected increasing epochs from 1 to 8"),
        (read_sums, integers(1, 0, 0), "0 sums of epoch 1 have an invalid total"),
        (read_sums, integers(1, 1, MOST_SUM + 1), "1 sums of epoch 1 have an invalid total"),
    ],
)
def test_invalid_state_bytes_are_rejected(
    read: Callable[[bytes], object], data: bytes, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read(data)
