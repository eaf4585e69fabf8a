"""An epoch's counts, the queries they answer, and the estimates published from them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dpstream.aggregators.estimate import Estimate
    from dpstream.aggregators.grid_counts import GridCounts
    from dpstream.aggregators.heavy_hitters import HeavyHitters
    from dpstream.aggregators.item_estimates import ItemEstimates
    from dpstream.aggregators.range_estimates import Quantile


class UnsupportedQueryError(ValueError):
    """The counts of a job do not support this query; the message says what it requires."""


class NoValuesError(ValueError):
    """Quantiles do not exist because, according to the estimates, no user has a value."""


class Counts(ABC):
    """Answers to queries about items, ranges and quantiles.

    Items are numbered from 1; buckets and values along an axis are numbered from 0. Unsupported
    queries raise `UnsupportedQueryError`.
    """

    __slots__ = ()

    reports: int
    population: int
    flags: tuple[str, ...]

    @property
    def about(self) -> tuple[int, int, tuple[str, ...]]:
        return self.reports, self.population, self.flags

    @property
    def method(self) -> str:
        return "each item separately, unbiased"

    @property
    def error_sample(self) -> NDArray[np.float64] | None:
        """Sample of errors in single items, float64; None if noise is their only source."""
        return None

    @property
    def suppressed(self) -> tuple[int, ...]:
        """Item numbers of suppressed items, for which too few messages are left."""
        return ()

    @property
    def suppressed_because(self) -> str:
        """Reason for which items are suppressed, as the end of a sentence."""
        return "too few messages remained after deletion"

    @abstractmethod
    def of_items(self, items: Sequence[int] | None = None) -> Iterator[tuple[int, Estimate]]:
        """Yield the known items among `items` (None for all) with their estimates."""

    @abstractmethod
    def top(self, count: int) -> HeavyHitters:
        """Return the `count` items with the largest estimates, in descending order."""

    def top_of(self, numbers: range, count: int) -> HeavyHitters:
        """Return the top items in one crowd, whose item numbers are `numbers`."""
        raise UnsupportedQueryError("this job has no crowds")

    def listed(self, most: int | None = None) -> ItemEstimates | None:
        """Return all estimates, or None if there are more than `most` or too many to list."""
        return None

    @property
    def tree(self) -> GridCounts | None:
        """Tree from which counts of ranges and boxes are computed, or None if there is no tree."""
        return None

    def box(self, starts: Sequence[int], ends: Sequence[int]) -> Estimate:
        """Estimate how many users have a value or point in [start, end) along each axis."""
        raise _no_order()

    def quantile(self, share: float) -> Quantile:
        """Return the value below which a fraction `share` of values lies; raise `NoValuesError`."""
        raise _no_order()


def _no_order() -> UnsupportedQueryError:
    return UnsupportedQueryError(
        "ranges, boxes and quantiles require protocol count_min with 'queries: ranges'"
    )


class CountedWindow(ABC):
    """Counts of an epoch, or their sum over several epochs.

    Attributes:
        averages: True if the estimates are means over the epochs, not sums.
    """

    __slots__ = ()

    averages: ClassVar[bool] = False

    @property
    @abstractmethod
    def estimates(self) -> Counts:
        """The estimates of the window."""

    @abstractmethod
    def plus(self, later: Self) -> CountedWindow:
        """Add the window of another epoch, whose noise is independent."""


WindowT = TypeVar("WindowT", bound=CountedWindow)


def added_up(windows: Iterable[WindowT | None]) -> WindowT | None:
    total: WindowT | None = None
    for window in windows:
        if window is None:
            return None
        total = window if total is None else cast(WindowT, total.plus(window))
    return total


class EstimatedCounts(Counts):
    """Published counts of an epoch: a single count, or one for each of several items.

    Attributes:
        standard_error: Standard error of each estimate; None if unknown.
        detection_threshold: Number of users above which an item is included with a probability of
            95 %. None if all items of a domain are included.
        averaged: Number of epochs over which the counts are averaged; None for a single epoch.
    """

    __slots__ = ()

    standard_error: float | None
    detection_threshold: float | None
    averaged: int | None = None

    @property
    @abstractmethod
    def numbers(self) -> NDArray[np.int64]:
        """Numbers of the items that have an estimate, shape (items,); a single count is item 1."""

    @property
    @abstractmethod
    def intervals(self) -> NDArray[np.float64]:
        """Values, and the lower and upper ends of their 95 % intervals, shape (3, items)."""

    @property
    @abstractmethod
    def headline(self) -> Estimate | None:
        """The largest estimate, if any."""

    def intervals_of(self, items: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the `intervals` of `items`, shape (3, items); nan for unknown items."""
        places = {number: place for place, number in enumerate(self.numbers.tolist())}
        rows = np.array([places.get(item, -1) for item in items.tolist()], np.intp)
        return np.append(self.intervals, np.full((3, 1), np.nan), axis=1)[:, rows]

    def ranges(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the `intervals` of ranges [start, end) of buckets, shape (3, ranges)."""
        raise _no_order()

    @property
    def single(self) -> Estimate | None:
        """The estimate itself if it is a single count; otherwise None."""
        return None

    @property
    def simultaneous_half_width(self) -> float | None:
        """Half-width of 95 % intervals that jointly cover all counts of the domain, if known."""
        return None

    def may_be_of(self, items: int) -> bool:
        """Return whether the estimates fit a domain of `items` items and are finite."""
        numbers, intervals = self.numbers, self.intervals
        if self.detection_threshold is None:
            fits = len(numbers) == items
        else:
            fits = bool(((numbers >= 1) & (numbers <= items)).all())
            fits = fits and math.isfinite(self.detection_threshold)
        return fits and intervals.shape == (3, len(numbers)) and bool(np.isfinite(intervals).all())

    def change_from(
        self, earlier: EstimatedCounts, standard_error: float
    ) -> Estimate | ItemEstimates | None:
        return None

    def _with(self, earlier: EstimatedCounts) -> tuple[int, int, tuple[str, ...]]:
        flags = tuple(dict.fromkeys((*self.flags, *earlier.flags)))
        return earlier.reports + self.reports, self.population, flags

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
