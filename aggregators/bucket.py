"""What the Bucket mechanism finds, server side: the item that most trials name.

In each trial the larger bucket of every hash is one linear equation over GF(2) for the bits of the
item held most. Counts are estimated besides, as of any measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.attendance import Attendance
from dpstream.aggregators.hadamard_matches import kernels
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.measurements import ParityAggregator
from dpstream.randomizers.bucket import BucketLaw


class BucketAggregator(ParityAggregator[BucketLaw]):
    """For every epoch the number of reports, and the sums of their buckets.

    Attributes:
        label: name of an item in flags.
    """

    label: Callable[[int], str] = staticmethod(str)

    def _of(self, epoch: int, attendance: Attendance) -> ItemEstimates | None:
        """See `ItemCountsAggregator`; flagged with the item that was found."""
        estimates = super()._of(epoch, attendance)
        if estimates is None:
            return None
        return replace(estimates, flags=(*estimates.flags, self._said(epoch)))

    def _said(self, epoch: int) -> str:
        named = self.named(epoch)
        item, votes = most_named(named)
        of_trials = f"{votes} of {self.law.trials} trials"
        if 2 * votes <= self.law.trials:
            return f"no item was found: no more than {of_trials} agree"
        return f"item {self.label(item)} was found by {of_trials}"

    def named(self, epoch: int) -> NDArray[np.int64]:
        """The item that each trial names, int64, shape (trials,); 0 for none, or several."""
        received = self._tables.counts(epoch)
        if received is None:
            return np.zeros(self.law.trials, np.int64)
        sums, _ = self.sums(received)
        # Entries are (-1)^h: where they add up to less than 0, bucket 1 is the larger.
        larger = (sums < 0).reshape(self.law.trials, self.law.hashes)
        return solved(self._rows.reshape(larger.shape), larger, self.law.items)


def most_named(named: NDArray[np.int64]) -> tuple[int, int]:
    """The item that most trials name, and how many do; the number 0 counts for none.

    >>> most_named(np.array([3, 0, 3, 0, 0, 5]))
    (3, 2)
    """
    items, votes = np.unique(named[named > 0], return_counts=True)
    return (int(items[votes.argmax()]), int(votes.max())) if len(items) else (0, 0)


def solved(rows: NDArray[np.int64], bits: NDArray[np.bool_], items: int) -> NDArray[np.int64]:
    """The items x with popcount(r & x) odd exactly where a bit is set, one for each trial.

    With the bit as one more bit of r, and 1 as one more bit of x, all are to be even: a kernel.

    Args:
        rows: r, shape (trials, hashes).
        bits: the same shape.
        items: size of the domain.

    Returns:
        int64, shape (trials,): 0 where no item of the domain does, or more than one vector does.

    >>> rows = np.array([[1, 2, 3], [1, 2, 3], [1, 1, 1]])
    >>> bits = np.array([[True, False, True], [True, True, True], [True, True, True]])
    >>> solved(rows, bits, items=3).tolist()  # 1; contradictory; 1 or 3
    [1, 0, 0]
    """
    width = items.bit_length()
    equations = (rows | bits.astype(np.int64) << width).astype(np.uint32)
    basis = kernels(equations, width + 1).astype(np.int64)
    # Vectors of the basis in descending order: the first one alone has the last bit, if any has.
    unique = np.count_nonzero(basis, axis=0) == 1
    found = basis[0] - (1 << width)
    return np.where(unique & (found >= 1) & (found <= items), found, 0)
