"""Test sums over lines: all algorithms give the same, correct result."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators import shuffled_item_counts as ways
from dpstream.aggregators.shuffled_item_counts import bucket_counts, by_lines, by_transform
from dpstream.randomizers.affine_hashes import AffineHashes

SHAPES = [(2, 1), (2, 2), (2, 6), (3, 2), (3, 4), (5, 3), (31, 2), (101, 1)]


def received(hashes: AffineHashes) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    rng = np.random.default_rng((hashes.buckets, hashes.digits))
    words = np.flatnonzero(rng.random(hashes.words) < 0.5).astype(np.uint32)
    return words, rng.geometric(0.01, len(words))


@pytest.mark.parametrize(("buckets", "digits"), [shape for shape in SHAPES if shape[1] > 1])
@pytest.mark.parametrize(("chunk", "width"), [(3, None), (1 << 16, 1), (1 << 16, 2)])
def test_counting_by_lines_and_counting_by_a_transform_give_equal_counts(
    buckets: int, digits: int, chunk: int, width: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "_CHUNK", chunk)
    hashes = AffineHashes(buckets, digits, width)
    words, counts = received(hashes)
    long = words[words >= hashes.shorter.words].astype(np.int64) - hashes.shorter.words
    times = counts[words >= hashes.shorter.words]
    for above in {1, buckets ** (digits - 1)}:
        lines = by_lines(hashes, long, times, above)
        assert lines.tolist() == by_transform(hashes, long, times, above).tolist()
        assert lines.any()
        assert len(lines) == above * hashes.row


@pytest.mark.slow
def test_bucket_counts_of_a_million_items_are_exact() -> None:
    hashes = AffineHashes(1009, 2)
    rng = np.random.default_rng(1)
    words, counts = np.unique(rng.integers(0, hashes.words, 300_000), return_counts=True)
    counts *= 10**6
    found = bucket_counts(hashes, words, counts, 1009**2)
    items = rng.integers(0, 1009**2, 20)
    directions, buckets = np.divmod(words.astype(np.int64), hashes.buckets)
    for item in items.tolist():
        inside = hashes.buckets_of(directions, np.full(len(words), item)) == buckets
        assert found[item] == counts[inside].sum()
    assert found.sum() == counts.sum() * 1009
