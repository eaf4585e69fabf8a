"""Words received, epoch by epoch, where there are too many different ones for tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.word_counts import WordCounts

_EPOCH_BYTES = 8


class EpochWords:
    """A multiset of words for every epoch.

    >>> received = EpochWords(np.dtype("<u2"))
    >>> received.add(3, np.array([7, 5, 7], np.uint16), None)
    >>> received.of(3).counts.tolist(), received.of(4).messages, list(received)
    ([1, 2], 0, [3])

    Args:
        dtype: of the words, unsigned and little-endian.
    """

    def __init__(self, dtype: np.dtype[np.unsignedinteger]) -> None:
        self._dtype = dtype
        self._received: dict[int, WordCounts] = {}

    def __iter__(self) -> Iterator[int]:
        """Epochs with words, ascending."""
        return iter(sorted(self._received))

    def of(self, epoch: int) -> WordCounts:
        """What was received in an epoch."""
        return self._received.get(epoch, WordCounts(self._dtype))

    def add(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.integer] | None,
    ) -> None:
        """Add words, shape (n,), each once or as often as `counts`, shape (n,), says."""
        if len(words):
            self._received.setdefault(epoch, WordCounts(self._dtype)).add(words, counts)

    def merge(self, other: Self) -> None:
        """Add what was added to another one."""
        for epoch in other:
            received = other.of(epoch)
            self.add(epoch, received.words, received.counts)

    def to_bytes(self) -> bytes:
        """For every epoch with words: epoch (u8) and `WordCounts.to_bytes`; ascending."""
        return b"".join(
            piece
            for epoch in self
            for piece in (epoch.to_bytes(_EPOCH_BYTES, "little"), *self.of(epoch).buffers())
        )

    @classmethod
    def from_bytes(cls, dtype: np.dtype[np.unsignedinteger], data: bytes) -> Self:
        """Read `to_bytes`.

        Raises:
            ValueError: the bytes are something else.
        """
        words_by_epoch = cls(dtype)
        before, start = 0, 0
        while start < len(data):
            epoch = int.from_bytes(data[start : start + _EPOCH_BYTES], "little")
            received, start = WordCounts.from_bytes(dtype, data, start + _EPOCH_BYTES)
            if epoch <= before or not len(received.words):
                raise ValueError(f"counts of epoch {epoch} after those of epoch {before}, or none")
            words_by_epoch._received[epoch] = received
            before = epoch
        return words_by_epoch
