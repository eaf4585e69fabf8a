"""What the input says, beside what is published: never published itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pipeline.devices.item_log import ItemLog
from pipeline.results.item_sums import ItemSums
from pipeline.stages.estimate_records import EstimateRecord


class Truths:
    """The truth about every estimate.

    Args:
        known: int64 (epochs,), the number of users with value 1 at epochs 1, 2, ..., or
            (epochs, items); or an item log, of which only what was estimated is counted. Without
            items nothing is known of what was estimated.
    """

    def __init__(self, known: NDArray[np.int64] | ItemLog) -> None:
        self._known = known

    @property
    def last_epoch(self) -> int:
        """The last epoch of the input."""
        return self._known.last_epoch if isinstance(self._known, ItemLog) else len(self._known)

    def known(self, record: EstimateRecord) -> NDArray[np.int64] | None:
        """The same as `of`; None after the last epoch of the input, too."""
        return None if record.epoch > self.last_epoch else self.of(record)

    def of(self, record: EstimateRecord) -> NDArray[np.int64] | None:
        """Users with what was estimated: int64, shape (estimates,), in the order of the record.

        Of an epoch without an estimate an item log says nothing. None where the input cannot say
        what is estimated, as with the accuracy of a model that is learnt from it.
        """
        if not isinstance(self._known, ItemLog):
            known = np.atleast_1d(self._known[record.epoch - 1])
            return known if known.size else None
        if record.estimate is None:
            return np.zeros(0, np.int64)
        held = ItemSums(*self._known.counts_at(record.epoch))
        return np.asarray(held.of(record.estimate.numbers), np.int64)


class ChangedTruths(Truths):
    """By how much the truth about an epoch is above that about one before.

    Args:
        truths: about single epochs.
        lag: how many epochs lie between.
    """

    def __init__(self, truths: Truths, lag: int) -> None:
        self._truths, self._lag = truths, lag

    @property
    def last_epoch(self) -> int:
        """See `Truths`."""
        return self._truths.last_epoch

    def of(self, record: EstimateRecord) -> NDArray[np.int64] | None:
        """See `Truths`; of a record of `pipeline.results.changes`."""
        now = self._truths.of(record)
        before = self._truths.of(replace(record, epoch=record.epoch - self._lag))
        return None if now is None or before is None else now - before
