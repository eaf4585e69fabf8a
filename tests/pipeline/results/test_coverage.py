"""Test coverage over time, including users who change more often than intervals assume."""

from __future__ import annotations

import numpy as np
import pytest

from dpstream.pipeline.devices.bad_rows import BadRows
from dpstream.pipeline.devices.change_log import ChangeLog
from dpstream.pipeline.protocols.change_limits import ChangeLimit
from dpstream.pipeline.results.coverage import (
    used_up,
)

FOUR_EPOCHS = 4


def log_of(rows: list[tuple[int, int, int]], last_epoch: int) -> ChangeLog:
    rows = sorted(rows, key=lambda row: (row[1], row[0]))
    users, epochs, values = np.array(rows).T
    names = tuple(f"u{user}" for user in range(users.max() + 1))
    return ChangeLog(
        names, epochs.astype(np.int32), users.astype(np.int32), values.astype(np.int8),
        last_epoch, 0, BadRows("log.csv"),
    )  # fmt: skip


TOGGLING = [(0, 1, 1), (0, 3, 0), (0, 5, 1), (0, 6, 0), (1, 2, 1), (2, 4, 1), (2, 8, 0)]


@pytest.mark.parametrize(
    ("changes", "horizon", "free", "epochs"),
    [
        (1, 8, False, [3, 8]),
        (2, 8, False, [5]),
        (2, 8, True, [6]),
        (4, 8, False, []),
        # From epoch 5, all users start again at 0, so that a value of 1 is a change.
        (1, FOUR_EPOCHS, False, [3, 6, 8]),
        (0, FOUR_EPOCHS, False, [1, 2, 4, 5, 5, 5]),
    ],
)
def test_first_epoch_with_a_change_beyond_the_limit_is_found(
    changes: int, horizon: int, free: bool, epochs: list[int]
) -> None:
    limit = ChangeLimit(changes, "delayed", first_is_free=free)
    assert used_up(log_of(TOGGLING, 8), limit, horizon).tolist() == epochs
