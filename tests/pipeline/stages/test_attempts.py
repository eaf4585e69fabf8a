"""Chunks add up to an attempt, whose first chunk says of how many it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpstream.pipeline.stages.attempts import Attempts
from dpstream.topics.chunks import Chunk
from dpstream.topics.words import Words

ID = bytes(16)


def chunk(index: int, total: int) -> Chunk:
    return Chunk(ID, ID, 1, 0, ID, index, total, Words(np.ones((2, 1), np.uint8)))


def test_a_chunk_that_contradicts_the_first_one_is_refused_and_changes_nothing() -> None:
    added: list[int] = []
    attempts = Attempts(lambda: added, lambda content, each: content.append(each.index))
    assert attempts.take_in(5, chunk(0, 3)) is None
    for total in (1, 2, 4):
        with pytest.raises(ValueError, match=f"one of {total} chunks, the first was one of 3"):
            attempts.take_in(6, chunk(0 if total == 1 else 1, total))
    assert added == [0]
    assert attempts.take_in(7, chunk(1, 3)) is None
    assert attempts.take_in(8, replace(chunk(0, 2), attempt=b"\1" * 16)) is None
    done = attempts.take_in(9, chunk(2, 3))
    assert done is not None
    assert (done.first_offset, done.indices) == (5, {0, 1, 2})
