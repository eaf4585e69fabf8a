"""Test rows of the Hadamard matrix: tracked Booleans, row draws, rejected parameters."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.linalg import hadamard

from dpstream.randomizers.hadamard_rows import MAX_ITEMS, check_labels, rows_for, tracked
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.value_stream import ValueStream
from dpstream.randomizers.value_stream.hadamard_values import (
    HadamardValues,
    HadamardValuesLaw,
    HadamardValuesParameters,
)
from dpstream.randomizers.value_stream.hadamard_values.calibration import calibrate

FALSE_ALARM = 1e-10


def law(items: int = 5, changes: int = 2, last_epoch: int = 8) -> HadamardValuesLaw:
    domain = tuple(f"item {number}" for number in range(1, items + 1))
    return calibrate(HadamardValuesParameters(2.0, changes, domain), last_epoch)


def enrolled(of: HadamardValuesLaw, count: int, seed: int = 1) -> HadamardValues:
    devices = HadamardValues(of)
    devices.enroll(count, seeded_generator(seed))
    return devices


@pytest.mark.parametrize("items", [2, 3, 4, 7, 20, MAX_ITEMS])
def test_tracked_booleans_are_entries_of_the_hadamard_matrix(items: int) -> None:
    rows = min(rows_for(items), 64)
    matrix = hadamard(rows_for(items))[:rows]
    row, item = np.indices((rows, items + 1)).reshape(2, -1)
    expected = (matrix[row, item] > 0) & (item > 0)
    assert np.array_equal(tracked(row.astype(np.uint16), item), expected)


@pytest.mark.parametrize("items", [2, 3, 4, 7, 20])
def test_each_device_tracks_one_boolean(items: int) -> None:
    devices = enrolled(law(items), 300)
    arrays = devices.state_arrays()
    rows = arrays["row"].astype(int)
    booleans = ValueStream.restore(
        devices.law.booleans,
        {name: array for name, array in arrays.items() if name != "row"},
        epoch=0,
    )
    matrix = hadamard(devices.law.rows)
    rng = np.random.default_rng(items)
    for epoch in range(1, 9):
        values = rng.integers(0, items + 1, 300)
        present = rng.random(300) < 0.8
        followed = np.where(values == 0, 0, (1 + matrix[rows, values]) // 2)
        symbols = booleans.report(epoch, followed, present, seeded_generator(2, epoch))
        found = devices.report(epoch, values, present, seeded_generator(2, epoch))
        assert found.dtype == HadamardValues.word_dtype
        assert found.shape == (np.count_nonzero(present), HadamardValues.width)
        assert found[:, 0].tolist() == (rows[present] * 256 + symbols[:, 0]).tolist()
    assert devices.exhausted == booleans.exhausted > 0


def test_rows_are_uniform_and_independent_of_noise() -> None:
    arrays = enrolled(law(5), 100_000).state_arrays()
    table = np.zeros((8, 2), np.int64)
    np.add.at(table, (arrays["row"].astype(np.intp), arrays["noise"].astype(np.intp)), 1)
    assert (table > 0).all()
    assert stats.chisquare(table.sum(axis=1)).pvalue > FALSE_ALARM
    assert stats.chi2_contingency(table).pvalue > FALSE_ALARM
    weighted = table.sum(axis=1) * np.linspace(0.9, 1.1, 8)
    assert stats.chisquare(weighted, sum_check=False).pvalue < FALSE_ALARM


def test_rows_of_the_largest_domain_fit_into_messages() -> None:
    devices = enrolled(law(MAX_ITEMS), 100_000)
    words = devices.report(8, np.full(100_000, MAX_ITEMS), None, seeded_generator(3))[:, 0]
    assert rows_for(MAX_ITEMS) == 8192
    assert len(np.unique(words >> 8)) > 8000
    assert (words >> 8).max() < 8192


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (("a",), "domain has 1 labels; expected 2 to 4,096"),
        (tuple(map(str, range(MAX_ITEMS + 1))), "domain has 4,097 labels"),
        (("a", "b", "a"), "domain has the label 'a' twice. Remove one of them"),
        (
            ("a", ""),
            ("domain has the label ''; expected 1 to 100 printable characters without leading or"),
        ),
        (("a", " b"), "printable characters without leading or trailing spaces"),
        (("a", "b\n"), r"domain has the label 'b\\n'"),
        (("a", "b" * 101), "1 to 100 printable characters"),
    ],
)
def test_invalid_labels_raise_a_one_line_error(labels: tuple[str, ...], message: str) -> None:
    check_labels(("a", "b"))
    with pytest.raises(ValueError, match=message) as rejected:
        check_labels(labels)
    assert "\n" not in str(rejected.value)
