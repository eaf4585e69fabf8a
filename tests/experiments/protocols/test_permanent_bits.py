from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.randomizers.noise_tables import binomial_table
from dpstream.randomizers.randomness import seeded_generator
from experiments.protocols.fragments import permanent_bits
from experiments.protocols.fragments.permanent_bits import (
    FlippedBits,
    PermanentBits,
    encrypt,
    input_blocks,
)


@pytest.mark.parametrize(
    ("key", "plain", "encrypted"),
    [
        # FIPS 197, appendix C.3.
        (
            "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
            "00112233445566778899aabbccddeeff",
            "8ea2b7ca516745bfeafc49904b496089",
        ),
        # NIST SP 800-38A, F.1.5, the first two blocks.
        (
            "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4",
            "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51",
            "f3eed1bdb5d2a03c064b5a7e3db181f8591ccb10d410ed26dc5ba74a31362870",
        ),
    ],
)
def test_blocks_match_the_aes_standard(key: str, plain: str, encrypted: str) -> None:
    assert encrypt(bytes.fromhex(key), bytes.fromhex(plain)).hex() == encrypted


def test_aes_input_blocks_contain_the_bit_and_the_cell_numbers() -> None:
    found = input_blocks(1, np.array([[0, 0x01020304]]))
    assert found.shape == (1, 2, 16)
    assert found.tobytes().hex() == (
        "667261676d656e740100000000000000" + "667261676d656e740100000004030201"
    )
    assert input_blocks(0, np.array([7])).tobytes().hex() == "667261676d656e740000000007000000"


