"""The top items of a domain too large to list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.counts import EstimatedCounts
from dpstream.aggregators.estimate import Estimate


@dataclass(frozen=True, slots=True, eq=False)
class HeavyHitters(EstimatedCounts):
    """Items with their user counts, in descending order of the counts.

    Attributes:
        items: int64, item numbers, starting with 1.
        values: float64, of the same shape, in users.
        half_width: Half-width of the 95 % interval around each value.
    """

    items: NDArray[np.int64]
    values: NDArray[np.float64]
    standard_error: float
    half_width: float
    detection_threshold: float
    reports: int
    population: int
    flags: tuple[str, ...] = ()
    averaged: int | None = None

    @property
    def numbers(self) -> NDArray[np.int64]:
        return self.items

    @property
    def headline(self) -> Estimate | None:
        return self.estimate(0) if len(self.items) else None

    def estimate(self, index: int) -> Estimate:
        value = float(self.values[index])
        return Estimate.around(value, self.standard_error, self.half_width, *self.about)

    def of_items(self, items: Sequence[int] | None = None) -> Iterator[tuple[int, Estimate]]:
        for place, item in enumerate(self.items.tolist()):
            if items is None or item in items:
                yield item, self.estimate(place)

    def top(self, count: int) -> HeavyHitters:
        return replace(self, items=self.items[:count], values=self.values[:count])

    @property
    def intervals(self) -> NDArray[np.float64]:
        width = np.array([[0.0], [-self.half_width], [self.half_width]])
        return np.asarray(self.values + width, np.float64)

    def to_json(self) -> dict[str, Any]:
        return {
            "found": self.items.tolist(),
            "values": np.round(self.values, 1).tolist(),
            "standard_error": self.standard_error,
            "half_width": self.half_width,
            "detection_threshold": self.detection_threshold,
            "reports": self.reports,
            "population": self.population,
            "flags": list(self.flags),
            **({} if self.averaged is None else {"averaged_epochs": self.averaged}),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        items, values = np.array(body["found"], np.int64), np.array(body["values"], np.float64)
        if items.shape != values.shape or items.ndim != 1:
            raise ValueError(
                f"got {items.size} items and {values.size} values; expected one value per item"
            )
        averaged = body.get("averaged_epochs")
        return cls(
            items=items,
            values=values,
            standard_error=float(body["standard_error"]),
            half_width=float(body["half_width"]),
            detection_threshold=float(body["detection_threshold"]),
            reports=int(body["reports"]),
            population=int(body["population"]),
            flags=tuple(body["flags"]),
            averaged=None if averaged is None else int(averaged),
        )
