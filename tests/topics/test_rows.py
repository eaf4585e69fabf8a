"""Rows are read as tuples are, and held as arrays."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpstream.topics.frames import U4_MAX, CodecError
from dpstream.topics.manifests import Fate, Manifest, decode_manifest, encode_manifest
from dpstream.topics.rows import Row


@given(st.lists(st.integers(0, U4_MAX)), st.lists(st.integers(0, U4_MAX)), st.integers(-9, 9))
def test_a_row_is_what_a_tuple_is(values: list[int], others: list[int], cut: int) -> None:
    row, plain = Row[int](np.array(values, np.uint32)), tuple(values)
    assert (row == plain, plain == row, row == Row[int](np.array(values, np.int64))) == (True,) * 3
    assert (row == tuple(others), row == 3) == (plain == tuple(others), False)
    assert (hash(row), repr(row), len(row), sum(row)) == (
        hash(plain), repr(plain), len(plain), sum(plain),
    )  # fmt: skip
    assert (row[cut:], [*row], bool(row)) == (plain[cut:], [*plain], bool(plain))
    assert all(type(value) is int for value in row)
    assert {row} == {plain}
    assert pickle.loads(pickle.dumps(row)) == plain
    assert np.array(row, np.int64).tolist() == values


def test_nobody_changes_a_row() -> None:
    row = Row[int](np.array([1, 2], np.uint32))
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(row)[0] = 7
    with pytest.raises(TypeError):
        row[0] = 7  # type: ignore[index]
    np.array(row)[0] = 7
    assert row == (1, 2)


def manifest(populations: object, population: int) -> Manifest:
    inside = np.ones(len(populations), np.bool_)  # type: ignore[arg-type]
    return Manifest(
        bytes(16), bytes(16), 1, Fate.RELEASED, 0, 1, 1, inside, populations, 1, population, 0,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize("make", [list, np.array, lambda values: np.array(values, object)])
def test_what_has_no_room_in_a_manifest_is_refused_however_it_is_given(make: object) -> None:
    assert callable(make)
    for values, problem in (
        ([1, -1], "smallest population is -1"),
        ([U4_MAX + 1, 1], f"largest population is {U4_MAX + 1}"),
        ([U4_MAX] * 3, f"population is {3 * U4_MAX - 1}, must be {3 * U4_MAX}"),
    ):
        with pytest.raises(CodecError, match=problem):
            manifest(make(values), sum(values) - 1)
    most = manifest(make([U4_MAX] * 3), 3 * U4_MAX)
    assert most == manifest((U4_MAX,) * 3, 3 * U4_MAX)
    assert decode_manifest(encode_manifest(most)) == most


def test_a_manifest_of_ten_thousand_takes_as_much_memory_as_its_record() -> None:
    made = manifest(np.full(10_000, 1_000, np.uint32), 10**7)
    held = sum(sys.getsizeof(np.asarray(row).base) for row in (made.producers, made.populations))
    assert held < 60_000
