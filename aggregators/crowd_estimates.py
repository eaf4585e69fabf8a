"""Published estimates by crowd: each crowd's size, and its number of users with each item."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.counts import CountedWindow, EstimatedCounts
from dpstream.aggregators.estimate import Estimate
from dpstream.aggregators.heavy_hitters import HeavyHitters
from dpstream.aggregators.item_estimates import ItemEstimates

SUPPRESSED: Final = "crowds-suppressed"
"""Flag: some crowds are suppressed because too few messages remain after random deletion."""


@dataclass(frozen=True, slots=True, eq=False)
class CrowdEstimate:
    """Estimates of one crowd: messages kept by the shuffler, users, and users with each item."""

    left: int
    size: Estimate
    items: ItemEstimates

    def plus(self, later: CrowdEstimate) -> CrowdEstimate:
        numbers = [self.size.value, later.size.value]
        deviations = [self.size.standard_error, later.size.standard_error]
        halves = [(each.ci95_high or 0.0) - (each.value or 0.0) for each in (self.size, later.size)]
        size = Estimate.around(
            math.fsum(number or 0.0 for number in numbers),
            math.hypot(*(deviation or 0.0 for deviation in deviations)),
            math.hypot(*halves),
            self.size.reports + later.size.reports,
            self.size.population + later.size.population,
        )
        return CrowdEstimate(self.left + later.left, size, self.items.plus(later.items))

    def to_json(self) -> dict[str, Any]:
        return {"left": self.left, "size": self.size.to_json(), "items": self.items.to_json()}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        size, items = Estimate.from_json(body["size"]), ItemEstimates.from_json(body["items"])
        return cls(int(body["left"]), size, items)


@dataclass(frozen=True, eq=False)
class CrowdEstimates(EstimatedCounts, CountedWindow):
    """Estimates for all crowds; None for a suppressed crowd.

    Items are numbered by crowd: first the crowd itself, whose estimate is its size, then its items.
    `reports` are the messages kept by the shuffler. `population` includes users without a crowd.
    """

    crowds: tuple[CrowdEstimate | None, ...]
    items: int
    reports: int
    population: int
    flags: tuple[str, ...] = field(default=())

    @property
    def released(self) -> dict[int, CrowdEstimate]:
        return {place: each for place, each in enumerate(self.crowds) if each is not None}

    @property
    def suppressed(self) -> tuple[int, ...]:
        per_crowd = self.items + 1
        places = range(len(self.crowds))
        return tuple(1 + place * per_crowd for place in places if self.crowds[place] is None)

    @property
    def standard_error(self) -> float | None:  # type: ignore[override]
        deviations = (each.items.standard_error for each in self.released.values())
        return max(deviations, default=None)

    @property
    def detection_threshold(self) -> float | None:  # type: ignore[override]
        return float(self.population) if self.suppressed else None

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        per_crowd = self.items + 1
        found = [1 + place * per_crowd + np.arange(per_crowd) for place in self.released]
        return np.concatenate([np.zeros(0, np.int64), *found])

    @cached_property
    def intervals(self) -> NDArray[np.float64]:
        found = [np.zeros((3, 0))]
        for each in self.released.values():
            size = each.size.intervals
            found += [size, each.items.intervals]
        return np.concatenate(found, axis=1)

    def crowd(self, place: int) -> ItemEstimates | None:
        found = self.crowds[place]
        return None if found is None else found.items

    @property
    def headline(self) -> Estimate | None:
        return self.top(1).headline

    @property
    def estimates(self) -> Self:
        return self

    @property
    def method(self) -> str:
        return "each item in each crowd separately, given the crowd's estimated size"

    def of_items(self, items: Sequence[int] | None = None) -> Iterator[tuple[int, Estimate]]:
        per_crowd = self.items + 1
        for number in self.numbers.tolist() if items is None else items:
            place, item = divmod(number - 1, per_crowd)
            found = self.crowds[place]
            if found is not None:
                yield number, found.items.item(item - 1) if item else found.size

    def top(self, count: int) -> HeavyHitters:
        return self.top_of(range(1, 1 + len(self.crowds) * (self.items + 1)), count)

    def top_of(self, numbers: range, count: int) -> HeavyHitters:
        per_crowd = self.items + 1
        places = (self.numbers - 1) // per_crowd
        items = (self.numbers - 1) % per_crowd > 0
        items &= (self.numbers >= numbers.start) & (self.numbers < numbers.stop)
        found, values = self.numbers[items], self.intervals[0, items]
        order = np.argsort(-values, kind="stable")[:count]
        shown = [self.released[place].items for place in np.unique(places[items][order]).tolist()]
        half_width = max((each.half_width for each in shown), default=0.0)
        # Suppressed crowds are unknown.
        above = float(self.population)
        if len(order) and not self.suppressed:
            above = float(values[order[-1]]) + half_width
        return HeavyHitters(
            items=found[order],
            values=values[order],
            standard_error=max((each.standard_error for each in shown), default=0.0),
            half_width=half_width,
            detection_threshold=above,
            reports=self.reports,
            population=self.population,
            flags=self.flags,
        )

    def plus(self, later: Self) -> CrowdEstimates:
        """Add another epoch; a crowd suppressed in either is suppressed in the sum."""
        both = zip(self.crowds, later.crowds, strict=True)
        sums = (None if one is None or other is None else one.plus(other) for one, other in both)
        return replace(
            self,
            crowds=tuple(sums),
            reports=self.reports + later.reports,
            population=self.population + later.population,
            flags=tuple(dict.fromkeys(self.flags + later.flags)),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "crowds": [None if each is None else each.to_json() for each in self.crowds],
            "items_of_each": self.items,
            "reports": self.reports,
            "population": self.population,
            "flags": list(self.flags),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        crowds = tuple(
            None if each is None else CrowdEstimate.from_json(each) for each in body["crowds"]
        )
        items = int(body["items_of_each"])
        for each in crowds:
            if each is not None and len(each.items.values) != items:
                raise ValueError(
                    f"a crowd has estimates for {len(each.items.values)} items; expected {items}"
                )
        people = int(body["reports"]), int(body["population"])
        return cls(crowds, items, *people, tuple(body["flags"]))
