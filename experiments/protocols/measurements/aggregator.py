"""Estimate counts from noisy measurements.

The mean report of a user with item x is g times column x of the matrix A. The factor g is close to
1; it accounts for clamped noise. The sum of all reports, divided by g, is A v plus noise, where v
is the histogram. Its product with column p, divided by the column's number w of nonzero elements,
estimates the count of item p. The variance is that of the noise of a sum, divided by w. Items whose
columns are not quite orthogonal add to it.

If each device samples one of m measurements, its sign represents all of them and is scaled by
m / c, where c is the probability of keeping a sign minus that of reversing it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.hadamard_values import walsh_hadamard
from dpstream.aggregators.item_counts import ItemCountsAggregator
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.law_aggregator import check_format
from experiments.protocols.hadamard_matches import kernels
from experiments.protocols.measurements import BucketLaw, MeasurementsLaw, SparseRecoveryLaw
from experiments.protocols.measurements.public_matrices import (
    OneHot,
    ParityRows,
    PublicMatrix,
    SignedBuckets,
    size_for,
)

_COMPARED: Final = 512
"""Maximum number of items whose columns are compared with each other."""

_AT_ONCE: Final = 1 << 22


class MeasurementsAggregator(ItemCountsAggregator[MeasurementsLaw]):
    """Count reports and sum their measurements, for every epoch.

    If devices sample measurements, the state counts each message. `label` names items in flags.

    >>> from dpstream.aggregators.estimate import Participation
    >>> from experiments.protocols.measurements import LaplaceHistogramParameters
    >>> from experiments.protocols.measurements.calibration import calibrate
    >>> law = calibrate(LaplaceHistogramParameters(32.0, ("a", "b")), last_epoch=1, minimum=1)
    >>> aggregator = MeasurementsAggregator(law)
    >>> aggregator.add(1, np.array([[4, 3], [4, 3], [3, 3]], np.uint8), None)
    >>> aggregator.estimate(1, Participation.constant(1, 3)).values.round(3).tolist()
    [2.0, 0.0]
    """

    label: Callable[[int], str] = staticmethod(str)

    @property
    def cells(self) -> int:
        measurements = self.law.matrix.measurements
        return 1 + (measurements if self.law.odds is None else 2 * measurements)

    def check_messages(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        form, noise = self.law.message_format, self.law.noise
        check_format(epoch, self.law.last_epoch, words, form.dtype, form.width)
        most = 2 * self.law.matrix.measurements if noise is None else 2 * noise.most + 1
        if words.size and int(words.max()) >= most:
            raise ValueError(f"message at epoch {epoch} is {words.max()}; expected 0 to {most - 1}")

    def _matches(
        self, words: NDArray[np.unsignedinteger], counts: NDArray[np.unsignedinteger] | None
    ) -> NDArray[np.int64]:
        reports = len(words) if counts is None else int(counts.sum(dtype=np.int64))
        if self.law.odds is None:
            times = 1 if counts is None else counts.astype(np.int64)[:, None]
            sums = (words * times).sum(axis=0, dtype=np.int64)
        else:
            # Integers below 2^53: sums are exact.
            weights = None if counts is None else counts.astype(np.float64)
            sums = np.bincount(words[:, 0], weights, self.cells - 1).astype(np.int64)
        return np.concatenate([[reports], sums])

    def _counts(
        self, matched: NDArray[np.int64], senders: int
    ) -> tuple[NDArray[np.float64], float]:
        sums, variance = self.sums(matched)
        filled = self.law.matrix.filled
        counts = products(self.law.matrix, sums, self.law.items) / filled
        # Squared sums exceed their noise by the squared true counts.
        held = max(0.0, float(sums @ sums) / filled - len(sums) * variance / filled)
        return counts, variance / filled + self.others_variance(float(matched[0]), held)

    def sums(self, matched: NDArray[np.int64]) -> tuple[NDArray[np.float64], float]:
        """Return the unbiased sum of all users' measurements, and its noise variance."""
        reports = int(matched[0])
        variance = sum_variance(self.law, reports)
        if self.law.odds is None:
            assert self.law.noise is not None
            sums = matched[1:].astype(np.float64) - float(self.law.noise.most) * reports
            return sums / self.law.noise.gap, variance
        below, above = matched[1:].reshape(-1, 2).T.astype(np.float64)
        return (above - below) * len(below) / self.law.odds.c_gap, variance

    def _of(self, epoch: int, participation: Participation) -> ItemEstimates | None:
        """Return the estimates, flagged with the items that the mechanism detects."""
        estimates = super()._of(epoch, participation)
        if estimates is None:
            return None
        return replace(estimates, flags=(*estimates.flags, *self._flags(epoch)))

    def _flags(self, epoch: int) -> tuple[str, ...]:
        match self.law:
            case BucketLaw(trials=trials):
                return (self._item_of_trials(epoch, trials),)
            case SparseRecoveryLaw():
                items = self.recovered(epoch)
                if not len(items):
                    return ("no item was recovered",)
                return (f"recovered: {', '.join(map(str, items))}",)
        return ()

    def _item_of_trials(self, epoch: int, trials: int) -> str:
        item, votes = most_named(self.named(epoch))
        of_trials = f"{votes} of {trials} trials"
        if 2 * votes <= trials:
            return f"no item was found: at most {of_trials} agree"
        return f"item {self.label(item)} was found by {of_trials}"

    def named(self, epoch: int) -> NDArray[np.int64]:
        """Return the item that each `bucket` trial detects, shape (trials,); 0 if unclear."""
        law, received = self.law, self._tables.counts(epoch)
        assert isinstance(law, BucketLaw)
        if received is None:
            return np.zeros(law.trials, np.int64)
        sums, _ = self.sums(received)
        # Matrix elements are (-1)^h: a negative sum means that bucket 1 is larger.
        larger = (sums < 0).reshape(law.trials, law.hashes)
        return solved(law.matrix.rows.reshape(larger.shape), larger, law.items)

    def recovered(self, epoch: int) -> NDArray[np.int64]:
        """Return the items that `sparse_recovery` decodes, int64, the most frequent first."""
        law, received = self.law, self._tables.counts(epoch)
        assert isinstance(law, SparseRecoveryLaw)
        if received is None:
            return np.zeros(0, np.int64)
        sums, _ = self.sums(received)
        return read_off(law.matrix, sums)

    def others_variance(self, users: float, squares: float) -> float:
        """Return the contribution of other items to the mean squared error of a count.

        `users` is the number of users with other items, `squares` the sum of these items' squared
        counts. The products with other columns are uncorrelated only if their mean is 0.
        """
        together = self.together**2
        return users**2 * together + squares * max(0.0, self.crosstalk - together)

    @property
    def together(self) -> float:
        """Mean contribution of a user to the count of another item.

        For rows of a Hadamard matrix without row 0, it is about -1 / (number of other rows).
        """
        return self._of_pairs[0]

    @property
    def crosstalk(self) -> float:
        """Contribution of a squared count to the squared error of another item's count.

        This is the mean over all pairs of items, or over pairs within a sample if there are many.
        """
        return self._of_pairs[1]

    @cached_property
    def _of_pairs(self) -> tuple[float, float]:
        match self.law.matrix:
            case OneHot():  # Different items have different cells.
                return 0.0, 0.0
            case ParityRows() as matrix:
                pairs = products_of_pairs(matrix, self.law.items)
                return _mean_of_pairs(pairs), _mean_of_pairs(np.square(pairs))
            case matrix:  # Signs are independent.
                columns = matrix.entries(compared(self.law.items)).astype(np.float64)
                squares = np.square(columns @ columns.T / matrix.filled)
                return 0.0, _mean_of_pairs(squares)


