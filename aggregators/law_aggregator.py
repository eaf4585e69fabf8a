"""What all aggregators have in common: they count the words that one law allows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

LawT = TypeVar("LawT")


class LawAggregator(ABC, Generic[LawT]):
    """Counts of words; equal whatever the order, and however they were split and merged.

    Args:
        law: the constants of the job.
    """

    def __init__(self, law: LawT) -> None:
        self.law = law

    @abstractmethod
    def check_words(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        """Raise `ValueError` if words of shape (n, width) cannot be received of an epoch."""

    @abstractmethod
    def _count(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        """Count words that were checked; at least one."""

    @abstractmethod
    def _merge(self, other: Self) -> None:
        """Count what another aggregator of the same law has counted."""

    def add(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        """Count words.

        Args:
            epoch: 1 to the last one.
            words: shape (n, width), as the devices report or the shuffle stage releases them.
            counts: unsigned, shape (n,), how often each was received; None for once each.

        Raises:
            ValueError: from `check_words`; nothing is counted then.
        """
        self.check_words(epoch, words)
        if len(words):
            self._count(epoch, words, counts)

    def merge(self, other: Self) -> None:
        """Count what another aggregator of the same law has counted.

        Raises:
            ValueError: it has another law.
        """
        if other.law != self.law:
            raise ValueError("aggregators of two different laws cannot be merged")
        self._merge(other)


def check_form(
    epoch: int,
    last_epoch: int,
    words: NDArray[np.unsignedinteger],
    dtype: type[np.unsignedinteger] | np.dtype[np.unsignedinteger],
    width: int = 1,
) -> None:
    """See that words have the form of reports of an epoch.

    Raises:
        ValueError: the epoch lies outside the horizon, or the array has not this dtype and the
            shape (reports, width).
    """
    if not 1 <= epoch <= last_epoch:
        raise ValueError(f"epoch {epoch}, the horizon has {last_epoch} epochs")
    if words.dtype != dtype or words.ndim != 2 or words.shape[1] != width:
        raise ValueError(
            f"words of epoch {epoch} are {words.dtype} of shape {words.shape}, "
            f"must be {np.dtype(dtype)} of shape (reports, {width})"
        )
