"""How many users' values lie in any range, and between which values any share of them lies."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.counts import NoValuesError
from dpstream.aggregators.estimate import NORMAL_95, Estimate
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.randomizers.value_tree import range_variances

Ends = NDArray[np.int64] | int


@dataclass(frozen=True, slots=True, eq=False)
class OrderedEstimates(ItemEstimates, ABC):
    """How many users' values lie in each of several buckets, which have an order."""

    @property
    @abstractmethod
    def total(self) -> float:
        """How many users have a value."""

    @abstractmethod
    def variances(self, starts: Ends, ends: Ends) -> NDArray[np.float64]:
        """Of ranges of buckets, of the shape that starts and ends have together."""

    def range(self, start: int, end: int) -> Estimate:
        """How many values lie in the buckets from `start`, counted from 0, up to before `end`.

        Raises:
            ValueError: there are no such buckets.
        """
        if not 0 <= start < end <= len(self.values):
            raise ValueError(f"buckets {start} to {end}, must be from 0 to {len(self.values)}")
        deviation = math.sqrt(float(self.variances(start, end)))
        value, half_width = float(self.values[start:end].sum()), NORMAL_95 * deviation
        return Estimate.around(value, deviation, half_width, *self.about)

    def box(self, starts: Sequence[int], ends: Sequence[int]) -> Estimate:
        """See `Counts`: as `range`."""
        return self.range(*starts, *ends)

    def ranges(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.float64]:
        """Values, lows and highs of many ranges at once, shape (3, ranges)."""
        below = np.insert(np.cumsum(self.values), 0, 0.0)
        values = below[ends] - below[starts]
        widths = NORMAL_95 * np.sqrt(self.variances(starts, ends))
        return np.stack([values, values - widths, values + widths])

    def cumulative(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The values below the end of every bucket, and their standard deviations.

        Returns:
            float64, shape (buckets + 1,) each: number t is about the buckets before t. The first
            counts are 0 without any deviation, and the last ones `total`.
        """
        ends = np.arange(len(self.values) + 1)
        counts = np.insert(np.cumsum(self.values), 0, 0.0)
        counts[-1] = self.total
        return counts, np.sqrt(self.variances(0, ends))

    def quantile(self, share: float) -> Quantile:
        """Where so large a share of the values lies below, in buckets from 0 on.

        The value is read off the cumulative counts, made to increase by least squares (isotonic
        regression) and taken to be spread evenly within a bucket. The interval inverts a 95 % band
        around what they have more or less than the share of the total, which may be estimated too:
        it holds every bucket by whose end the share may have been reached and at whose beginning it
        may not have been passed. It is wider than it has to be.

        Args:
            share: above 0 and below 1; 0.5 is the median.

        Raises:
            ValueError: it is not, or by all that is known nobody has a value.
        """
        if not 0 < share < 1:
            raise ValueError(f"quantile {share}, must lie between 0 and 1")
        if not self.total > 0:
            raise NoValuesError("no users: no quantile")
        # Imported where it is used: devices import this module, and have no use for scipy.
        from scipy.optimize import isotonic_regression

        counts, _ = self.cumulative()
        wanted = share * self.total
        increasing = np.clip(isotonic_regression(counts).x, 0, self.total)
        # Of what is below an end, less the share of that and what is above it.
        size, ends = len(self.values), np.arange(len(self.values) + 1)
        below, above = self.variances(0, ends), self.variances(ends, size)
        variances = (1 - share) * below + share * above - share * (1 - share) * below[-1]
        margins = NORMAL_95 * np.sqrt(np.maximum(variances, 0))
        reached = increasing[1:] + margins[1:] >= wanted
        not_passed = increasing[:-1] - margins[:-1] <= wanted
        possible = np.flatnonzero(reached & not_passed)
        after = int(np.searchsorted(increasing, wanted))
        before = increasing[after - 1]
        value = after - 1 + (wanted - before) / (increasing[after] - before)
        low, high = int(possible[0]), int(possible[-1]) + 1
        return Quantile(min(max(float(value), low), high), low, high)


@dataclass(frozen=True, slots=True, eq=False)
class RangeEstimates(OrderedEstimates):
    """How many users' values lie in each of 2^L buckets; they add up to the population.

    Buckets are not independent: what one has too much its neighbours have too little. So the
    deviation of a range is less than its buckets' own would make it, and comes from the variances
    of the levels (`dpstream.randomizers.value_tree`).

    Attributes:
        level_variances: of a node's own estimate, for the levels 1 to L; infinite for levels that
            took no part.
    """

    level_variances: tuple[float, ...] = field(kw_only=True)

    @property
    def total(self) -> float:
        """All users: each of them has a value."""
        return float(self.population)

    def variances(self, starts: Ends, ends: Ends) -> NDArray[np.float64]:
        """Of ranges, of the shape that starts and ends have together."""
        return range_variances(np.array(self.level_variances), starts, ends)

    def to_json(self) -> dict[str, Any]:
        """As `ItemEstimates.to_json`, with the levels' variances; null for those without."""
        return {
            **ItemEstimates.to_json(self),
            "level_variances": [
                variance if math.isfinite(variance) else None for variance in self.level_variances
            ],
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Read `to_json`.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        variances = tuple(
            math.inf if variance is None else float(variance)
            for variance in body["level_variances"]
        )
        found = cls(**cls._shared(body), level_variances=variances)
        if len(found.values) != 1 << len(variances):
            raise ValueError(f"{len(found.values)} buckets and {len(variances)} levels")
        return found


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile, in buckets from 0 on: 2.5 is the middle of the third bucket.

    Attributes:
        value: its estimate.
        low: lower end of the 95 % interval, where a bucket begins.
        high: upper end, where a bucket ends.
    """

    value: float
    low: int
    high: int
