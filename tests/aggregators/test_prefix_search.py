from __future__ import annotations

import math

import numpy as np
import pytest

from dpstream.aggregators.heavy_hitters import HeavyHitters
from dpstream.aggregators.prefix_search import heavy_items
from dpstream.randomizers.cell_codes.prefixes import PrefixCells, PrefixLevel
from dpstream.randomizers.randomness import seeded_generator

NOISE = 110.0


def code_of(*pairs: tuple[int, int], seed: str = "test") -> PrefixCells:
    return PrefixCells(tuple(PrefixLevel(*pair) for pair in pairs), seed)


def search(
    code: PrefixCells, counts: dict[int, int], top: int, seed: int = 1, width: int | None = None
) -> HeavyHitters:
    cells = code.encode(np.array(list(counts), np.int64)).T
    sent = seeded_generator(seed).poisson(NOISE, code.cells).astype(np.int64)
    for level in cells:
        np.add.at(sent, level, np.array(list(counts.values()), np.int64))
    return heavy_items(code, sent, NOISE, NOISE, sum(counts.values()), top, width)


def population(seed: int, bits: int, heavy: int) -> dict[int, int]:
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
        assert estimate.standard_error is not None
        assert abs(estimate.value - counts[item]) < 6 * estimate.standard_error
        assert math.sqrt(NOISE) <= estimate.standard_error < 30
    # The threshold is above thousands of light items, and below all heavy items.
    assert 10 * 3 < found.detection_threshold < counts[found.items[-1]]


def test_prefix_search_of_pure_noise_rarely_finds_items() -> None:
    code = code_of((8, 256), (14, 2000), (20, 4000))
    listed = [search(code, {1: 1}, top=10, seed=seed).items for seed in range(30)]
    # Noise passes all levels in at most one search in 20, and there are three searches.
    assert sum(map(len, listed)) <= 2


def test_cell_of_an_accepted_item_is_not_counted_for_another_item() -> None:
    # The last level has so few buckets that every heavy cell has false candidates.
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


@pytest.mark.parametrize(
    ("heavy", "spread"),
    [(16, 0.0), (32, 0.0), (32, 0.05), (48, 0.3)],
    ids=["16 equal", "32 equal", "32 nearly equal", "48 of similar counts"],
)
def test_every_item_above_the_detection_threshold_is_listed(heavy: int, spread: float) -> None:
    above = missed = 0
    for seed in range(12):
        rng = seeded_generator(seed, heavy)
        items = rng.choice(1 << 20, heavy + 20_000, replace=False) + 1
        held = np.ones(len(items), np.int64)
        held[:heavy] = 80_000 / heavy * (1 + spread * rng.uniform(-1, 1, heavy))
        code = code_of((12, 797), (18, 797), (20, 1594), seed=f"equal {seed}")
        counts = dict(zip(items.tolist(), held.tolist(), strict=True))
        found = search(code, counts, top=64, seed=seed)
        surely = items[held > found.detection_threshold]
        above += len(surely)
        missed += len(set(surely.tolist()) - set(found.items.tolist()))
    # The probability is 95 %; items below the detection threshold have no guarantee.
    assert missed <= 0.05 * 12 * heavy / 2
    if heavy == 16 and not spread:
        assert above > 40


def test_invalid_queries_are_rejected() -> None:
    code = code_of((8, 256))
    with pytest.raises(ValueError, match=r"shape \(255,\); expected \(256,\)"):
        heavy_items(code, np.zeros(255, np.int64), 1.0, 1.0, 10, 1)
    for top, width in ((0, 5), (5, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            heavy_items(code, np.zeros(256, np.int64), 1.0, 1.0, 10, top, width)
    wide = code_of((8, 256), (40, 256))
    with pytest.raises(
        ValueError, match=("bits to the previous level and requires checking more than")
    ):
        heavy_items(wide, np.zeros(512, np.int64), 1.0, 1.0, 10, 1)
