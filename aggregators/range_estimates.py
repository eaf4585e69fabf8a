"""Estimated number of users with values in any range, and quantiles of the values."""

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
    @property
    @abstractmethod
    def total(self) -> float:
        """Number of users with a value."""

    @abstractmethod
    def variances(self, starts: Ends, ends: Ends) -> NDArray[np.float64]:
        """Return the variances of ranges [start, end) of buckets; starts and ends broadcast."""

    def range(self, start: int, end: int) -> Estimate:
        if not 0 <= start < end <= len(self.values):
            raise ValueError(f"range [{start}, {end}) is empty or not in [0, {len(self.values)})")
        deviation = math.sqrt(float(self.variances(start, end)))
        value, half_width = float(self.values[start:end].sum()), NORMAL_95 * deviation
        return Estimate.around(value, deviation, half_width, *self.about)

    def box(self, starts: Sequence[int], ends: Sequence[int]) -> Estimate:
        return self.range(*starts, *ends)

    def ranges(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.float64]:
        below = np.insert(np.cumsum(self.values), 0, 0.0)
        values = below[ends] - below[starts]
        widths = NORMAL_95 * np.sqrt(self.variances(starts, ends))
        return np.stack([values, values - widths, values + widths])

    def cumulative(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return cumulative counts before each bucket, and their errors; shape (buckets + 1,)."""
        ends = np.arange(len(self.values) + 1)
        counts = np.insert(np.cumsum(self.values), 0, 0.0)
        counts[-1] = self.total
        return counts, np.sqrt(self.variances(0, ends))

    def quantile(self, share: float) -> Quantile:
        """Estimate the position, in buckets from 0, below which a fraction `share` of values lies.

        Values are assumed to be spread evenly within a bucket. The interval contains every bucket
        that a 95 % band around the cumulative counts allows, and is wider than necessary. Raises
        `ValueError` if share is not between 0 and 1, or the estimated total is not positive.
        """
        if not 0 < share < 1:
            raise ValueError(f"quantile is {share}; expected a number above 0 and below 1")
        if not self.total > 0:
            raise NoValuesError("a quantile requires at least one user")
        # Imported here because devices import this module but do not need scipy.
        from scipy.optimize import isotonic_regression

        counts, _ = self.cumulative()
        target = share * self.total
        increasing = np.clip(isotonic_regression(counts).x, 0, self.total)
        # Variance of the count below an end, minus a fraction of the counts below and above it.
        size, ends = len(self.values), np.arange(len(self.values) + 1)
        below, above = self.variances(0, ends), self.variances(ends, size)
        variances = (1 - share) * below + share * above - share * (1 - share) * below[-1]
        margins = NORMAL_95 * np.sqrt(np.maximum(variances, 0))
        reached = increasing[1:] + margins[1:] >= target
        not_passed = increasing[:-1] - margins[:-1] <= target
        possible = np.flatnonzero(reached & not_passed)
        after = int(np.searchsorted(increasing, target))
        before = increasing[after - 1]
        value = after - 1 + (target - before) / (increasing[after] - before)
        low, high = int(possible[0]), int(possible[-1]) + 1
        return Quantile(min(max(float(value), low), high), low, high)


@dataclass(frozen=True, slots=True, eq=False)
class RangeEstimates(OrderedEstimates):
    """Number of users with values in each of 2^L buckets; the total is the population.

    An excess in one bucket is missing in its neighbors, so the variance of a range is less than the
    sum of its buckets' variances (`dpstream.randomizers.value_tree`).

    Attributes:
        level_variances: Variance of a node's own estimate on levels 1 to L; inf if unused.
    """

    level_variances: tuple[float, ...] = field(kw_only=True)

    @property
    def total(self) -> float:
        return float(self.population)

    def variances(self, starts: Ends, ends: Ends) -> NDArray[np.float64]:
        return range_variances(np.array(self.level_variances), starts, ends)

    def to_json(self) -> dict[str, Any]:
        return {
            **ItemEstimates.to_json(self),
            "level_variances": [
                variance if math.isfinite(variance) else None for variance in self.level_variances
            ],
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        variances = tuple(
            math.inf if variance is None else float(variance)
            for variance in body["level_variances"]
        )
        found = cls(**cls._shared(body), level_variances=variances)
        if len(found.values) != 1 << len(variances):
            raise ValueError(f"got {len(found.values)} buckets; expected {1 << len(variances)}")
        return found


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile and its 95 % interval, in buckets from 0: 2.5 is the middle of bucket 2."""

    value: float
    ci95_low: int
    ci95_high: int
