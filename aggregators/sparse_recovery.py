"""What a count-sketch with bit tests recovers, server side: one item of each bucket at most.

The sign of a bucket is that of the item that has most of it, and where a test has the other sign,
the bit is set. What is read so is an item only if it is of the domain, and has this bucket and this
sign: noise seldom reads as one. Counts are estimated besides, as of any measurements.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.attendance import Attendance
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.measurements import MeasurementsAggregator
from dpstream.randomizers.public_matrices import SignedBuckets
from dpstream.randomizers.sparse_recovery import SparseRecoveryLaw


class SparseRecoveryAggregator(MeasurementsAggregator[SparseRecoveryLaw]):
    """For every epoch the number of reports, and the sums of their measurements."""

    def _of(self, epoch: int, attendance: Attendance) -> ItemEstimates | None:
        """See `ItemCountsAggregator`; flagged with the items that were recovered."""
        estimates = super()._of(epoch, attendance)
        if estimates is None:
            return None
        items = self.recovered(epoch)
        said = f"recovered: {', '.join(map(str, items))}" if len(items) else "no item was recovered"
        return replace(estimates, flags=(*estimates.flags, said))

    def recovered(self, epoch: int) -> NDArray[np.int64]:
        """Numbers of items, int64, the one that most users hold first."""
        received = self._tables.counts(epoch)
        if received is None:
            return np.zeros(0, np.int64)
        sums, _ = self.sums(received)
        return read_off(self.law.matrix, sums)


def read_off(matrix: SignedBuckets, sums: NDArray[np.float64]) -> NDArray[np.int64]:
    """The items that the signs of buckets and tests spell: int64, the largest first.

    >>> matrix = SignedBuckets(items=100, buckets=8, seed="example")
    >>> counts = {7: 500.0, 70: 900.0, 99: 700.0}
    >>> columns = matrix.entries(np.array(list(counts)))
    >>> read_off(matrix, np.array(list(counts.values())) @ columns).tolist()
    [70, 99, 7]
    """
    signs = np.where(sums.reshape(matrix.buckets, matrix.filled) < 0, -1, 1)
    bits = signs[:, 1:] != signs[:, :1]
    items = bits @ (1 << np.arange(matrix.filled - 1))
    (own,) = np.nonzero((items >= 1) & (items <= matrix.items))
    own = own[matrix.buckets_of(items[own]) == own]
    own = own[matrix.signs_of(items[own]) == signs[own, 0]]
    found = items[own]
    sizes = matrix.entries(found) @ sums
    return np.asarray(found[np.argsort(-sizes, kind="stable")], np.int64)