def answer(key: NDArray[np.uint8], cell: int, bit: int, threshold: int) -> int:
    block = b"fragment" + bytes([bit, 0, 0, 0]) + (cell // 4).to_bytes(4, "little")
    word = encrypt(key.tobytes(), block)[4 * (cell % 4) :][:4]
    return bit ^ (int.from_bytes(word, "little") < threshold)


@pytest.mark.parametrize("cells", [1, 4, 7])
@pytest.mark.parametrize("slots", [1, 3])
def test_batch_of_devices_yields_the_same_answers_as_single_devices(
    cells: int, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, devices, threshold = seeded_generator(120, cells, slots), 40, 3 << 30
    keys = rng.integers(0, 256, (devices, 32), dtype=np.uint8)
    sets = np.zeros((devices, slots), np.int64)
    for device in range(devices):
        held = rng.permutation(cells)[: int(rng.integers(0, min(slots, cells) + 1))] + 1
        sets[device, : len(held)] = held
    expected = [
        sum(
            answer(key, cell, int(cell + 1 in held), threshold)
            for key, held in zip(keys, sets, strict=True)
        )
        for cell in range(cells)
    ]
    bits = PermanentBits(cells, threshold)
    assert bits.ones(keys, sets).tolist() == expected
    # The result is independent of the batch size.
    monkeypatch.setattr("experiments.protocols.fragments.permanent_bits._CHUNK_BYTES", 300)
    assert bits.ones(keys, sets).tolist() == expected
    assert bits.ones(keys[:0], sets[:0]).tolist() == [0] * cells


@pytest.mark.parametrize("bit", [0, 1])
def test_bit_is_flipped_if_its_random_integer_is_below_the_threshold(bit: int) -> None:
    key = seeded_generator(122).integers(0, 256, (1, 32), dtype=np.uint8)
    block = input_blocks(bit, np.zeros(1, np.int64)).tobytes()
    word = int.from_bytes(encrypt(key.tobytes(), block)[:4], "little")
    for threshold, expected in ((word, bit), (word + 1, 1 - bit)):
        assert PermanentBits(1, threshold).ones(key, np.array([[bit]])).tolist() == [expected]


def test_bits_are_flipped_with_the_threshold_probability() -> None:
    devices, cells = 2_000, 8
    probability = 0.25
    bits = PermanentBits(cells, int(probability * (1 << 32)))
    keys = seeded_generator(121).integers(0, 256, (devices, 32), dtype=np.uint8)
    nothing, everything = np.zeros((1, cells), np.int64), np.arange(1, cells + 1)[None]
    raised = np.array([bits.ones(key[None], nothing) for key in keys])
    lost = 1 - np.array([bits.ones(key[None], everything) for key in keys])
    for reversed_ in (raised, lost):
        assert stats.binomtest(int(reversed_.sum()), devices * cells, probability).pvalue > 1e-11
        assert stats.binomtest(int(reversed_.sum()), devices * cells, 0.22).pvalue < 1e-11
    for one, other in ((raised, lost), (raised[:, :-1], raised[:, 1:]), (lost[:-1], lost[1:])):
        both = int((one & other).sum())
        assert stats.binomtest(both, one.size, probability**2).pvalue > 1e-11
    assert not np.array_equal(raised[0], raised[1])


FALSE_ALARM = 1e-10
CELLS = 200_000


@pytest.mark.parametrize(("ones", "bits"), [(0, 1), (1, 1), (0, 5), (3, 5), (7, 7), (1_000, 2_500)])
def test_number_of_ones_is_the_sum_of_two_binomial_draws(ones: int, bits: int) -> None:
    probability = Fraction(1, 5)
    drawn = FlippedBits(probability).ones(
        np.full(CELLS, ones), bits, seeded_generator(90, ones, bits)
    )
    kept = stats.binom.pmf(np.arange(ones + 1), ones, 0.8)
    raised = stats.binom.pmf(np.arange(bits - ones + 1), bits - ones, 0.2)
    expected = CELLS * np.convolve(kept, raised)
    observed = np.bincount(drawn, minlength=bits + 1)
    assert fit(observed, expected) > FALSE_ALARM
    # The test detects a probability that is 2 % too small.
    kept = stats.binom.pmf(np.arange(ones + 1), ones, 0.804)
    raised = stats.binom.pmf(np.arange(bits - ones + 1), bits - ones, 0.196)
    assert fit(observed, CELLS * np.convolve(kept, raised)) < 1e-3


def fit(observed: np.ndarray, expected: np.ndarray) -> float:
    likely = expected > 20
    rest = observed[~likely].sum(), expected[~likely].sum()
    counted = np.append(observed[likely], rest[0]), np.append(expected[likely], rest[1])
    if counted[1][-1] < 1:
        counted = counted[0][:-1], counted[1][:-1] / expected[likely].sum() * observed[likely].sum()
    return float(stats.chisquare(*counted, sum_check=False).pvalue)


def test_number_of_reversed_bits_depends_on_the_bits_in_each_cell() -> None:
    bits = np.array([0, 1, 6, 1 << 20, (1 << 20) + 1])
    drawn = np.stack(
        [
            FlippedBits(Fraction(1, 2)).reversed(bits, seeded_generator(91, run))
            for run in range(400)
        ]
    )
    assert (drawn[:, 0] == 0).all()
    assert (drawn <= bits).all()
    standardized = (drawn.mean(axis=0)[1:] - bits[1:] / 2) / np.sqrt(bits[1:] / 4 / 400)
    assert (np.abs(standardized) < 7).all()


def test_binomial_draw_with_many_trials_is_a_sum_of_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permanent_bits, "_TABLE_DIGITS", 3)
    permanent_bits._table.cache_clear()
    drawn = FlippedBits(Fraction(1, 4)).reversed(np.full(CELLS, 37), seeded_generator(92))
    permanent_bits._table.cache_clear()
    expected = CELLS * stats.binom.pmf(np.arange(38), 37, 0.25)
    assert fit(np.bincount(drawn, minlength=38), expected) > FALSE_ALARM


def test_table_error_is_far_below_any_delta() -> None:
    assert FlippedBits(Fraction(1, 1_000_003)).distance((1 << 20) - 1) < 1e-30


@pytest.mark.parametrize(("digits", "draws"), [(24, [1, 1, 1, 1]), (2, [1, 1, 1, 2])])
def test_stated_table_error_is_the_sum_over_all_draws(
    digits: int, draws: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permanent_bits, "_TABLE_DIGITS", digits)
    permanent_bits._table.cache_clear()
    probability = Fraction(1, 3)
    stated = FlippedBits(probability).distance(11)
    permanent_bits._table.cache_clear()
    tables = [binomial_table(1 << min(place, digits), probability) for place in range(4)]
    all_of_them = sum(table.distance * times for table, times in zip(tables, draws, strict=True))
    assert 0 < all_of_them <= stated <= all_of_them * (1 + 1e-12)
