"""Test pairwise hashes: the buckets of two numbers are independent over the hash functions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpstream.randomizers.pairwise_hash import PRIME, PairwiseHash
from dpstream.randomizers.randomness import seeded_generator
from tests.support.thinned import thinned

FALSE_ALARM = 1e-11
FUNCTIONS = 20_000
BUCKETS = 8
# Consecutive numbers, swapped digits, and digits at the ends of their range.
PAIRS = [
    (0, 1),
    (1, 2),
    (7, 7 << 31),
    (0, PRIME),
    (0, PRIME - 1),
    (PRIME - 1, PRIME),
    (5 << 31, (6 << 31) - 1),
    ((1 << 61) - 1, 1 << 61),
]


@pytest.mark.slow
@pytest.mark.parametrize("pair", thinned([(pair,) for pair in PAIRS], 4), ids=str)
def test_hashes_of_a_pair_are_independent_and_uniform(pair: tuple[int, int]) -> None:
    numbers, found = np.array(pair), np.zeros((BUCKETS, BUCKETS), np.int64)
    for index in range(FUNCTIONS):
        one, other = PairwiseHash.of(f"function {index}").buckets(numbers, BUCKETS)
        found[one, other] += 1
    assert stats.chisquare(found.ravel()).pvalue > FALSE_ALARM
    # One function for both digits, or a hash that ignores the text, would be detected.
    assert stats.chisquare(np.diag(found.sum(axis=1)).ravel()).pvalue < FALSE_ALARM


def test_collision_probability_is_within_its_bound() -> None:
    rng = seeded_generator(1)
    buckets, functions = 50, 4_000
    pairs = rng.integers(0, 1 << 61, (500, 2))
    pairs[:250, 1] = pairs[:250, 0] + rng.integers(1, 100, 250)
    collisions = 0
    for high, low, offset in rng.integers(0, PRIME, (functions, 3)).tolist():
        cells = PairwiseHash(high, low, offset).buckets(pairs, buckets)
        collisions += int(np.count_nonzero(cells[:, 0] == cells[:, 1]))
    trials = functions * len(pairs)
    # The tolerance is ten standard deviations of independent pairs.
    spread = 10 * np.sqrt(trials / buckets)
    assert abs(collisions - trials / buckets) < spread
    assert abs(collisions - 1.1 * trials / buckets) > spread


@pytest.mark.parametrize("number", [0, 1, PRIME - 1, PRIME, PRIME + 1, 1 << 40, 1 << 61])
def test_buckets_match_the_integer_formula(number: int) -> None:
    for each in (
        PairwiseHash(PRIME - 1, PRIME - 1, PRIME - 1),
        PairwiseHash.of("any"),
        PairwiseHash(0, 0, 0),
    ):
        high, low = divmod(number, PRIME)
        expected = (each.high * high + each.low * low + each.offset) % PRIME % 1_000
        # The bucket of a number is independent of other numbers in the same array.
        for numbers in ([number], [number, 0], [number, 1 << 61]):
            assert each.buckets(np.array(numbers, np.int64), 1_000)[0] == expected


def test_hash_round_trips_through_json() -> None:
    each = PairwiseHash.of("row 0")
    assert PairwiseHash.from_json(each.to_json()) == each
    assert each != PairwiseHash.of("row 1")
    for changes in ({"high": PRIME}, {"low": -1}, {"offset": 1.0}, {"low": True}):
        with pytest.raises(ValueError, match="expected 0 to 2147483646"):
            PairwiseHash.from_json({**each.to_json(), **changes})
    with pytest.raises(TypeError):
        PairwiseHash.from_json({"high": 1})


def test_empty_input_has_no_buckets() -> None:
    assert PairwiseHash.of("none").buckets(np.zeros(0, np.int64), 10).shape == (0,)
