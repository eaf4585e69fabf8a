"""Base class of aggregators: count the messages of one mechanism."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

LawT = TypeVar("LawT")


class LawAggregator(ABC, Generic[LawT]):
    """Count messages; the state is independent of input order, splits and merges."""

    def __init__(self, law: LawT) -> None:
        self.law = law

    @abstractmethod
    def check_messages(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        """Raise `ValueError` if messages, shape (n, width), are invalid for an epoch."""

    @abstractmethod
    def _count(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        """Count messages that `check_messages` accepts; there is at least one."""

    @abstractmethod
    def _merge(self, other: Self) -> None:
        """Add the counts of another aggregator of the same mechanism."""

    def add(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        """Count messages sent by devices or released by the shuffler, shape (n, width).

        `counts`, unsigned, shape (n,), are multiplicities; None means 1 each. A `ValueError` from
        `check_messages` leaves the state unchanged.
        """
        self.check_messages(epoch, words)
        if len(words):
            self._count(epoch, words, counts)

    def merge(self, other: Self) -> None:
        """Add the counts of another aggregator; raise `ValueError` if its mechanism differs."""
        if other.law != self.law:
            raise ValueError("aggregators for different mechanisms cannot be merged")
        self._merge(other)


def check_format(
    epoch: int,
    last_epoch: int,
    words: NDArray[np.unsignedinteger],
    dtype: type[np.unsignedinteger] | np.dtype[np.unsignedinteger],
    width: int = 1,
) -> None:
    """Raise `ValueError` unless epoch, dtype and shape (reports, width) of messages are valid."""
    if not 1 <= epoch <= last_epoch:
        raise ValueError(f"epoch {epoch} is out of range: the last epoch is {last_epoch}")
    if words.dtype != dtype or words.ndim != 2 or words.shape[1] != width:
        raise ValueError(
            f"messages of epoch {epoch} are {words.dtype} of shape {words.shape}; expected "
            f"{np.dtype(dtype)} of shape (reports, {width})"
        )


def entries_by_epoch(
    data: bytes, entry: np.dtype[np.void], last_epoch: int, contents: str
) -> Iterator[tuple[int, Any]]:
    """Yield each entry of a serialized state with its epoch, the field `epoch` of `entry`.

    Raises `ValueError` unless epochs increase from 1 to at most `last_epoch`.
    """
    if len(data) % entry.itemsize:
        raise ValueError(
            f"{contents} are {len(data)} bytes long; expected a multiple of {entry.itemsize}"
        )
    before = 0
    for each in np.frombuffer(data, entry):
        epoch = int(each["epoch"])
        if not before < epoch <= last_epoch:
            raise ValueError(
                f"{contents} of epoch {epoch} follow those of epoch {before}; expected increasing "
                f"epochs from 1 to {last_epoch}"
            )
        yield epoch, each
        before = epoch
