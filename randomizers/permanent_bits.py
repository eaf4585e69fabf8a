"""Bits that a device draws once and for all, and need not keep: its key answers for each of them.

For every cell, and for each value that its bit may have, a device has one answer: the bit, or with
a small probability the opposite. An answer is a word of AES-256 under the key of the device, whose
input says of which cell and value it is. AES is a pseudorandom function, so that answers are as
good as drawn independently; and the same key answers the same, for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

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
