"""Test exact counts: sums over hyperplanes, the Walsh-Hadamard transform, and buckets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.linalg import hadamard

from dpstream.aggregators import shuffled_item_counts as ways
from dpstream.aggregators.hadamard_values import walsh_hadamard
from dpstream.aggregators.hyperplane_sums import hyperplane_sums
from dpstream.aggregators.shuffled_item_counts import bucket_counts, by_lines, by_transform
from dpstream.randomizers.affine_hashes import AffineHashes
from dpstream.randomizers.point_spaces import PointSpace
from tests.support.projective_points import item_vector, word_vector

SPACES = [(2, 2), (2, 3), (2, 8), (3, 2), (3, 3), (3, 6), (5, 3), (5, 4), (11, 3), (101, 2)]


def by_pairs(space: PointSpace, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    numbers = range(space.points)
    of = (space.order, space.coordinates)
    items = np.array([item_vector(number, *of) for number in numbers])
    words = np.array([word_vector(number, *of) for number in numbers])
    inside: NDArray[np.bool_] = items @ words.T % space.order == 0
    return np.array([counts[row].sum() for row in inside])


@pytest.mark.parametrize(("order", "coordinates"), SPACES)
def test_hyperplane_sums_match_comparison_of_all_pairs(order: int, coordinates: int) -> None:
    space, rng = PointSpace(order, coordinates), np.random.default_rng(order)
    counts = rng.integers(0, 1000, space.points)
    expected = by_pairs(space, counts)
    for points in (1, 2, space.points // 2, space.points):
        assert (hyperplane_sums(space, counts, points) == expected[:points]).all()


@given(data=st.data())
def test_message_is_counted_for_every_item_whose_set_contains_it(data: st.DataObject) -> None:
    space = PointSpace(*data.draw(st.sampled_from([(2, 5), (3, 4), (5, 3), (7, 2)])))
    counts = np.zeros(space.points, np.int64)
    counts[data.draw(st.integers(0, space.points - 1))] = data.draw(st.integers(1, 1 << 62))
    found = hyperplane_sums(space, counts, space.points)
    assert found.tolist() == by_pairs(space, counts).tolist()
    assert np.count_nonzero(found) == space.block


def test_sums_beyond_float_precision_are_exact() -> None:
    space = PointSpace(3, 4)
    counts = np.arange(space.points, dtype=np.int64) + (1 << 56)
    assert (hyperplane_sums(space, counts, space.points) == by_pairs(space, counts)).all()


@pytest.mark.parametrize("size", [1, 2, 4, 64, 1024])
def test_transform_is_the_product_with_the_hadamard_matrix(size: int) -> None:
    values = np.random.default_rng(size).normal(size=(3, 2, size))
    before = values.copy()
    assert walsh_hadamard(values) == pytest.approx(values @ hadamard(size))
    assert (values == before).all()


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
