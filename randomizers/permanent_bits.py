"""Bits that a device draws once and for all, and need not keep: its key answers for each of them.

For every cell, and for each value that its bit may have, a device has one answer: the bit, or with
a small probability the opposite. An answer is a word of AES-256 under the key of the device, whose
input says of which cell and value it is. AES is a pseudorandom function, so that answers are as
good as drawn independently; and the same key answers the same, for ever.

The bits of many users, each reversed with the same probability, are counted cell by cell. Of n
users each has a bit for every cell. What an observer of all of them together sees of a cell is how
many bits are 1, and that is drawn at once: of c bits that are 1 Binomial(c, p) are reversed, and
Binomial(n - c, p) of the others. Drawing it for all users together or for each of them gives the
same law.

A binomial number of n trials is a sum of one for each binary digit of n, drawn from tables made in
integers (`dpstream.randomizers.noise_tables`).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from dpstream.randomizers.noise_tables import NoiseTable, binomial_table

MOST_TRIALS: Final = 1 << 40
"""Of one binomial number."""

_TABLE_DIGITS = 24


@dataclass(frozen=True, slots=True)
class FlippedBits:
    """The law of bits that are each reversed on their own.

    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> ones = np.array([0, 1_000_000])
    >>> FlippedBits(Fraction(1, 4)).ones(ones, 1_000_000, seeded_generator(1)).round(-4).tolist()
    [250000, 750000]

    Attributes:
        probability: that a bit is reversed, above 0 and below 1.
    """

    probability: Fraction

    def ones(
        self, ones: NDArray[np.int64], bits: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """How many bits of each cell are 1 afterwards.

        Args:
            ones: how many are before, int64, shape (cells,), from 0 to `bits`.
            bits: how many each cell has, at most `MOST_TRIALS`.
            rng: cryptographic randomness; seeded in tests only.

        Returns:
            int64, shape (cells,).
        """
        lost = self.reversed(ones, rng)
        return ones - lost + self.reversed(bits - ones, rng)

    def reversed(self, bits: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """How many of so many bits are reversed: binomial numbers, int64, shape (cells,)."""
        reversed_ = np.zeros(len(bits), np.int64)
        for digit in _digits(int(bits.max(initial=0))):
            table, times = _table(self.probability, digit)
            drawn = np.flatnonzero(bits >> digit & 1)
            for _ in range(times):
                reversed_[drawn] += table.draw(len(drawn), rng)
        return reversed_

    def distance(self, bits: int) -> float:
        """How far one number drawn of up to so many bits is from its law, in total variation."""
        tables = (_table(self.probability, digit) for digit in _digits(bits))
        return sum(table.distance * times for table, times in tables)


def _digits(bits: int) -> range:
    """Where a number of bits has digits; seconds of tables are not made for one too large."""
    digits = range(bits.bit_length())
    if digits and 1 << digits[-1] > MOST_TRIALS:
        raise ValueError(f"2^{digits[-1]} bits in a cell, must be at most {MOST_TRIALS:,}")
    return digits


@lru_cache(maxsize=256)
def _table(probability: Fraction, digit: int) -> tuple[NoiseTable, int]:
    """Binomial numbers of 2^digit trials: a table, and how many draws make one."""
    halvings = max(0, digit - _TABLE_DIGITS)
    return binomial_table(1 << digit - halvings, probability), 1 << halvings


KEY_BYTES: Final = 32
"""Of AES-256."""

WORD_BITS: Final = 32
"""Of the word that decides an answer; a block has four, for cells that follow each other."""

_BLOCK_BYTES = 16
_LANES = 8 * _BLOCK_BYTES // WORD_BITS
_PURPOSE = b"fragment"
_CHUNK_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class PermanentBits:
    """The answers of devices about all cells.

    >>> bits = PermanentBits(cells=3, threshold=0)
    >>> bits.ones(np.zeros((2, 32), np.uint8), np.array([[1], [3]])).tolist()
    [1, 0, 1]

    Attributes:
        cells: how many there are.
        threshold: an answer is the opposite of its bit if its word, uniform below 2^32, is smaller.
    """

    cells: int
    threshold: int

    def ones(self, keys: NDArray[np.uint8], sets: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many devices answer 1, cell by cell.

        Args:
            keys: uint8, shape (devices, 32).
            sets: cells whose bit is 1, from 1 on and each once, then zeros; int64, shape (devices,
                slots).

        Returns:
            int64, shape (cells,).
        """
        zeros = input_blocks(0, np.arange(-(-self.cells // _LANES)))
        held = input_blocks(1, np.maximum(sets - 1, 0) // _LANES)
        devices = max(1, _CHUNK_BYTES // (zeros.size + held[:1].size))
        ones = np.zeros(self.cells, np.int64)
        for start in range(0, len(sets), devices):
            chunk = slice(start, start + devices)
            words = _words(keys[chunk], zeros.tobytes(), held[chunk])
            ones += self._ones(words, zeros.size // 4, sets[chunk])
        return ones

    def _ones(
        self, words: NDArray[np.uint32], of_zeros: int, sets: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The same from words, of bits that are 0 and then of those that are 1."""
        raised = words[:, : self.cells] < self.threshold
        rows, slots = np.nonzero(sets)
        cells = sets[rows, slots] - 1
        kept = words[rows, of_zeros + _LANES * slots + cells % _LANES] >= self.threshold
        ones: NDArray[np.int64] = raised.sum(axis=0, dtype=np.int64)
        ones += np.bincount(cells[kept], minlength=self.cells)
        ones -= np.bincount(cells[raised[rows, cells]], minlength=self.cells)
        return ones


def input_blocks(bit: int, numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """What is encrypted for the answers to a value of four cells each.

    The purpose (8 bytes), the value of the bit (1), zeros (3), and the number of the block (4,
    little-endian), which is that of its first cell, from 0 on, over four.

    Args:
        bit: 0 or 1.
        numbers: of the blocks.

    Returns:
        uint8, the shape of `numbers` and 16.
    """
    blocks = np.zeros((*numbers.shape, _BLOCK_BYTES), np.uint8)
    blocks[..., :8] = np.frombuffer(_PURPOSE, np.uint8)
    blocks[..., 8] = bit
    blocks[..., 12:] = numbers.astype("<u4")[..., None].view(np.uint8)
    return blocks


def _words(keys: NDArray[np.uint8], shared: bytes, own: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """All blocks of each device, encrypted: uint32, shape (devices, words)."""
    encrypted = b"".join(
        encrypt(key.tobytes(), shared + blocks.tobytes())
        for key, blocks in zip(keys, own, strict=True)
    )
    return np.frombuffer(encrypted, "<u4").reshape(len(keys), -1)


def encrypt(key: bytes, blocks: bytes) -> bytes:
    """AES-256 of every block of 16 bytes by itself (FIPS 197); no block may come twice."""
    return Cipher(algorithms.AES256(key), modes.ECB()).encryptor().update(blocks)
