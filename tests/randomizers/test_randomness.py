from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from itertools import accumulate
from typing import cast

import numpy as np
import pytest
from scipy import stats

from dpstream.randomizers.draws import draw_categories, random_bits
from dpstream.randomizers.randomness import (
    _of_this_process,
    cryptographic_generator,
    keyed_generator,
    seeded_generator,
)

FALSE_ALARM = 1e-10


class Scripted:
    """Generator that returns the given random integers in order."""

    def __init__(self, words: list[int]) -> None:
        self.words = words

    def integers(
        self,
        low: int,
        high: int,
        size: int | None = None,
        dtype: type[np.uint64] = np.uint64,
        endpoint: bool = False,
    ) -> np.uint64 | np.ndarray[tuple[int], np.dtype[np.uint64]]:
        assert (low, high + endpoint) == (0, 2**64)
        if size is None:
            return np.uint64(self.words.pop(0))
        return np.array([self.words.pop(0) for _ in range(size)], np.uint64)

    def generator(self) -> np.random.Generator:
        return cast(np.random.Generator, self)


def test_generator_is_aes_128_in_counter_mode() -> None:
    # FIPS 197, appendix C.1: the block is the counter.
    key = bytes.fromhex("000102030405060708090a0b0c0d0e0f")
    block = bytes.fromhex("00112233445566778899aabbccddeeff")
    words = keyed_generator(key + block).integers(0, 1 << 64, 2, dtype=np.uint64)
    assert words.astype("<u8").tobytes().hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"


def test_key_of_another_length_is_rejected() -> None:
    with pytest.raises(ValueError, match="31 bytes; expected 32"):
        keyed_generator(bytes(31))
    with pytest.raises(ValueError, match="33 bytes; expected 32"):
        keyed_generator(bytes(33))


def test_cryptographic_generators_differ_and_seeded_generators_repeat() -> None:
    first, second = (cryptographic_generator().bytes(32) for _ in range(2))
    assert first != second
    assert seeded_generator(1, 2).bytes(32) == seeded_generator(1, 2).bytes(32)
    assert seeded_generator(1, 2).bytes(32) != seeded_generator(12).bytes(32)


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 1000])
def test_random_bits_have_the_requested_length(count: int) -> None:
    bits = random_bits(seeded_generator(3), count)
    assert bits.dtype == np.uint8
    assert bits.shape == (count,)
    assert set(bits.tolist()) <= {0, 1}


def test_random_bits_are_fair_at_every_position() -> None:
    bits = random_bits(seeded_generator(4), 64 * 4000).reshape(-1, 64)
    ones = bits.sum(axis=0)
    assert min(stats.binomtest(int(one), len(bits)).pvalue for one in ones) > FALSE_ALARM / 64
    assert not stats.binomtest(int(0.6 * len(bits)), len(bits)).pvalue > FALSE_ALARM / 64


@pytest.mark.parametrize(
    "masses",
    [
        [1],
        [3, 1],
        [0, 5, 0, 2, 0],
        [1, 2**200, 1, 2**199, 3],
        [2**64 - 1, 1],
        [1] * 40,
        [1 << (9 * step) for step in range(40)],
    ],
)
def test_drawn_category_changes_exactly_at_the_cumulative_masses(masses: list[int]) -> None:
    """A draw is a function of one uniform integer that changes exactly at the bounds.

    So a category has `scale * mass` of the `scale * total` accepted integers, and its probability
    is exactly mass / total.
    """
    total = sum(masses)
    lower_words = -(-total.bit_length() // 64)
    scale = 2 ** (64 * (lower_words + 1)) // total
    bounds = [0, *(scale * mass for mass in accumulate(masses))]
    for category, mass in enumerate(masses):
        if mass:
            for value in (bounds[category], bounds[category + 1] - 1):
                assert _draw(masses, value, lower_words) == category


def test_draw_from_the_largest_multiple_of_the_total_on_is_repeated() -> None:
    leftover = [2**64 - 1] * 2
    # 3 does not divide 2^128, so the largest value is rejected and the next draw decides.
    assert 2**128 % 3
    assert draw_categories([1, 2], 1, Scripted([*leftover, 0, 0]).generator()).tolist() == [0]
    assert draw_categories([1, 2], 1, Scripted([*leftover, 2**63, 0]).generator()).tolist() == [1]


def test_categories_are_drawn_in_proportion_to_their_masses() -> None:
    masses = [5, 0, 1, 10, 4]
    counts = np.bincount(draw_categories(masses, 200_000, seeded_generator(5)), minlength=5)
    drawn = [0, 2, 3, 4]
    assert counts[1] == 0
    expected = np.array(masses) * 10_000
    assert stats.chisquare(counts[drawn], expected[drawn]).pvalue > FALSE_ALARM
    skewed = np.array([5, 0, 1, 10.4, 3.6]) * 10_000
    assert stats.chisquare(counts[drawn], skewed[drawn]).pvalue < FALSE_ALARM


def _draw(masses: list[int], value: int, lower_words: int) -> int:
    words = [value >> 64 * place & (2**64 - 1) for place in reversed(range(lower_words + 1))]
    return int(draw_categories(masses, 1, Scripted(words).generator())[0])


def drawn_in_a_fork(draw: Callable[[], list[int]]) -> list[int]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, json.dumps(draw()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as said:
        words: list[int] = json.loads(said.read())
    assert os.waitpid(child, 0)[1] == 0
    return words


def test_forked_children_draw_different_random_integers() -> None:
    generators = [cryptographic_generator() for _ in range(2)]
    for generator in generators:
        generator.integers(0, 1 << 32, 3, dtype=np.uint32)

    def draw() -> list[int]:
        return [
            int(word)
            for generator in generators
            for word in (
                *generator.integers(0, 1 << 32, 4, dtype=np.uint32),
                *generator.integers(0, 1 << 63, 4),
            )
        ]

    children = [drawn_in_a_fork(draw) for _ in range(2)]
    grandchild = drawn_in_a_fork(lambda: drawn_in_a_fork(draw))
    words = [*draw(), *grandchild, *(word for child in children for word in child)]
    assert len(set(words)) == len(words) == 64


def test_fork_hook_does_not_retain_unreferenced_generators() -> None:
    before = len(_of_this_process())
    for _ in range(100):
        cryptographic_generator()
    gc.collect()
    assert len(_of_this_process()) <= before


def test_seeded_generator_is_the_same_in_a_forked_child() -> None:
    generator = seeded_generator(1)
    child = drawn_in_a_fork(lambda: generator.integers(0, 1000, 8).tolist())
    assert child == generator.integers(0, 1000, 8).tolist()
