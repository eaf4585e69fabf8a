"""What all aggregators have in common that keep the words of every epoch as they came."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.law_aggregator import LawAggregator, check_form
from dpstream.aggregators.word_counts import WordCounts
from dpstream.topics.word_forms import WordForm

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


class WordsLaw(Protocol):
    """What has to be known of the constants of a job."""

    @property
    def last_epoch(self) -> int:
        """Number of epochs."""
        ...

    @property
    def word_form(self) -> WordForm:
        """Of messages, one word each."""
        ...


LawT = TypeVar("LawT", bound=WordsLaw)


class WordAggregator(LawAggregator[LawT], Generic[LawT]):
    """Counts of words; equal whatever the order, and however they were split and merged.

    Args:
        law: the constants of the job.
    """

    def __init__(self, law: LawT) -> None:
        super().__init__(law)
        self._received = EpochWords(law.word_form.dtype)

    @abstractmethod
    def _words(self, epoch: int) -> int:
        """How many words there are that may be received of an epoch, from 0 on."""

    def _changed(self, epoch: int) -> None:
        """Called when words of an epoch, and maybe of later ones, were added."""

    def check_words(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        """See that words can be reports of an epoch.

        Raises:
            ValueError: the epoch lies outside the horizon, the array has another dtype than the
                law's or another shape than (reports, 1), or there is no such word.
        """
        check_form(epoch, self.law.last_epoch, words, self.law.word_form.dtype)
        most, largest = self._words(epoch), int(words.max(initial=0))
        if largest >= most:
            raise ValueError(f"word {largest} at epoch {epoch}, must be below {most}")

    def _count(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        self._received.add(epoch, words[:, 0], counts)
        self._changed(epoch)

    def _merge(self, other: Self) -> None:
        self._received.merge(other._received)
        self._changed(min(other._received, default=self.law.last_epoch + 1))

    def to_bytes(self) -> bytes:
        """The words of all epochs; equal counts have equal bytes."""
        return self._received.to_bytes()

    @classmethod
    def from_bytes(cls, law: LawT, data: bytes) -> Self:
        """Read `to_bytes`.

        Raises:
            ValueError: the bytes are no counts of this law.
        """
        aggregator = cls(law)
        received = EpochWords.from_bytes(law.word_form.dtype, data)
        for epoch in received:
            aggregator.check_words(epoch, received.of(epoch).words[:, None])
        aggregator._received = received
        return aggregator
