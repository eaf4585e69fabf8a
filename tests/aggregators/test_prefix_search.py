from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.found_items import FoundItems
from dpstream.aggregators.prefix_search import heavy_items
from dpstream.randomizers.cell_codes.prefixes import PrefixCells, PrefixLevel
from dpstream.randomizers.open_domains import ShortStrings
from dpstream.randomizers.randomness import seeded_generator

NOISE = 110.0

Numbers = NDArray[np.int64]


def code_of(*pairs: tuple[int, int], seed: str = "test") -> PrefixCells:
    return PrefixCells(tuple(PrefixLevel(*pair) for pair in pairs), seed)


def search(
    code: PrefixCells, counts: dict[int, int], top: int, seed: int = 1, width: int | None = None
) -> FoundItems:
    """With Poisson noise in every cell and the messages of items that so many users hold."""
    cells = code.encode(np.array(list(counts), np.int64)).T
    sent = seeded_generator(seed).poisson(NOISE, code.cells).astype(np.int64)
    for level in cells:
        np.add.at(sent, level, np.array(list(counts.values()), np.int64))
    return heavy_items(code, sent, NOISE, NOISE, sum(counts.values()), top, width)


def population(seed: int, bits: int, heavy: int) -> dict[int, int]:
    """Heavy items with counts 20,000, 10,000, ... and many light ones."""
    items = np.unique(seeded_generator(seed).integers(1, 1 << bits, 30_000))
    items = seeded_generator(seed, 1).permutation(items)
    counts = np.full(len(items), 3)
    counts[:heavy] = 20_000 / np.arange(1, heavy + 1)
    return dict(zip(items.tolist(), counts.tolist(), strict=True))


@pytest.mark.parametrize(
    "code",
    [
        code_of((8, 256), (14, 2000), (20, 4000)),
        code_of((12, 2000), (16, 3000), (20, 4000)),
        code_of((10, 1024), (20, 8000)),
    ],
    ids=["three levels", "hashed first level", "two levels"],
)
def test_heavy_items_are_found_in_order_with_their_counts(code: PrefixCells) -> None:
    counts = population(5, bits=20, heavy=10)
    found = search(code, counts, top=10)
    assert list(found.items) == list(counts)[:10]
    for item, estimate in found.of_items():
        assert estimate.value is not None
        assert estimate.standard_deviation is not None
        assert abs(estimate.value - counts[item]) < 6 * estimate.standard_deviation
        assert math.sqrt(NOISE) <= estimate.standard_deviation < 30
    # Above the light items, which there are thousands of, and below all heavy ones.
    assert 10 * 3 < found.found_above < counts[found.items[-1]]


def test_more_wanted_than_there_are() -> None:
    counts = population(6, bits=20, heavy=5)
    found = search(code_of((8, 256), (14, 2000), (20, 4000)), counts, top=50)
    assert list(found.items) == list(counts)[:5]
    assert found.found_above < 400


def test_noise_alone_has_no_heavy_items() -> None:
    code = code_of((8, 256), (14, 2000), (20, 4000))
    listed = [search(code, {1: 1}, top=10, seed=seed).items for seed in range(30)]
    # Noise passes on every level in at most one search in 20, and here on three.
    assert sum(map(len, listed)) <= 2


def test_a_small_domain_is_searched_on_one_direct_level() -> None:
    counts = {3: 1000, 250: 700, 7: 500, 8: 1}
    found = search(code_of((8, 256)), counts, top=3)
    assert found.items.tolist() == [3, 250, 7]
    assert found.standard_deviation == math.sqrt(NOISE)


def test_siblings_are_told_apart() -> None:
    counts = {1000: 5000, 1001: 3000, 1003: 2000, 1 << 20: 4000}
    found = search(code_of((8, 256), (14, 2000), (20, 4000)), counts, top=4)
    assert found.items.tolist() == [1000, 1 << 20, 1001, 1003]


def test_a_cell_that_is_explained_supports_nobody_else() -> None:
    # So few buckets on the last level that every heavy cell has false candidates.
    code = code_of((10, 1024), (16, 1000))
    counts = population(7, bits=16, heavy=8)
    light = {item: count for item, count in counts.items() if count == 3}
    heavy = {item: count for item, count in counts.items() if count > 3}
    found = search(code, heavy | dict(list(light.items())[:500]), top=8)
    assert list(found.items) == list(heavy)
    prefixes = [(item - 1) >> 6 for item in heavy]
    candidates = (np.array(prefixes)[:, None] << 6) + np.arange(64) + 1
    shared = np.isin(
        code.encode(candidates.ravel())[:, 1], code.encode(np.array(list(heavy)))[:, 1]
    )
    assert shared.sum() > len(heavy)


