"""Estimated number of users with each item of a domain."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.counts import CountedWindow, EstimatedCounts
from dpstream.aggregators.estimate import NORMAL_95, Estimate
from dpstream.aggregators.heavy_hitters import HeavyHitters


def norm_sub(values: NDArray[np.float64], population: float) -> NDArray[np.float64]:
    """Shift all values by the same number and set negative ones to 0, to match a known total.

    This is the projection onto the nonnegative counts whose sum is the population. It assumes that
    every user has one of the items. It is biased: small counts come out too large and large ones
    too small. Use it for fractions and charts, alongside the unbiased estimates.

    >>> norm_sub(np.array([70.0, 40.0, -20.0]), 100).tolist()
    [65.0, 35.0, 0.0]

    Reference: Wang et al., "Locally differentially private frequency estimation with consistency",
    2020, Norm-Sub.
    """
    descending = np.sort(np.asarray(values, np.float64))[::-1]
    shifts = (np.cumsum(descending) - population) / np.arange(1, len(descending) + 1)
    # The values above their shift are the largest ones; there is at least one, except for rounding.
    kept = max(1, int(np.count_nonzero(descending > shifts)))
    projected: NDArray[np.float64] = np.maximum(values - shifts[kept - 1], 0.0)
    return projected


@dataclass(frozen=True, slots=True, eq=False)
class ItemEstimates(EstimatedCounts, CountedWindow):
    """Number of users with each item of a domain, all with the same 95 % interval width.

    Attributes:
        values: float64, shape (items,), in users, in the order of the domain; can be negative.
        half_width: Half-width of the 95 % interval around each value.
        lasting: Standard deviation of noise that can be the same at other epochs; not published.
    """

    values: NDArray[np.float64]
    standard_error: float
    half_width: float
    reports: int
    population: int
    flags: tuple[str, ...] = ()
    lasting: float = 0.0

    detection_threshold = None

    @property
    def numbers(self) -> NDArray[np.int64]:
        return np.arange(1, len(self.values) + 1)

    @property
    def intervals(self) -> NDArray[np.float64]:
        return self.intervals_of(self.numbers)

    @property
    def headline(self) -> Estimate:
        return self.item(int(self.values.argmax()))

    @property
    def simultaneous_half_width(self) -> float:
        quantile = NormalDist().inv_cdf(1 - 0.025 / len(self.values))
        return self.half_width * quantile / NORMAL_95

    def intervals_of(self, items: NDArray[np.int64]) -> NDArray[np.float64]:
        width = np.array([[0.0], [-self.half_width], [self.half_width]])
        return np.asarray(self.values[items - 1] + width, np.float64)

    def item(self, index: int) -> Estimate:
        """Return the estimate of the item at a zero-based index."""
        value = float(self.values[index])
        return Estimate.around(value, self.standard_error, self.half_width, *self.about)

    def of_items(self, items: Sequence[int] | None = None) -> Iterator[tuple[int, Estimate]]:
        for item in range(1, len(self.values) + 1) if items is None else items:
            yield item, self.item(item - 1)

    def top(self, count: int) -> HeavyHitters:
        """Select the items with the largest estimates, at most `count`.

        Selection biases upwards, because an item is more likely to be selected when its noise is
        positive. The 95 % intervals of selected items therefore contain the count less often than
        19 times in 20. The simultaneous intervals are wider and do not depend on the selection.

        >>> every = ItemEstimates(np.array([5.0, 70.0, 30.0]), 10.0, 19.6, 99, 100)
        >>> every.top(2).items.tolist(), round(every.simultaneous_half_width, 1)
        ([2, 3], 23.9)
        """
        count = min(count, len(self.values))
        candidates = np.flatnonzero(self.values >= np.partition(self.values, -count)[-count])
        order = candidates[np.argsort(-self.values[candidates], kind="stable")][:count]
        values = self.values[order]
        above = float(values[-1]) + self.half_width
        return HeavyHitters(
            order + 1, values, self.standard_error, self.half_width, above, *self.about
        )

    def listed(self, most: int | None = None) -> Self | None:
        return None if most is not None and len(self.values) > most else self

    @property
    def estimates(self) -> Self:
        return self

    def plus(self, later: Self) -> ItemEstimates:
        """Add another epoch; standard deviations of lasting noise add, unlike others."""
        shared = math.sqrt(2 * self.lasting * later.lasting)
        deviation = math.hypot(self.standard_error, later.standard_error, shared)
        return ItemEstimates(
            values=np.asarray(self.values + later.values, np.float64),
            standard_error=deviation,
            half_width=math.hypot(self.half_width, later.half_width, NORMAL_95 * shared),
            reports=self.reports + later.reports,
            population=self.population + later.population,
            flags=tuple(dict.fromkeys(self.flags + later.flags)),
            lasting=self.lasting + later.lasting,
        )

    def of_window(self, mean: ItemEstimates, window: Sequence[ItemEstimates]) -> ItemEstimates:
        """Return the mean over a window as an instance of this class, with all of its details."""
        return mean

    def change_from(self, earlier: EstimatedCounts, standard_error: float) -> ItemEstimates | None:
        before = earlier.listed()
        if before is None:
            return None
        width = NORMAL_95 * standard_error
        values = self.values - before.values
        return ItemEstimates(values, standard_error, width, *self._with(earlier))

    def to_json(self) -> dict[str, Any]:
        return {
            "items": np.round(self.values, 1).tolist(),
            "standard_error": self.standard_error,
            "half_width": self.half_width,
            "reports": self.reports,
            "population": self.population,
            "flags": list(self.flags),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        return cls(**cls._shared(body))

    @classmethod
    def _shared(cls, body: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "values": np.array(body["items"], np.float64),
            "standard_error": float(body["standard_error"]),
            "half_width": float(body["half_width"]),
            "reports": int(body["reports"]),
            "population": int(body["population"]),
            "flags": tuple(body["flags"]),
        }
