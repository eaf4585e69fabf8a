"""Reduce long curves to the smallest and largest value in every pixel column."""

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
    """Width of the simultaneous band relative to the 95 % interval at one epoch.

    The band covers all `epochs` of a horizon, including future ones.
    """

    epochs: int
    widening: float
    description: str

    @classmethod
    def of(cls, job: Job) -> Self | None:
        epochs = job.epochs.count
        if job.protocol_entry.per_epoch or epochs == 1:
            return None
        outside = max(1, round(EXCEEDED * epochs))
        return cls(
            epochs=epochs,
            widening=widening(epochs),
            description=(
                f"The wide band holds for all {epochs:,} epochs of a horizon at once, including "
                "future ones: in 19 of 20 runs, the noise of every epoch stays within it. The "
                "narrow band holds for each epoch separately: the noise is expected to leave it in "
                f"about {outside:,} of {epochs:,} epochs. Both hold for each curve separately."
            ),
        )

    def ends(
        self, series: Series, triples: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Return the lower and upper ends, shape (n,); None for quantiles, which are not counts.

        `triples` holds value, low and high, shape (n, 3); NaN for gaps.
        """
        if series.share:
            return None
        value, low, high = triples.T
        return value - self.widening * (value - low), value + self.widening * (high - value)


Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    """Epochs to draw, as increasing indices, with the pixel column of each.

    `columns` is None if all epochs are drawn.
    """

    kept: NDArray[np.intp]
    columns: NDArray[np.intp] | None


def reduce_curve(epochs: NDArray[np.int64], curves: Sequence[Array], columns: int) -> Reduction:
    """Select the epochs that show a curve in `columns` pixel columns as well as all epochs would.

    Every column keeps the epochs with the minimum and maximum of each curve, and the first epoch in
    a gap of the first curve, which is the estimate. Both ends of the curves are kept. No peak is
    lost. A gap is lost only if its column has another gap. Curves have shape (n,), NaN for gaps.

    >>> values = np.array([1.0, 9.0, 2.0, 3.0, np.nan, 4.0, 5.0, 0.0])
    >>> reduce_curve(np.arange(1, 9), [values], 2).kept.tolist()
    [0, 1, 4, 6, 7]
    """
    if len(epochs) <= 2 * columns:
        return Reduction(np.arange(len(epochs)), None)
    column = column_of(epochs, columns)
    keep = np.zeros(len(epochs), np.bool_)
    keep[[0, -1]] = True
    for values in curves:
        for sign in (1.0, -1.0):
            filled = np.where(np.isnan(values), np.inf, sign * values)
            # A stable sort keeps the first of equal values.
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
    """Return a bound of the band at the drawn epochs: the outermost value in each column.

    `bound` is float64, shape (n,), NaN for gaps. `pick` is `np.fmin` for the lower bound,
    `np.fmax` for the upper one; `epochs` and `columns` are as for `reduce_curve`.
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
    first, last = int(epochs[0]), int(epochs[-1])
    return ((epochs - first) * columns // (last - first + 1)).astype(np.intp)
