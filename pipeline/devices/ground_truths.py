"""Ground truth from the input, for comparison with estimates; it is never published."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Published


class GroundTruths(ABC):
    """Ground truth for every estimate, up to the input's `last_epoch`."""

    last_epoch: int

    @abstractmethod
    def of(self, epoch: int, estimate: Published | None) -> NDArray[np.int64] | None:
        """Return the true value of every quantity estimated at an epoch: int64, shape (estimates,).

        Returns None if the input lacks the quantity, such as the accuracy of a learned model.
        """

    def known(self, epoch: int, estimate: Published | None) -> NDArray[np.int64] | None:
        """Return the result of `of`, or None after the last epoch of the input."""
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
        known = np.atleast_1d(self._counts[epoch - 1])
        return known if known.size else None


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
    """Mean of the ground truth over the window that ends with an epoch, rounded to integers."""

    def __init__(self, ground_truths: GroundTruths, window: int) -> None:
        self._ground_truths, self._window = ground_truths, window
        self.last_epoch = ground_truths.last_epoch

    def of(self, epoch: int, estimate: Published | None) -> NDArray[np.int64] | None:
        total = np.zeros((), np.int64)
        for each in range(epoch - self._window + 1, epoch + 1):
            now = self._ground_truths.of(each, estimate)
            if now is None:
                return None
            total = total + now
        return np.rint(total / self._window).astype(np.int64)
