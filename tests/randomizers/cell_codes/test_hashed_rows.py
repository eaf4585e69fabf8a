"""Rows of buckets: one cell in each row, hashed independently."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpstream.randomizers.cell_codes.hashed_rows import HashedRows

FALSE_ALARM = 1e-11
CODE = HashedRows(10_000, 3, 40, "rows")


def test_an_item_has_a_cell_in_each_row_and_always_the_same() -> None:
    items = np.arange(1, CODE.size + 1)
    cells = CODE.encode(items)
    assert (CODE.cells, CODE.messages, CODE.shared) == (120, 3, 0)
    assert (cells // CODE.buckets == np.arange(3)).all()
    assert np.array_equal(HashedRows(10_000, 3, 40, "rows").encode(items[::-1])[::-1], cells)
    assert not np.array_equal(HashedRows(10_000, 3, 40, "other").encode(items), cells)


def test_buckets_of_different_rows_are_independent() -> None:
    buckets = CODE.encode(np.arange(1, CODE.size + 1)) % CODE.buckets
    for one, other in ((0, 1), (0, 2), (1, 2)):
        joint = np.bincount(buckets[:, one] * 40 + buckets[:, other], minlength=1600)
        # Affine maps spread numbers that follow each other more evenly than chance does.
        assert stats.chi2.sf(((joint - 6.25) ** 2 / 6.25).sum(), 1599) > FALSE_ALARM
        same = np.bincount(buckets[:, one] * 40 + buckets[:, one], minlength=1600)
        assert stats.chi2.sf(((same - 6.25) ** 2 / 6.25).sum(), 1599) < FALSE_ALARM


def test_a_histogram_has_a_bucket_for_every_item() -> None:
    code = HashedRows.histogram(5)
    assert code.direct
    assert not CODE.direct
    assert code.encode(np.array([5, 1])).tolist() == [[4], [0]]


@pytest.mark.parametrize("item", [0, -1, 10_001])
def test_other_items_are_refused(item: int) -> None:
    with pytest.raises(ValueError, match=f"item {item}, must be from 1 to 10000"):
        CODE.encode(np.array([1, item]))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"size": 0}, "size is 0"),
        ({"size": "9"}, "size is '9'"),
        ({"rows": 0}, "rows is 0, must be from 1 to 64"),
        ({"rows": 65}, "rows is 65"),
        ({"buckets": 0}, "buckets is 0"),
        ({"buckets": 1 << 25}, "buckets is 33554432"),
        ({"seed": ""}, "without hashes: a histogram of 10000 items"),
        ({"kind": "other"}, "kind is 'other'"),
    ],
)
def test_what_is_no_code_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        HashedRows.from_json({**CODE.to_json(), **changes})
