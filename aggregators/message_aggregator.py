"""Base class of aggregators that store the received messages of every epoch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.law_aggregator import LawAggregator, check_format
from dpstream.aggregators.message_counts import MessageCounts
from dpstream.topics.message_formats import MessageFormat

_EPOCH_BYTES = 8


class EpochMessages:
    """A multiset of unsigned little-endian messages for every epoch.

    >>> received = EpochMessages(np.dtype("<u2"))
    >>> received.add(3, np.array([7, 5, 7], np.uint16), None)
    >>> received.of(3).counts.tolist(), received.of(4).messages, list(received)
    ([1, 2], 0, [3])
    """

    def __init__(self, dtype: np.dtype[np.unsignedinteger]) -> None:
        self._dtype = dtype
        self._received: dict[int, MessageCounts] = {}

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._received))

    def of(self, epoch: int) -> MessageCounts:
        return self._received.get(epoch, MessageCounts(self._dtype))

    def add(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.integer] | None,
    ) -> None:
        """Add messages, shape (n,), with multiplicities `counts`; None means 1 each."""
        if len(words):
            self._received.setdefault(epoch, MessageCounts(self._dtype)).add(words, counts)

    def merge(self, other: Self) -> None:
        for epoch in other:
            received = other.of(epoch)
            self.add(epoch, received.words, received.counts)

    def to_bytes(self) -> bytes:
        """Serialize epoch (uint64) and `MessageCounts.to_bytes` of every epoch with messages."""
        return b"".join(
            piece
            for epoch in self
            for piece in (epoch.to_bytes(_EPOCH_BYTES, "little"), *self.of(epoch).buffers())
        )

    @classmethod
    def from_bytes(cls, dtype: np.dtype[np.unsignedinteger], data: bytes) -> Self:
        words_by_epoch = cls(dtype)
        before, start = 0, 0
        while start < len(data):
            epoch = int.from_bytes(data[start : start + _EPOCH_BYTES], "little")
            received, start = MessageCounts.from_bytes(dtype, data, start + _EPOCH_BYTES)
            if epoch <= before:
                raise ValueError(f"epoch {epoch} after epoch {before}; expected increasing epochs")
            if not len(received.words):
                raise ValueError(f"epoch {epoch} has no messages; expected at least 1")
            words_by_epoch._received[epoch] = received
            before = epoch
        return words_by_epoch


class MessagesLaw(Protocol):
    @property
    def last_epoch(self) -> int: ...

    @property
    def message_format(self) -> MessageFormat: ...


LawT = TypeVar("LawT", bound=MessagesLaw)


class MessageAggregator(LawAggregator[LawT], Generic[LawT]):
    def __init__(self, law: LawT) -> None:
        super().__init__(law)
        self._received = EpochMessages(law.message_format.dtype)

    @abstractmethod
    def _words(self, epoch: int) -> int:
        """Return the number of possible messages at an epoch; messages are numbered from 0."""

    def _changed(self, epoch: int) -> None:
        """Handle new messages at an epoch, and possibly at later epochs."""

    def check_messages(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        check_format(epoch, self.law.last_epoch, words, self.law.message_format.dtype)
        most, largest = self._words(epoch), int(words.max(initial=0))
        if largest >= most:
            raise ValueError(f"message at epoch {epoch} is {largest}; expected 0 to {most - 1}")

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
        return self._received.to_bytes()

    @classmethod
    def from_bytes(cls, law: LawT, data: bytes) -> Self:
        aggregator = cls(law)
        received = EpochMessages.from_bytes(law.message_format.dtype, data)
        for epoch in received:
            aggregator.check_messages(epoch, received.of(epoch).words[:, None])
        aggregator._received = received
        return aggregator
