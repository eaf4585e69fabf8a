"""What the input says, beside what is published: never published itself."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Published


class Truths(ABC):
    """The truth about every estimate.

    Attributes:
        last_epoch: the last epoch of the input.
    """

    last_epoch: int

    @abstractmethod
    def of(self, epoch: int, estimate: Published | None) -> NDArray[np.int64] | None:
        """Users with what was estimated of an epoch: int64, shape (estimates,), in its order.

        None where the input cannot say what is estimated, as with the accuracy of a model that is
        learnt from it.
        """

    def known(self, epoch: int, estimate: Published | None) -> NDArray[np.int64] | None:
        """The same as `of`; None after the last epoch of the input, too."""
        return None if epoch > self.last_epoch else self.of(epoch, estimate)


class CountedTruths(Truths):
    """Of inputs of which everything was counted.

    Args:
        counts: int64 (epochs,), the number of users with value 1 at epochs 1, 2, ..., or
            (epochs, items). Without items nothing is known of what was estimated.
    """

    def __init__(self, counts: NDArray[np.int64]) -> None:
        self._counts = counts
        self.last_epoch = len(counts)

    def of(self, epoch: int, estimate: Published | None) -> NDArray[np.int64] | None:
        """See `Truths`."""
        known = np.atleast_1d(self._counts[epoch - 1])
        return known if known.size else None


class ChangedTruths(Truths):
    """By how much the truth about an epoch is above that about one before.

    Args:
        truths: about single epochs.
        lag: how many epochs lie between.
    """

    def __init__(self, truths: Truths, lag: int) -> None:
        self._truths, self._lag = truths, lag
        self.last_epoch = truths.last_epoch

    def of(self, epoch: int, estimate: Published | None) -> NDArray[np.int64] | None:
        """See `Truths`; of an estimate of `dpstream.pipeline.results.changes`."""
        now = self._truths.of(epoch, estimate)
        before = self._truths.of(epoch - self._lag, estimate)
        return None if now is None or before is None else now - before
