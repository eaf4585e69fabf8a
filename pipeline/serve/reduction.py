"""Long curves made short: the smallest and the largest value of every column of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.results.expected_errors import EXCEEDED, widening
from dpstream.pipeline.results.series import Series


@dataclass(frozen=True, slots=True)
class Simultaneous:
    """How wide it is.

    Attributes:
        epochs: of a horizon, those to come included.
        widening: how many times as wide as the 95 % interval of each epoch.
        words: what it covers.
    """

    epochs: int
    widening: float
    words: str

    @classmethod
    def of(cls, job: Job) -> Self | None:
        """Of a job whose epochs rest on one another, as `plan` says it; None for others."""
        epochs = job.epochs.count
        if job.protocol_entry.per_epoch or epochs == 1:
            return None
        outside = max(1, round(EXCEEDED * epochs))
        return cls(
            epochs=epochs,
            widening=widening(epochs),
            words=f"The wide band is for all {epochs:,} epochs of a horizon at once, those to come "
            "included: in 19 of 20 runs the noise of no epoch leaves it. The narrow one is for "
            f"each epoch by itself: about {outside:,} of {epochs:,} are expected outside it. "
            "Both are for each curve by itself.",
        )

    def ends(
        self, series: Series, triples: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Lower and upper ends at every epoch, (n,) each; None of quantiles, which are no counts.

        Args:
            series: of the job.
            triples: value, low and high, (n, 3), nan for gaps.
        """
        if series.share:
            return None
        value, low, high = triples.T
        return value - self.widening * (value - low), value + self.widening * (high - value)


Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    """Which epochs of a curve are drawn.

    Attributes:
        kept: their positions, increasing.
        columns: the column that each of them lies in; None where all are kept.
    """

    kept: NDArray[np.intp]
    columns: NDArray[np.intp] | None


def reduce_curve(epochs: NDArray[np.int64], curves: Sequence[Array], columns: int) -> Reduction:
    """Choose what shows a curve as well as all of it would, in so many columns.

    Of every column the epochs stay at which one of the curves is smallest or largest, and the first
    one of a gap of the first curve; and both ends. So no peak is lost, and no gap but beside
    another one in its column.

    >>> values = np.array([1.0, 9.0, 2.0, 3.0, np.nan, 4.0, 5.0, 0.0])
    >>> reduce_curve(np.arange(1, 9), [values], 2).kept.tolist()
    [0, 1, 4, 6, 7]

    Args:
        epochs: int64 (n,), increasing.
        curves: float64 (n,) each; nan for gaps. The first one is the estimate.
        columns: how many, at least 1.
    """
    if len(epochs) <= 2 * columns:
        return Reduction(np.arange(len(epochs)), None)
    column = column_of(epochs, columns)
    keep = np.zeros(len(epochs), np.bool_)
    keep[[0, -1]] = True
    for values in curves:
        for sign in (1.0, -1.0):
            filled = np.where(np.isnan(values), np.inf, sign * values)
            # Stable: of equal ones the first is kept.
            order = np.lexsort((filled, column))
            starts = np.flatnonzero(np.diff(column[order], prepend=-1))
            keep[order[starts]] = True
    gaps = np.isnan(curves[0])
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    begins = gaps & ~np.insert(gaps[:-1], 0, False)
    begins[starts] |= gaps[starts]
    first_gap = np.flatnonzero(begins)
    _, firsts = np.unique(column[first_gap], return_index=True)
    keep[first_gap[firsts]] = True
    kept = np.flatnonzero(keep)
    return Reduction(kept, column[kept])


def envelope(
    reduction: Reduction,
    epochs: NDArray[np.int64],
    bound: Array,
    columns: int,
    pick: np.ufunc,
) -> Array:
    """A bound of the band at the epochs that are kept: the outermost of the whole column.

    Args:
        reduction: of the curve.
        epochs: as it was made of.
        bound: float64 (n,), of all epochs, nan for gaps.
        columns: as it was made of.
        pick: `np.fmin` for the lower bound, `np.fmax` for the upper one.
    """
    own = bound[reduction.kept]
    if reduction.columns is None:
        return own
    column = column_of(epochs, columns)
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    outermost = pick.reduceat(bound, starts)
    place = np.searchsorted(column[starts], reduction.columns)
    return np.where(np.isnan(own), np.nan, outermost[place])


def column_of(epochs: NDArray[np.int64], columns: int) -> NDArray[np.intp]:
    """The column of every epoch, from 0 on."""
    first, last = int(epochs[0]), int(epochs[-1])
    return ((epochs - first) * columns // (last - first + 1)).astype(np.intp)
