"""Estimate item counts from rows of buckets: Count-Min and related sketches.

In every row an item's cell contains the item, other items and noise. Apart from the item, the
cell's contents are distributed like those of any cell of the row. So the error of an estimator is
distributed like the estimate from random cells. This error shows which estimator is best.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.counts import Counts
from dpstream.aggregators.estimate import NORMAL_95, Estimate
from dpstream.aggregators.heavy_hitters import HeavyHitters
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.randomizers.cell_codes.hashed_rows import HashedRows
from dpstream.randomizers.count_min import Estimator
from dpstream.randomizers.pairwise_hash import public_words
from dpstream.randomizers.row_errors import normal_errors

ESTIMATORS: Final[tuple[Estimator, ...]] = ("median", "min", "mean")

_ONE_SIDED: Final = ("estimator: one-sided",)
_SAMPLED: Final = 50_000
_AT_ONCE: Final = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class RowEstimates(Counts):
    """Estimates of all items in a window, computed on demand.

    Attributes:
        cells: float64, shape (rows, buckets): counts minus the mean of the noise.
        estimator: Method that combines rows; None if every item has a cell of its own.
        offset: Amount subtracted from the combined cells.
        shrinking: Fraction of an item's count that remains; less than 1 if the offset is a mean
            over all cells, the item's own included.
        errors: Sample of the errors of an estimate, float64.
    """

    code: HashedRows
    cells: NDArray[np.float64]
    estimator: Estimator | None
    offset: float
    shrinking: float
    standard_error: float
    half_width: float
    errors: NDArray[np.float64]
    reports: int
    population: int
    flags: tuple[str, ...] = ()

    @classmethod
    def from_cells(
        cls,
        code: HashedRows,
        cells: NDArray[np.float64],
        noise_variance: float,
        population: int,
        estimator: Estimator | None = None,
        reports: int | None = None,
        allowance: float = 0.0,
    ) -> Self:
        """Estimate the items in a window.

        Args:
            code: Encoding of items as cells.
            cells: Counts minus the mean of their noise, float64, shape (code.cells,).
            noise_variance: Noise variance of each cell.
            population: Number of users the counts describe.
            estimator: Method that combines rows; None selects that with the least predicted error.
            reports: Number of contributors; None for all users.
            allowance: Amount added to estimates of the estimator "min", to make them one-sided.
        """
        reports = population if reports is None else reports
        cells = cells.reshape(code.rows, code.buckets)
        if code.direct:
            deviation = math.sqrt(noise_variance)
            return cls(
                code=code,
                cells=cells,
                estimator=None,
                offset=-allowance,
                shrinking=1.0,
                standard_error=math.hypot(deviation, allowance),
                half_width=NORMAL_95 * deviation + allowance,
                errors=normal_errors(deviation) + allowance,
                reports=reports,
                population=population,
                flags=_ONE_SIDED if allowance else (),
            )
        sampled = _sampled_cells(cells)
        choices = ESTIMATORS if estimator is None else (estimator,)
        errors: dict[Estimator, tuple[float, float, NDArray[np.float64]]] = {}
        for each in choices:
            said = together(sampled, each)
            offset, seen = _debiasing(each, said, cells)
            offset -= allowance
            errors[each] = offset, seen, (said - offset) / seen
        best = min(errors, key=lambda each: float(np.abs(errors[each][2]).mean()))
        offset, seen, found = errors[best]
        return cls(
            code=code,
            cells=cells,
            estimator=best,
            offset=offset,
            shrinking=seen,
            standard_error=math.sqrt(float(np.square(found).mean())),
            half_width=float(np.quantile(np.abs(found), 0.95)),
            errors=found,
            reports=reports,
            population=population,
            flags=_ONE_SIDED if allowance else (f"estimator: {best}",),
        )

    @property
    def error_sample(self) -> NDArray[np.float64]:
        return self.errors

    @property
    def predicted_error(self) -> float:
        return float(np.abs(self.errors).mean())

    def values(self, items: NDArray[np.int64]) -> NDArray[np.float64]:
        values = np.empty(len(items))
        for start in range(0, len(items), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            values[part] = self._values(items[part])
        return values

    def _values(self, items: NDArray[np.int64]) -> NDArray[np.float64]:
        read = self.cells.reshape(-1)[self.code.encode(items)]
        values = read[:, 0] if self.estimator is None else together(read, self.estimator)
        estimates = (values - self.offset) / self.shrinking
        if self.estimator == "min":
            estimates = np.maximum(estimates, 0.0)
        return np.asarray(estimates, np.float64)

    def item(self, item: int) -> Estimate:
        ((_, estimate),) = self.of_items([item])
        return estimate

    def of_items(self, items: Sequence[int] | None = None) -> Iterator[tuple[int, Estimate]]:
        chosen = range(1, self.code.size + 1) if items is None else items
        # One batch: a million items take a minute one by one.
        values = self.values(np.array(chosen, np.int64)).tolist()
        for item, value in zip(chosen, values, strict=True):
            yield (
                item,
                Estimate.around(value, self.standard_error, self.half_width, *self.about),
            )

    def top(self, count: int) -> HeavyHitters:
        return self.all_items().top(count)

    def listed(self, most: int | None = None) -> ItemEstimates | None:
        return None if most is not None and self.code.size > most else self.all_items()

    def all_items(self) -> ItemEstimates:
        values = self.values(np.arange(1, self.code.size + 1))
        return ItemEstimates(values, self.standard_error, self.half_width, *self.about)

    @property
    def method(self) -> str:
        code = self.code
        if self.flags == _ONE_SIDED:
            return "the smallest cell of each item, minus a lower bound on that cell's noise"
        if code.direct:
            return "the cell of each item"
        rows = "one row" if code.rows == 1 else f"the {self.estimator} of {code.rows} rows"
        return f"{rows} of {code.buckets:,} buckets, minus the expected count per bucket"


def _debiasing(
    estimator: Estimator, nobody: NDArray[np.float64], cells: NDArray[np.float64]
) -> tuple[float, float]:
    """Return the offset to subtract, and the fraction of the item's count that then remains.

    The minimum has no offset, although other items make it too large. The median is adjusted to be
    too large as often as too small, and the mean to be unbiased.
    """
    if estimator == "min":
        return 0.0, 1.0
    if estimator == "median":
        return float(np.median(nobody)), 1.0
    return float(cells.mean()), 1 - 1 / cells.shape[1]


def together(values: NDArray[np.float64], estimator: Estimator) -> NDArray[np.float64]:
    """Combine the cells of each item, shape (items, rows), into float64, shape (items,)."""
    if estimator == "min":
        return np.asarray(values.min(axis=1), np.float64)
    if estimator == "mean":
        return np.asarray(values.mean(axis=1), np.float64)
    return np.asarray(np.median(values, axis=1), np.float64)


def _sampled_cells(cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a fixed sample of cells in every row, shape (samples, rows)."""
    buckets = np.uint64(cells.shape[1])
    return np.stack(
        [
            row[public_words(f"no user in row {number}", _SAMPLED) % buckets]
            for number, row in enumerate(cells)
        ],
        axis=1,
    )
