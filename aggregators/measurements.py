"""Counts from noisy measurements, server side.

A report of measurements y with noise has the mean g A e_x, g being close to 1 (the noise is
clamped); the sum over all users, over g, is A v for the histogram v, with noise. The product with
column p of A, over the w entries of it that are not 0, is the count of item p: its variance is that
of the noise of a sum over w, and other items that are not quite at right angles add to it.

Where a device has sampled one of m measurements, its sign stands for all of them: m / c of it, c
being the part by which a sign is more often kept than reversed.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.item_counts import ItemCountsAggregator
from dpstream.aggregators.report_words import check_form
from dpstream.aggregators.walsh_hadamard import walsh_hadamard
from dpstream.randomizers.laplace_histogram import LaplaceHistogramLaw
from dpstream.randomizers.measurements import MeasurementsLaw
from dpstream.randomizers.public_matrices import ParityRows, size_for

LawT = TypeVar("LawT", bound=MeasurementsLaw)

_COMPARED: Final = 512
"""Items whose columns are compared with each other."""

_AT_ONCE: Final = 1 << 22


class MeasurementsAggregator(ItemCountsAggregator[LawT], Generic[LawT]):
    """For every epoch the number of reports, and the sums of their measurements.

    Where measurements are sampled: how often each word was received.

    Args:
        law: the constants of the job.
    """

    @property
    def cells(self) -> int:
        """See `ItemCountsAggregator`."""
        measurements = self.law.matrix.measurements
        return 1 + (measurements if self.law.odds is None else 2 * measurements)

    def check_words(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        """See that words can be reports of an epoch.

        Raises:
            ValueError: the epoch lies outside the horizon, the array has another dtype or shape
                than the law's, or a word is too large.
        """
        form, noise = self.law.word_form, self.law.noise
        check_form(epoch, self.law.last_epoch, words, form.dtype, form.width)
        most = 2 * self.law.matrix.measurements if noise is None else 2 * noise.most + 1
        if words.size and int(words.max()) >= most:
            raise ValueError(f"word {words.max()} at epoch {epoch}, must be below {most}")

    def _matches(
        self, words: NDArray[np.unsignedinteger], counts: NDArray[np.unsignedinteger] | None
    ) -> NDArray[np.int64]:
        reports = len(words) if counts is None else int(counts.sum(dtype=np.int64))
        if self.law.odds is None:
            times = 1 if counts is None else counts.astype(np.int64)[:, None]
            sums = (words * times).sum(axis=0, dtype=np.int64)
        else:
            # Whole numbers below 2^53: their sums are exact.
            weights = None if counts is None else counts.astype(np.float64)
            sums = np.bincount(words[:, 0], weights, self.cells - 1).astype(np.int64)
        return np.concatenate([[reports], sums])

    def _counts(
        self, matched: NDArray[np.int64], contributors: int
    ) -> tuple[NDArray[np.float64], float]:
        sums, variance = self.sums(matched)
        filled = self.law.matrix.filled
        counts = self._products(sums) / filled
        # What the squares of all sums have beyond their noise is what users hold.
        held = max(0.0, float(sums @ sums) / filled - len(sums) * variance / filled)
        return counts, variance / filled + self.others_variance(float(matched[0]), held)

    def sums(self, matched: NDArray[np.int64]) -> tuple[NDArray[np.float64], float]:
        """The measurements of all users together without bias, and the variance of their noise."""
        reports = int(matched[0])
        variance = sum_variance(self.law, reports)
        if self.law.odds is None:
            assert self.law.noise is not None
            sums = matched[1:].astype(np.float64) - float(self.law.noise.most) * reports
            return sums / self.law.noise.gap, variance
        below, above = matched[1:].reshape(-1, 2).T.astype(np.float64)
        return (above - below) * len(below) / self.law.odds.c_gap, variance

    def _products(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """With the column of every item: float64, shape (items,)."""
        matrix, found = self.law.matrix, np.empty(self.law.items)
        many = max(1, _AT_ONCE // matrix.measurements)
        for start in range(0, self.law.items, many):
            items = np.arange(start, min(start + many, self.law.items)) + 1
            found[items - 1] = matrix.entries(items) @ sums
        return found

    def others_variance(self, users: float, squares: float) -> float:
        """What other items add to the mean squared error of a count.

        Products with the columns of others go together as far as their mean is not 0.

        Args:
            users: who hold the others.
            squares: of their counts, added up.
        """
        together = self.together**2
        return users**2 * together + squares * max(0.0, self.crosstalk - together)

    @property
    def together(self) -> float:
        """The mean of what a user adds to the count of another item."""
        return 0.0

    @cached_property
    def crosstalk(self) -> float:
        """How much the square of a count adds to the squared error of that of another item.

        The mean over pairs of some items: all of them, if they are few.
        """
        items = compared(self.law.items)
        if len(items) < 2:
            return 0.0
        columns = self.law.matrix.entries(items).astype(np.float64)
        squares = np.square(columns @ columns.T / self.law.matrix.filled)
        return float((squares.sum() - np.trace(squares)) / (len(items) * (len(items) - 1)))


def compared(items: int) -> NDArray[np.int64]:
    """Numbers of some items, evenly spread: all of them, if they are few."""
    return np.unique(np.linspace(1, items, min(items, _COMPARED)).astype(np.int64))


def sum_variance(law: MeasurementsLaw, reports: float) -> float:
    """Variance of the noise of each measurement, added up over so many reports."""
    if law.odds is None:
        assert law.noise is not None
        return reports * law.noise.variance / law.noise.gap**2
    return reports * law.matrix.measurements / law.odds.c_gap**2


class LaplaceHistogramAggregator(MeasurementsAggregator[LaplaceHistogramLaw]):
    """A measurement is the count of an item.

    >>> from dpstream.aggregators.attendance import Attendance
    >>> from dpstream.randomizers.laplace_histogram import LaplaceHistogramParameters
    >>> from dpstream.randomizers.laplace_histogram.calibration import calibrate
    >>> law = calibrate(LaplaceHistogramParameters(32.0, ("a", "b")), last_epoch=1)
    >>> aggregator = LaplaceHistogramAggregator(law)
    >>> aggregator.add(1, np.array([[4, 3], [4, 3], [3, 3]], np.uint8), None)
    >>> aggregator.estimate(1, Attendance.constant(1, 3)).values.round(3).tolist()
    [2.0, 0.0]
    """

    def _products(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        return sums

    @cached_property
    def crosstalk(self) -> float:
        """Different items have different cells."""
        return 0.0


class ParityAggregator(MeasurementsAggregator[LawT], Generic[LawT]):
    """Of a matrix of rows of a Hadamard matrix: one fast transform gives all products."""

    @property
    def _rows(self) -> NDArray[np.int64]:
        matrix = self.law.matrix
        assert isinstance(matrix, ParityRows)
        return matrix.rows

    def _products(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        placed = np.bincount(self._rows, sums, size_for(self.law.items))
        return walsh_hadamard(placed.astype(np.float64))[1 : 1 + self.law.items]

    @cached_property
    def together(self) -> float:
        """See `MeasurementsAggregator`.

        Where no row is 0, it is about -1 over the number of other rows that there are.
        """
        return _mean_of_pairs(self._pairs)

    @cached_property
    def crosstalk(self) -> float:
        """See `MeasurementsAggregator`."""
        return _mean_of_pairs(np.square(self._pairs))

    @cached_property
    def _pairs(self) -> NDArray[np.float64]:
        """Of some items: two columns differ as column 0 and their sum over GF(2)."""
        items = compared(self.law.items)
        rows = np.bincount(self._rows, minlength=size_for(self.law.items)).astype(np.float64)
        products = walsh_hadamard(rows) / len(self._rows)
        return np.asarray(products[items[:, None] ^ items], np.float64)


def _mean_of_pairs(products: NDArray[np.float64]) -> float:
    """Of different items; 0 of a single one."""
    items = len(products)
    if items < 2:
        return 0.0
    return float((products.sum() - np.trace(products)) / (items * (items - 1)))
