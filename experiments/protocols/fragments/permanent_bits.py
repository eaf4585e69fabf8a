"""Permanent randomized bits of a device, derived from its key instead of stored.

For every cell, and for each possible value of its bit, a device has one answer: the bit itself or,
with a small probability, its opposite. The answer is determined by 32 bits of AES-256 output under
the device's key, for an input that identifies the cell and the value. AES is a pseudorandom
function, so answers are as good as independent draws. The same key always yields the same answers.

Each of n users has a bit for every cell, reversed with the same probability p. An observer of all
bits together sees only how many bits in each cell are 1. So this number is drawn directly: of c
bits that are 1, Binomial(c, p) are reversed, and of the other bits, Binomial(n - c, p). Drawing bit
by bit gives the same distribution.

A binomial draw with n trials is a sum of draws, one for each binary digit of n, from integer tables
(`dpstream.randomizers.noise_tables`).
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

_TABLE_DIGITS = 24


@dataclass(frozen=True, slots=True)
class FlippedBits:
    """Bits that are each reversed independently with `probability`.

    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> ones = np.array([0, 1_000_000])
    >>> FlippedBits(Fraction(1, 4)).ones(ones, 1_000_000, seeded_generator(1)).round(-4).tolist()
    [250000, 750000]
    """

    probability: Fraction

    def ones(
        self, ones: NDArray[np.int64], bits: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Draw the number of 1 bits in each cell after reversal: int64, shape (cells,).

        `ones` is the number before reversal, same shape, from 0 to `bits`. Each cell has `bits`
        bits, at most `MOST_TRIALS`.
        """
        lost = self.reversed(ones, rng)
        return ones - lost + self.reversed(bits - ones, rng)

    def reversed(self, bits: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw how many of `bits` bits are reversed in each cell: int64, shape (cells,)."""
        reversed_ = np.zeros(len(bits), np.int64)
        for digit in _digits(int(bits.max(initial=0))):
            table, times = _table(self.probability, digit)
            drawn = np.flatnonzero(bits >> digit & 1)
            for _ in range(times):
                reversed_[drawn] += table.draw(len(drawn), rng)
        return reversed_

    def distance(self, bits: int) -> float:
        """Return the maximum total variation distance of a draw for up to `bits` bits."""
        tables = (_table(self.probability, digit) for digit in _digits(bits))
        return sum(table.distance * times for table, times in tables)


def _digits(bits: int) -> range:
    digits = range(bits.bit_length())
    if digits and 1 << digits[-1] > MOST_TRIALS:
        raise ValueError(f"a cell has 2^{digits[-1]} bits; expected at most {MOST_TRIALS:,}")
    return digits


@lru_cache(maxsize=256)
def _table(probability: Fraction, digit: int) -> tuple[NoiseTable, int]:
    """Return a table and a number of draws, whose sum has 2^digit trials."""
    halvings = max(0, digit - _TABLE_DIGITS)
    return binomial_table(1 << digit - halvings, probability), 1 << halvings


KEY_BYTES: Final = 32
"""Bytes of an AES-256 key."""

WORD_BITS: Final = 32
"""Bits of an AES word, which determines an answer; a block has four, one for each of four cells."""

_BLOCK_BYTES = 16
_LANES = 8 * _BLOCK_BYTES // WORD_BITS
_PURPOSE = b"fragment"
_CHUNK_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class PermanentBits:
    """Permanent answers of devices for all cells.

    >>> bits = PermanentBits(cells=3, threshold=0)
    >>> bits.ones(np.zeros((2, 32), np.uint8), np.array([[1], [3]])).tolist()
    [1, 0, 1]

    Attributes:
        threshold: An answer reverses its bit if its uniform 32-bit integer is below this number.
    """

    cells: int
    threshold: int

    def ones(self, keys: NDArray[np.uint8], sets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the devices that answer 1, cell by cell: int64, shape (cells,).

        `keys` are uint8, shape (devices, 32). `sets` lists the cells whose bit is 1, numbered from
        1 and distinct, then zeros; int64, shape (devices, slots).
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
        """Count answers of 1; `words` are for bit 0 in all cells, then for bit 1 in `sets`."""
        raised = words[:, : self.cells] < self.threshold
        rows, slots = np.nonzero(sets)
        cells = sets[rows, slots] - 1
        kept = words[rows, of_zeros + _LANES * slots + cells % _LANES] >= self.threshold
        ones: NDArray[np.int64] = raised.sum(axis=0, dtype=np.int64)
        ones += np.bincount(cells[kept], minlength=self.cells)
        ones -= np.bincount(cells[raised[rows, cells]], minlength=self.cells)
        return ones


def input_blocks(bit: int, numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the AES input blocks of the answers for a bit value, four cells per block.

    A block consists of the purpose (8 bytes), the value of the bit (1), zeros (3), and the block
    number (4, little-endian): the index of its first cell, from 0, divided by four. The result is
    uint8, shape `numbers.shape` + (16,).
    """
    blocks = np.zeros((*numbers.shape, _BLOCK_BYTES), np.uint8)
    blocks[..., :8] = np.frombuffer(_PURPOSE, np.uint8)
    blocks[..., 8] = bit
    blocks[..., 12:] = numbers.astype("<u4")[..., None].view(np.uint8)
    return blocks


def _words(keys: NDArray[np.uint8], shared: bytes, own: NDArray[np.uint8]) -> NDArray[np.uint32]:
    encrypted = b"".join(
        encrypt(key.tobytes(), shared + blocks.tobytes())
        for key, blocks in zip(keys, own, strict=True)
    )
    return np.frombuffer(encrypted, "<u4").reshape(len(keys), -1)


def encrypt(key: bytes, blocks: bytes) -> bytes:
    """Encrypt each 16-byte block separately by AES-256 (FIPS 197); no block may occur twice."""
    return Cipher(algorithms.AES256(key), modes.ECB()).encryptor().update(blocks)
