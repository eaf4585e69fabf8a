"""Test that committed offsets count as completed work only if a worker committed them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dpstream.pipeline.kafka.workers import COMMITTED_BY, Committed, floor_of


@pytest.mark.parametrize(
    ("found", "committed", "floor"),
    [
        (None, None, 0),
        (SimpleNamespace(offset=-1, metadata=""), None, 0),
        (SimpleNamespace(offset=7, metadata=COMMITTED_BY), Committed(7), 7),
        # Tools that set offsets leave metadata empty, or write their own.
        (SimpleNamespace(offset=7, metadata=""), Committed(7, own=False), 0),
        (SimpleNamespace(offset=7, metadata=None), Committed(7, own=False), 0),
        (SimpleNamespace(offset=7, metadata="reset"), Committed(7, own=False), 0),
    ],
)
def test_committed_offset_of_another_program_is_ignored(
    found: Any, committed: Committed | None, floor: int
) -> None:
    assert Committed.of(found) == committed
    assert floor_of(committed) == floor
