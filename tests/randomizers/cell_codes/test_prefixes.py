from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpstream.randomizers.cell_codes.prefixes import PrefixCells, PrefixLevel
from dpstream.randomizers.randomness import seeded_generator

FALSE_ALARM = 1e-9


def levels(*pairs: tuple[int, int]) -> tuple[PrefixLevel, ...]:
    return tuple(PrefixLevel(*pair) for pair in pairs)


def test_an_item_raises_one_cell_on_each_level() -> None:
    code = PrefixCells(levels((4, 16), (9, 30), (12, 50)), seed="a")
    items = np.arange(1, (1 << 12) + 1)
    cells = code.encode(items)
    assert (code.cells, code.messages, code.bits) == (96, 3, 12)
    assert cells.shape == (len(items), 3)
    assert cells.dtype == np.int64
    assert (cells[:, 0] == (items - 1) >> 8).all()
    for index, (low, high) in enumerate([(0, 16), (16, 46), (46, 96)]):
        assert set(cells[:, index].tolist()) == set(range(low, high))


def test_items_with_a_prefix_in_common_share_its_cell() -> None:
    code = PrefixCells(levels((4, 16), (9, 30), (12, 50)), seed="a")
    cells = code.encode(np.arange(1, (1 << 12) + 1)).reshape(1 << 9, 8, 3)
    assert (cells[:, :, :2] == cells[:, :1, :2]).all()


def test_direct_levels_separate_and_hashed_ones_spread() -> None:
    direct = PrefixCells(levels((10, 1 << 10)), seed="a").encode(np.arange(1, 1025))
    assert direct[:, 0].tolist() == list(range(1024))
    items = np.unique(seeded_generator(1).integers(1, 1 << 56, 20_000))
    hashed = PrefixCells(levels((8, 256), (56, 100)), seed="a").encode(items)[:, 1] - 256
    counts = np.bincount(hashed, minlength=100)
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


def test_levels_and_seeds_have_hashes_of_their_own() -> None:
    items = seeded_generator(2).integers(1, 1 << 30, 1000)
    one, other = (PrefixCells(levels((29, 50), (30, 50)), seed=seed) for seed in "ab")
    assert (one.encode(items) != other.encode(items)).mean() > 0.9
    first, second = one.encode(items).T
    assert (first != second - 50).mean() > 0.9


def test_item_0_raises_no_cell() -> None:
    code = PrefixCells(levels((2, 4), (3, 5)), seed="a")
    assert code.encode(np.array([0, 1, 0]))[[0, 2]].tolist() == [[-1, -1], [-1, -1]]
    assert code.encode(np.zeros(0, np.int64)).shape == (0, 2)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ((), "without a level"),
        (((2, 4), (2, 3)), "longer"),
        (((2, 5),), "5 buckets"),
        (((2, 1),), "1 buckets"),
        (((0, 1),), "0 bits"),
        (((62, 9),), "62 bits"),
    ],
)
def test_impossible_levels_are_refused(pairs: tuple[tuple[int, int], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PrefixCells(levels(*pairs), seed="a")


@pytest.mark.parametrize("item", [-1, 9])
def test_items_out_of_range_are_refused(item: int) -> None:
    with pytest.raises(ValueError, match="items from"):
        PrefixCells(levels((2, 4), (3, 5)), seed="a").encode(np.array([1, item]))
