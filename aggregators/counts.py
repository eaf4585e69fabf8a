"""What is known of an epoch, what it can be asked, and what may be published of it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dpstream.aggregators.estimate import Estimate
    from dpstream.aggregators.found_items import FoundItems
    from dpstream.aggregators.grid_counts import GridCounts
    from dpstream.aggregators.item_estimates import ItemEstimates
    from dpstream.aggregators.range_estimates import Quantile


class NotAskedForError(ValueError):
    """The counts of a job were not made for this question; the message says which are."""


class NoValuesError(ValueError):
    """By all that is known no user has a value, so there are no quantiles."""


class Counts(ABC):
    """How many users hold what: the answers to questions about items, ranges and quantiles.

    Items have numbers from 1 on; buckets and values along an axis are counted from 0. A kind of
    counts that cannot answer a question raises `NotAskedForError`.

    Attributes:
        reports: how many reports they rest on.
        population: how many users they are about.
        flags: what a reader has to know, such as `dpstream.aggregators.estimate.GAP`.
    """

    __slots__ = ()

    reports: int
    population: int
    flags: tuple[str, ...]

    @property
    def about(self) -> tuple[int, int, tuple[str, ...]]:
        """Reports, population and flags."""
        return self.reports, self.population, self.flags

    @property
    def method(self) -> str:
        """How the estimates are made, in words."""
        return "of each item by itself, without bias"

    @property
    def error_sample(self) -> NDArray[np.float64] | None:
        """A sample of the errors of single items, float64; None where noise alone makes them."""
        return None

    @property
    def withheld(self) -> tuple[int, ...]:
        """Items that nothing is told of, since too few users are left of those they are about."""
        return ()

    @abstractmethod
    def of_items(self, items: Sequence[int] | None = None) -> Iterator[tuple[int, Estimate]]:
        """The items that are known among these, or among all, and their estimates."""

    @abstractmethod
    def top(self, count: int) -> FoundItems:
        """So many of the items with the largest estimates, the largest first."""

    def top_of(self, numbers: range, count: int) -> FoundItems:
        """The same of the items with these numbers, which are those of a crowd."""
        raise NotAskedForError("crowds are for jobs that have some")

    def listed(self, most: int | None = None) -> ItemEstimates | None:
        """The estimates of all items; None if they cannot be listed, or are more than so many."""
        return None

    @property
    def tree(self) -> GridCounts | None:
        """The counts of ranges and boxes that it rests on; None where there are none."""
        return None

    def box(self, starts: Sequence[int], ends: Sequence[int]) -> Estimate:
        """How many values or points lie from a start to before an end along each axis."""
        raise _no_order()

    def quantile(self, share: float) -> Quantile:
        """Below which value so large a share of the values lies.

        Raises:
            NoValuesError: there is none.
        """
        raise _no_order()


def _no_order() -> NotAskedForError:
    return NotAskedForError(
        "ranges, boxes and quantiles are for jobs of count_min with queries: ranges"
    )


class CountedWindow(ABC):
    """What was counted at an epoch, or at several added up."""

    __slots__ = ()

    @property
    @abstractmethod
    def estimates(self) -> Counts:
        """What it says."""

    @abstractmethod
    def plus(self, later: Self) -> CountedWindow:
        """The sums with those of another epoch, whose noise was drawn anew."""


WindowT = TypeVar("WindowT", bound=CountedWindow)


def added_up(windows: Iterable[WindowT | None]) -> WindowT | None:
    """Return the sum of several epochs' windows; None if one of them was withheld."""
    total: WindowT | None = None
    for window in windows:
        if window is None:
            return None
        total = window if total is None else cast(WindowT, total.plus(window))
    return total


class EstimatedCounts(Counts):
    """What is published of an epoch: the estimate of a count, or those of several items.

    Attributes:
        standard_deviation: of the noise of each estimate; None where nothing can be said.
        found_above: an item that more users hold is among its items with a probability of 95 %;
            None where it is about all items of a domain.
    """

    __slots__ = ()

    standard_deviation: float | None
    found_above: float | None

    @property
    @abstractmethod
    def numbers(self) -> NDArray[np.int64]:
        """The items that have an estimate, shape (items,); a single count is item 1."""

    @property
    @abstractmethod
    def intervals(self) -> NDArray[np.float64]:
        """Values, lows and highs of all of them, shape (3, items)."""

    @property
    @abstractmethod
    def headline(self) -> Estimate | None:
        """The largest of its estimates; None where there is none."""

    def intervals_of(self, items: NDArray[np.int64]) -> NDArray[np.float64]:
        """Values, lows and highs of these items, shape (3, items); nan where there is none."""
        places = {number: place for place, number in enumerate(self.numbers.tolist())}
        rows = np.array([places.get(item, -1) for item in items.tolist()], np.intp)
        return np.append(self.intervals, np.full((3, 1), np.nan), axis=1)[:, rows]

    def ranges(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.float64]:
        """Values, lows and highs of many ranges of buckets at once, shape (3, ranges)."""
        raise _no_order()

    @property
    def single(self) -> Estimate | None:
        """Itself, if it is the estimate of a single count."""
        return None

    @property
    def simultaneous_half_width(self) -> float | None:
        """Half the width of intervals that hold all counts of the domain at once; None if open."""
        return None

    def may_be_of(self, items: int) -> bool:
        """Whether this can be about a domain of so many items, and its numbers are finite."""
        numbers, intervals = self.numbers, self.intervals
        if self.found_above is None:
            fits = len(numbers) == items
        else:
            fits = bool(((numbers >= 1) & (numbers <= items)).all())
            fits = fits and math.isfinite(self.found_above)
        return fits and intervals.shape == (3, len(numbers)) and bool(np.isfinite(intervals).all())

    def change_from(
        self, earlier: EstimatedCounts, standard_deviation: float
    ) -> Estimate | ItemEstimates | None:
        """By how much this is above an earlier one; None where they are not of the same counts.

        Args:
            earlier: of an epoch before.
            standard_deviation: of the noise of the change.
        """
        return None

    def _with(self, earlier: EstimatedCounts) -> tuple[int, int, tuple[str, ...]]:
        """Reports, population and flags of the change from an earlier one."""
        flags = tuple(dict.fromkeys((*self.flags, *earlier.flags)))
        return earlier.reports + self.reports, self.population, flags

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
