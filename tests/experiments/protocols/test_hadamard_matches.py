from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.linalg import hadamard

from experiments.protocols.hadamard_matches import (
    matches_by_equations,
    matches_by_item,
)


@st.composite
def windows(
    draw: st.DrawFn,
) -> tuple[int, NDArray[np.unsignedinteger], NDArray[np.uint32] | None]:
    bits = draw(st.integers(1, 9))
    width = draw(st.integers(1, 14))
    # With a few columns, most tuples have equal or dependent ones.
    columns = st.one_of(st.integers(0, 3), st.integers(0, (1 << bits) - 1))
    column = columns.map(lambda column: column % (1 << bits))
    rows = draw(st.lists(st.lists(column, min_size=width, max_size=width), max_size=30))
    dtype = draw(st.sampled_from([np.uint16, np.uint32] if bits > 8 else [np.uint8, np.uint16]))
    tuples = np.array(rows, dtype).reshape(-1, width)
    counted = draw(st.booleans())
    counts = draw(st.lists(st.integers(1, 2**32 - 1), min_size=len(rows), max_size=len(rows)))
    return bits, tuples, np.array(counts, np.uint32) if counted else None


@given(windows())
def test_both_matching_methods_agree_with_the_hadamard_matrix(
    window: tuple[int, NDArray[np.unsignedinteger], NDArray[np.uint32] | None],
) -> None:
    bits, tuples, counts = window
    positive = hadamard(1 << bits)[:, tuples] == 1
    inside = positive.all(axis=2)
    expected = inside @ (np.ones(len(tuples), np.int64) if counts is None else counts.astype(int))
    by_item = matches_by_item(tuples, counts, np.arange(1 << bits))
    by_equations = matches_by_equations(tuples, counts, bits)
    assert by_item.dtype == by_equations.dtype == np.int64
    assert by_item.tolist() == by_equations.tolist() == expected.tolist()
