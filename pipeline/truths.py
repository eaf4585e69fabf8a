"""What the input says, beside what is published: never published itself."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aggregators.estimate import ItemEstimates
from aggregators.found_items import FoundItems
from pipeline.estimate_records import EstimateRecord
from pipeline.input.item_log import ItemLog


class Truths:
    """The truth about every estimate.

    Args:
        known: int64 (epochs,), the number of users with value 1 at epochs 1, 2, ..., or
            (epochs, items); or an item log, of which only what was estimated is counted.
    """

    def __init__(self, known: NDArray[np.int64] | ItemLog) -> None:
        self._known = known

    @property
    def last_epoch(self) -> int:
        """The last epoch of the input."""
        return self._known.last_epoch if isinstance(self._known, ItemLog) else len(self._known)

    def of(self, record: EstimateRecord) -> NDArray[np.int64]:
        """Users with what was estimated: int64, shape (estimates,), in the order of the record.

        Of an epoch without an estimate an item log says nothing.
        """
        known, estimate = self._known, record.estimate
        if not isinstance(known, ItemLog):
            return np.atleast_1d(known[record.epoch - 1])
        if isinstance(estimate, FoundItems):
            return known.counts_of(record.epoch, estimate.items)
        size = len(estimate.values) if isinstance(estimate, ItemEstimates) else 0
        return known.counts_of(record.epoch, np.arange(1, size + 1))