def products(matrix: PublicMatrix, sums: NDArray[np.float64], items: int) -> NDArray[np.float64]:
    """Return the products of `sums` with each item's column, float64, shape (items,)."""
    match matrix:
        case OneHot():
            return sums
        case ParityRows():
            placed = np.bincount(matrix.rows, sums, size_for(items))
            return walsh_hadamard(placed.astype(np.float64))[1 : 1 + items]
        case _:
            return products_of_columns(matrix, sums, items)


def products_of_columns(
    matrix: PublicMatrix, sums: NDArray[np.float64], items: int
) -> NDArray[np.float64]:
    """Compute `products` for any matrix, in batches of columns."""
    found, many = np.empty(items), max(1, _AT_ONCE // matrix.measurements)
    for start in range(0, items, many):
        part = np.arange(start, min(start + many, items)) + 1
        found[part - 1] = matrix.entries(part) @ sums
    return found


def products_of_pairs(matrix: ParityRows, items: int) -> NDArray[np.float64]:
    """Return the normalized products of all pairs of `compared` columns."""
    some = compared(items)
    rows = np.bincount(matrix.rows, minlength=size_for(items)).astype(np.float64)
    found = walsh_hadamard(rows) / len(matrix.rows)
    return np.asarray(found[some[:, None] ^ some], np.float64)


def compared(items: int) -> NDArray[np.int64]:
    """Return evenly spread item numbers, at most `_COMPARED`."""
    return np.unique(np.linspace(1, items, min(items, _COMPARED)).astype(np.int64))


def sum_variance(law: MeasurementsLaw, reports: float) -> float:
    """Return the noise variance of each measurement, summed over all reports."""
    if law.odds is None:
        assert law.noise is not None
        return reports * law.noise.variance / law.noise.gap**2
    return reports * law.matrix.measurements / law.odds.c_gap**2


def _mean_of_pairs(products: NDArray[np.float64]) -> float:
    items = len(products)
    if items < 2:
        return 0.0
    return float((products.sum() - np.trace(products)) / (items * (items - 1)))


def most_named(named: NDArray[np.int64]) -> tuple[int, int]:
    """Return the item that most trials detect (0 for no item) and the number of these trials.

    >>> most_named(np.array([3, 0, 3, 0, 0, 5]))
    (3, 2)
    """
    items, votes = np.unique(named[named > 0], return_counts=True)
    return (int(items[votes.argmax()]), int(votes.max())) if len(items) else (0, 0)


def solved(rows: NDArray[np.int64], bits: NDArray[np.bool_], items: int) -> NDArray[np.int64]:
    """Find the item x for each trial: popcount(r & x) is odd if and only if r's bit is set.

    If the bit is appended to r, and a 1 to x, all popcounts must be even. So x is in a null space.
    `rows` (r) and `bits` have shape (trials, hashes). The result is int64, shape (trials,): 0 if
    no item of the domain, or more than one vector, is a solution.

    >>> rows = np.array([[1, 2, 3], [1, 2, 3], [1, 1, 1]])
    >>> bits = np.array([[True, False, True], [True, True, True], [True, True, True]])
    >>> solved(rows, bits, items=3).tolist()  # 1; contradictory; 1 or 3
    [1, 0, 0]
    """
    width = items.bit_length()
    equations = (rows | bits.astype(np.int64) << width).astype(np.uint32)
    basis = kernels(equations, width + 1).astype(np.int64)
    # The basis is in descending order: only its first vector can have the appended bit.
    unique = np.count_nonzero(basis, axis=0) == 1
    found = basis[0] - (1 << width)
    return np.where(unique & (found >= 1) & (found <= items), found, 0)


def read_off(matrix: SignedBuckets, sums: NDArray[np.float64]) -> NDArray[np.int64]:
    """Decode items from the signs of buckets and tests, int64, in descending order of count.

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
