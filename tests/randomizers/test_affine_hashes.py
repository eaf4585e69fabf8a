"""Test hashes over a prime field: their directions, and how often two items share a bucket."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from scipy import stats

from dpstream.randomizers.affine_hashes import ROWS, AffineHashes
from dpstream.randomizers.randomness import seeded_generator

FALSE_ALARM = 1e-10

SMALL = [AffineHashes(*shape) for shape in [(2, 1), (2, 2), (2, 4), (3, 2), (3, 3), (5, 2), (7, 1)]]


def all_buckets(hashes: AffineHashes) -> list[list[int]]:
    items = np.arange(hashes.buckets**hashes.digits)
    return [
        hashes.buckets_of(np.full(len(items), direction), items).tolist()
        for direction in range(hashes.directions)
    ]


@pytest.mark.parametrize("hashes", SMALL, ids=repr)
def test_directions_are_distinct_and_buckets_are_inner_products(
    hashes: AffineHashes,
) -> None:
    vectors = [vector[::-1] for vector in product(range(hashes.buckets), repeat=hashes.digits)]
    expected = {
        tuple(sum(map(int.__mul__, along, vector)) % hashes.buckets for vector in vectors)
        for along in vectors
        if next((digit for digit in along if digit), 0) == 1
    }
    found = all_buckets(hashes)
    assert len(found) == hashes.directions == len(expected)
    assert set(map(tuple, found)) == expected


@pytest.mark.parametrize("hashes", SMALL, ids=repr)
def test_every_two_items_share_the_stated_fraction_of_messages(hashes: AffineHashes) -> None:
    by_item = list(zip(*all_buckets(hashes), strict=True))
    shared = {
        sum(a == b for a, b in zip(one, other, strict=True))
        for one, other in combinations(by_item, 2)
    }
    assert len(shared) == 1
    assert shared.pop() / hashes.directions == pytest.approx(hashes.overlap, rel=1e-15)


@pytest.mark.parametrize(
    ("buckets", "items"), [(11, 100), (3, 20), (3, 8), (2, 50), (5, 5), (5, 6)]
)
def test_items_share_the_stated_number_of_messages_for_any_row_length(
    buckets: int, items: int
) -> None:
    hashes = AffineHashes.for_items(buckets, items)
    rows = min(ROWS, buckets ** (hashes.digits - 1))
    assert -(-items // hashes.row) <= rows
    assert hashes.digits == 1 or hashes.row == -(-items // rows)
    found = [
        hashes.buckets_of(np.full(items, direction), np.arange(items))
        for direction in range(hashes.directions)
    ]
    shared = (np.stack(found)[:, :, None] == np.stack(found)[:, None, :]).sum(axis=0)
    others = shared[~np.eye(items, dtype=np.bool_)]
    assert (others == round(hashes.overlap * hashes.directions)).all()


@pytest.mark.slow
@pytest.mark.parametrize(("items", "buckets"), [(20, 5), (20, 3), (3, 2), (8, 11)])
def test_draw_is_uniform_over_the_messages_of_an_item(items: int, buckets: int) -> None:
    hashes, item = AffineHashes.for_items(buckets, items), items - 1
    words = hashes.draw(np.full(60_000, item), seeded_generator(1))
    directions = np.arange(hashes.directions)
    expected = directions * buckets + hashes.buckets_of(directions, np.full(len(directions), item))
    assert set(words.tolist()) == set(expected.tolist())
    counts = np.bincount(words, minlength=hashes.words)
    if len(expected) > 1:
        assert stats.chisquare(counts[expected]).pvalue > FALSE_ALARM
        # The test would detect a direction that is twice as likely as the others.
        counts[expected[0]] *= 2
        assert stats.chisquare(counts[expected]).pvalue < FALSE_ALARM


def test_buckets_do_not_overflow_in_large_fields() -> None:
    prime = 536_870_909
    hashes = AffineHashes(prime, 2)
    directions, items = np.array([prime, prime - 5]), np.array([prime**2 - 1, prime**2 - 2])
    expected = [(prime - 1 + (prime - 1) ** 2) % prime, (prime - 2 + (prime - 6) * (prime - 1))]
    assert hashes.buckets_of(directions, items).tolist() == [each % prime for each in expected]


@pytest.mark.parametrize(("buckets", "digits"), [(1, 1), (4, 2), (9, 1), (2**31 - 1, 1), (0, 1)])
def test_bucket_count_that_is_not_prime_is_rejected(buckets: int, digits: int) -> None:
    with pytest.raises(ValueError, match="expected a prime up to"):
        AffineHashes(buckets, digits)


@pytest.mark.parametrize(("buckets", "digits"), [(3, 0), (3, 40), (2, 62)])
def test_too_many_digits_are_rejected(buckets: int, digits: int) -> None:
    with pytest.raises(ValueError, match="expected at least 1, with at most"):
        AffineHashes(buckets, digits)
