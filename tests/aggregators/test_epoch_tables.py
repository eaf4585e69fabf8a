"""Counts of cells: the same whatever way they came, and read back or refused."""

from __future__ import annotations

import numpy as np
import pytest

from dpstream.aggregators.epoch_tables import EpochTables

CELLS, EPOCHS = 100, 8


def words(*cells: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint32]]:
    return np.array(cells, np.uint32).reshape(-1, 1)


def filled() -> EpochTables:
    state = EpochTables(CELLS)
    state.add(3, words(0, 99, 99), None)
    state.add(7, words(5), np.array([300], np.uint32))
    state.add(8, words(6, 7), np.array([1 << 40, 70_000], np.uint64))
    return state


def test_bytes_are_read_back_at_every_width_and_are_as_narrow_as_counts_allow() -> None:
    state = filled()
    data = state.to_bytes()
    again = EpochTables.from_bytes(CELLS, EPOCHS, data)
    assert again == state
    assert again.epochs == [3, 7, 8]
    assert again.to_bytes() == data
    assert len(data) == 3 * 17 + CELLS * (1 + 2 + 8)
    again.add(3, words(0), None)
    assert again != state


def test_an_empty_state_has_no_bytes() -> None:
    assert EpochTables(CELLS).to_bytes() == b""
    assert EpochTables.from_bytes(CELLS, EPOCHS, b"") == EpochTables(CELLS)


@pytest.mark.parametrize(
    ("position", "value", "complaint"),
    [
        (0, 9, "out of order"),
        (0, 0, "out of order"),
        (8, 99, "expected 100"),
        (16, 3, "expected 100"),
        (17 + CELLS, 3, "out of order"),
        (2 * 17 + CELLS * 3, 9, "beyond 8"),
        (-1, 0x80, "from 0 to 2"),
        (-1, 0x01, "from 0 to 2"),
    ],
)
def test_altered_bytes_are_refused(position: int, value: int, complaint: str) -> None:
    data = bytearray(filled().to_bytes())
    data[position] = value
    with pytest.raises(ValueError, match=complaint):
        EpochTables.from_bytes(CELLS, EPOCHS, bytes(data))


def test_bytes_of_other_cells_are_refused() -> None:
    with pytest.raises(ValueError, match="100 counts of 1 bytes, expected 99"):
        EpochTables.from_bytes(99, EPOCHS, filled().to_bytes())
