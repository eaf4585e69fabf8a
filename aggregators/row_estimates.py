"""How many users hold an item, from rows of buckets: Count-Min and its relatives.

In every row an item's cell holds the item, other items and noise. What it holds beside the item is
what any cell of the row holds, so the error of an estimator is known from the cells themselves: it
is what the estimator says of somebody who has no item at all. That shows how skewed the counts are,
and which estimator is best; min, mean and median all are good for some windows.
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
from dpstream.aggregators.found_items import FoundItems
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.randomizers.cell_codes.hashed_rows import HashedRows
from dpstream.randomizers.count_min import Estimator
from dpstream.randomizers.public_matrices import public_words
from dpstream.randomizers.row_errors import normal_errors

ESTIMATORS: Final[tuple[Estimator, ...]] = ("median", "min", "mean")

_ONE_SIDED: Final = ("estimator: one-sided",)
_SAMPLED: Final = 50_000
_AT_ONCE: Final = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class RowEstimates(Counts):
    """Estimates of all items of a window, each made when it is asked for.

    Attributes:
        code: which cells an item has.
        cells: float64, shape (rows, buckets): counts without the mean of the noise.
        estimator: how rows are put together; None where every item has a cell of its own.
        offset: what is taken off.
        shrinking: how much of an item it sees: less than 1 where the offset is a mean over all
            cells, which the item is in.
        standard_deviation: of an estimate.
        half_width: of its 95 % interval.
        errors: a sample of its errors, float64.
        reports: how many contributors they rest on.
        population: users the estimates are about.
        flags: which estimator was used.
    """

    code: HashedRows
    cells: NDArray[np.float64]
    estimator: Estimator | None
    offset: float
    shrinking: float
    standard_deviation: float
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
        """The estimates of a window.

        Args:
            code: which cells an item has.
            cells: counts without the mean of their noise, float64, shape (code.cells,).
            noise_variance: of each of them.
            population: how many users the counts are about.
            estimator: None for the one with the least predicted error.
            reports: how many contributors they rest on; None for all users.
            allowance: what is added, with the estimator min, so that estimates are one-sided.
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
                standard_deviation=math.hypot(deviation, allowance),
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
            standard_deviation=math.sqrt(float(np.square(found).mean())),
            half_width=float(np.quantile(np.abs(found), 0.95)),
            errors=found,
            reports=reports,
            population=population,
            flags=_ONE_SIDED if allowance else (f"estimator: {best}",),
        )

    @property
    def error_sample(self) -> NDArray[np.float64]:
        """See `errors`."""
        return self.errors

    @property
    def predicted_error(self) -> float:
        """Mean absolute error of an item that few hold."""
        return float(np.abs(self.errors).mean())

    def values(self, items: NDArray[np.int64]) -> NDArray[np.float64]:
        """How many users hold each of these items, float64; some may be negative.

        Args:
            items: int64, shape (items,), from 1 on.
        """
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
        """The estimate of one item."""
        ((_, estimate),) = self.of_items([item])
        return estimate

    def of_items(self, items: Sequence[int] | None = None) -> Iterator[tuple[int, Estimate]]:
        """See `Counts`."""
        chosen = range(1, self.code.size + 1) if items is None else items
        # All at once: of a million items, one at a time takes a minute.
        values = self.values(np.array(chosen, np.int64)).tolist()
        for item, value in zip(chosen, values, strict=True):
            yield (
                item,
                Estimate.around(value, self.standard_deviation, self.half_width, *self.about),
            )

    def top(self, count: int) -> FoundItems:
        """See `Counts`."""
        return self.all_items().top(count)

    def listed(self, most: int | None = None) -> ItemEstimates | None:
        """See `Counts`."""
        return None if most is not None and self.code.size > most else self.all_items()

    def all_items(self) -> ItemEstimates:
        """The estimates of all items of the domain."""
        values = self.values(np.arange(1, self.code.size + 1))
        return ItemEstimates(values, self.standard_deviation, self.half_width, *self.about)

    @property
    def method(self) -> str:
        """See `Counts`."""
        code = self.code
        if self.flags == _ONE_SIDED:
            return "the smallest cell of each item, less what its noise is hardly ever below"
        if code.direct:
            return "the cell of each item"
        rows = "one row" if code.rows == 1 else f"the {self.estimator} of {code.rows} rows"
        return f"{rows} of {code.buckets:,} buckets, less what any bucket holds"


def _debiasing(
    estimator: Estimator, nobody: NDArray[np.float64], cells: NDArray[np.float64]
) -> tuple[float, float]:
    """What to take off, and the share of the item that is left then.

    The published minimum takes off the noise alone, and is never below 0: whatever else is in the
    cells makes it too large. The median is made too large as often as too small. The mean is right
    on average: nothing is taken off but what other items have in a cell on average.
    """
    if estimator == "min":
        return 0.0, 1.0
    if estimator == "median":
        return float(np.median(nobody)), 1.0
    return float(cells.mean()), 1 - 1 / cells.shape[1]


def together(values: NDArray[np.float64], estimator: Estimator) -> NDArray[np.float64]:
    """One number of each item's cells: float64, shape (items,), of (items, rows)."""
    if estimator == "min":
        return np.asarray(values.min(axis=1), np.float64)
    if estimator == "mean":
        return np.asarray(values.mean(axis=1), np.float64)
    return np.asarray(np.median(values, axis=1), np.float64)


def _sampled_cells(cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cells here and there in every row, shape (read, rows); always the same ones."""
    buckets = np.uint64(cells.shape[1])
    return np.stack(
        [
            row[public_words(f"nobody in row {number}", _SAMPLED) % buckets]
            for number, row in enumerate(cells)
        ],
        axis=1,
    )
