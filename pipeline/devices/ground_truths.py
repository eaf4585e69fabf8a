"""Ground truth from the input, for comparison with estimates; it is never published."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import INCOMPLETE, Published
from dpstream.pipeline.values.item_sums import ItemSums


class GroundTruths(ABC):
    last_epoch: int

    @abstractmethod
    def of(self, epoch: int, estimate: Published | None) -> NDArray[np.int64] | None:
        """Return the true value of every quantity estimated at an epoch: int64, shape (estimates,).

        Returns None if the input does not determine it.
        """

    def known(self, epoch: int, estimate: Published | None) -> NDArray[np.int64] | None:
        return None if epoch > self.last_epoch else self.of(epoch, estimate)


class CountedGroundTruths(GroundTruths):
    """Ground truth for inputs whose counts are all known.

    `counts` is int64: the number of users with value 1, shape (epochs,), or with each item, shape
    (epochs, items). For shape (epochs, 0), the ground truth is unknown.
    """

    def __init__(self, counts: NDArray[np.int64]) -> None:
        self._counts = counts
        self.last_epoch = len(counts)

    def of(self, epoch: int, estimate: Published | None) -> NDArray[np.int64] | None:
        known = of_published(self._counts[epoch - 1], estimate)
        return known if known.size else None


def of_published(known: NDArray[Any], estimate: Published | None) -> NDArray[Any]:
    """Select, from the known numbers of all items, those that an estimate contains."""
    known = np.atleast_1d(known)
    if estimate is None or estimate.single or known.size <= estimate.numbers.size:
        return known
    return known[estimate.numbers - 1]


class CountedItems(Protocol):
    @property
    def last_epoch(self) -> int: ...

    def counts_at(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the items that occur at an epoch, ascending, and their user counts."""


class ItemGroundTruths(GroundTruths):
    """Ground truth for the published items, looked up in a log.

    For an estimate of the mean over several epochs, the ground truth is also a mean, rounded to
    integers. It is unknown if any of these epochs has no estimate.
    """

    def __init__(self, log: CountedItems) -> None:
        self._log = log
        self.last_epoch = log.last_epoch

    def of(self, epoch: int, estimate: Published | None) -> NDArray[np.int64] | None:
        if estimate is None:
            return np.zeros(0, np.int64)
        if INCOMPLETE in estimate.flags:
            return None
        averaged = estimate.averaged or 1
        epochs = range(epoch - averaged + 1, epoch + 1)
        found = mean_counts(self._log, epochs).of(estimate.numbers)
        return np.asarray(np.rint(found), np.int64)


def mean_counts(log: CountedItems, epochs: Sequence[int]) -> ItemSums:
    total = ItemSums(*log.counts_at(epochs[0]))
    for epoch in epochs[1:]:
        items, counts = log.counts_at(epoch)
        total = total.plus(items, counts.astype(np.float64))
    return ItemSums(total.items, total.counts / len(epochs)) if len(epochs) > 1 else total


class ChangedGroundTruths(GroundTruths):
    """Increase of the ground truth over `lag` epochs."""

    def __init__(self, ground_truths: GroundTruths, lag: int) -> None:
        self._ground_truths, self._lag = ground_truths, lag
        self.last_epoch = ground_truths.last_epoch

    def of(self, epoch: int, estimate: Published | None) -> NDArray[np.int64] | None:
        now = self._ground_truths.of(epoch, estimate)
        before = self._ground_truths.of(epoch - self._lag, estimate)
        return None if now is None or before is None else now - before


class AveragedGroundTruths(GroundTruths):
    """Mean or sum of the ground truth over the window that ends with an epoch, in integers."""

    def __init__(self, ground_truths: GroundTruths, window: int, *, sums: bool = False) -> None:
        self._ground_truths, self._window, self._sums = ground_truths, window, sums
        self.last_epoch = ground_truths.last_epoch

    def of(self, epoch: int, estimate: Published | None) -> NDArray[np.int64] | None:
        total = np.zeros((), np.int64)
        for each in range(epoch - self._window + 1, epoch + 1):
            now = self._ground_truths.of(each, estimate)
            if now is None:
                return None
            total = total + now
        return total if self._sums else np.rint(total / self._window).astype(np.int64)