def test_a_narrow_search_says_what_it_may_have_missed() -> None:
    code = code_of((8, 256), (14, 2000), (20, 4000))
    counts = population(8, bits=20, heavy=20)
    narrow = search(code, counts, top=20, width=5)
    missed = [count for item, count in counts.items() if item not in narrow.items]
    assert len(narrow.items) <= 5
    assert max(missed) < narrow.found_above


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_largest_item_is_found_when_it_is_asked_for_alone(seed: int) -> None:
    """With few cells, so many false prefixes share those of heavy items that they crowd it out."""
    code = code_of((12, 200), (21, 200), (30, 200), (31, 400))
    items = seeded_generator(seed, 2).integers(1, 1 << 31, 10).tolist()
    counts = {item: round(3000 * 0.7**rank) for rank, item in enumerate(items)}
    found = search(code, counts, top=1, seed=seed)
    assert found.items.tolist() == [items[0]]
    assert found.found_above < 3000
    narrow = search(code, counts, top=1, seed=seed, width=16)
    assert narrow.items.tolist() == []
    assert narrow.found_above > 3000


def test_frequent_words_are_found_among_rare_ones() -> None:
    words = {"the": 9000, "you": 7000, "that": 5000, "then": 3000, "it": 2500, "é": 2000}
    rare = {f"w{number}": 2 for number in range(5000)}
    domain = ShortStrings(5)
    numbers = domain.numbers([*words, *rare]).tolist()
    code = code_of((8, 256), (16, 2000), (24, 3000), (32, 3000), (40, 6000))
    counts = dict(zip(numbers, [*words.values(), *rare.values()], strict=True))
    cells = code.encode(np.repeat(np.array(numbers), list(counts.values()))).ravel()
    sent = np.bincount(cells, minlength=code.cells) + seeded_generator(3).poisson(NOISE, code.cells)
    found = heavy_items(
        code, sent, NOISE, NOISE, sum(counts.values()), top=6, possible=domain.possible
    )
    assert [domain.value(item) for item in found.items.tolist()] == list(words)


@pytest.mark.parametrize(
    ("heavy", "spread"),
    [(16, 0.0), (32, 0.0), (32, 0.05), (48, 0.3)],
    ids=["16 equal", "32 equal", "32 nearly equal", "48 of similar counts"],
)
def test_every_item_above_the_stated_count_is_listed_whatever_the_counts(
    heavy: int, spread: float
) -> None:
    """On levels as planned for Zipf's law."""
    above = missed = 0
    for seed in range(12):
        rng = seeded_generator(seed, heavy)
        items = rng.choice(1 << 20, heavy + 20_000, replace=False) + 1
        held = np.ones(len(items), np.int64)
        held[:heavy] = 80_000 / heavy * (1 + spread * rng.uniform(-1, 1, heavy))
        code = code_of((12, 797), (18, 797), (20, 1594), seed=f"equal {seed}")
        counts = dict(zip(items.tolist(), held.tolist(), strict=True))
        found = search(code, counts, top=64, seed=seed)
        surely = items[held > found.found_above]
        above += len(surely)
        missed += len(set(surely.tolist()) - set(found.items.tolist()))
    # A probability of 95 % is stated; of items without a stated count nothing is.
    assert missed <= 0.05 * 12 * heavy / 2
    if heavy == 16 and not spread:
        assert above > 40


def test_items_that_are_far_apart_are_listed_from_small_counts_on() -> None:
    counts = population(9, bits=20, heavy=20)
    found = search(code_of((12, 797), (18, 797), (20, 1594)), counts, top=64)
    assert found.items.tolist()[:20] == list(counts)[:20]
    assert found.found_above < 500


def test_wrong_questions_are_refused() -> None:
    code = code_of((8, 256))
    with pytest.raises(ValueError, match="for 256 cells"):
        heavy_items(code, np.zeros(255, np.int64), 1.0, 1.0, 10, 1)
    for top, width in ((0, 5), (5, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            heavy_items(code, np.zeros(256, np.int64), 1.0, 1.0, 10, top, width)
    wide = code_of((8, 256), (40, 256))
    with pytest.raises(ValueError, match="put levels between"):
        heavy_items(wide, np.zeros(512, np.int64), 1.0, 1.0, 10, 1)


def found_of(first: float, last: float) -> list[int]:
    """Item 1000, of which the two levels say so many deviations of their noise."""
    code = code_of((10, 1024), (20, 1 << 16))
    counts = np.zeros(code.cells)
    for cell, count in zip(code.encode(np.array([1000]))[0].tolist(), (first, last), strict=True):
        counts[cell] = count
    return list(heavy_items(code, counts, 0.0, 1.0, 10_000, 4).items)


def test_only_what_is_listed_has_to_stand_out_from_all_noise() -> None:
    # Of 1,024 prefixes noise alone takes 8 above 2.4 deviations, and one of 20 searches beyond 3.9;
    # of the 1,024 items of the one prefix that is left it takes hardly any above 3.9.
    assert found_of(3.0, 5.0) == [1000]
    assert found_of(2.0, 5.0) == []
    assert found_of(5.0, 3.0) == []
