"""What the input says, beside what is published: never published itself."""

from __future__ import annotations

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
