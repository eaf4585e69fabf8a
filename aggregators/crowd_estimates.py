"""What is published of an epoch by crowd: the size of each, and how many in it hold each item."""

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
from dpstream.aggregators.found_items import FoundItems
from dpstream.aggregators.item_estimates import ItemEstimates

WITHHELD: Final = "crowds-withheld"
"""Flag: of some crowds too few messages were left, and nothing is told of them."""


@dataclass(frozen=True, slots=True, eq=False)
class CrowdEstimate:
    """One crowd.

    Attributes:
        left: messages that were left of it.
        size: how many users are in it.
        items: how many of these hold each item.
    """

    left: int
    size: Estimate
    items: ItemEstimates

    def plus(self, later: CrowdEstimate) -> CrowdEstimate:
        """The sums with those of another epoch."""
        numbers = [self.size.value, later.size.value]
        deviations = [self.size.standard_deviation, later.size.standard_deviation]
        halves = [(each.high or 0.0) - (each.value or 0.0) for each in (self.size, later.size)]
        size = Estimate.around(
            math.fsum(number or 0.0 for number in numbers),
            math.hypot(*(deviation or 0.0 for deviation in deviations)),
            math.hypot(*halves),
            self.size.reports + later.size.reports,
            self.size.population + later.size.population,
        )
        return CrowdEstimate(self.left + later.left, size, self.items.plus(later.items))

    def to_json(self) -> dict[str, Any]:
        """The fields, as JSON values."""
        return {"left": self.left, "size": self.size.to_json(), "items": self.items.to_json()}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Read `to_json`."""
        size, items = Estimate.from_json(body["size"]), ItemEstimates.from_json(body["items"])
        return cls(int(body["left"]), size, items)


@dataclass(frozen=True, eq=False)
class CrowdEstimates(EstimatedCounts, CountedWindow):
    """All crowds; those that were withheld are None.

    Items are numbered crowd by crowd: first the crowd itself, whose estimate is its size, and then
    the items in it.

    Attributes:
        crowds: the first one first.
        reports: messages that were left of all crowds.
        population: users of all crowds and of none.
        flags: what a reader has to know.
    """

    crowds: tuple[CrowdEstimate | None, ...]
    items: int
    reports: int
    population: int
    flags: tuple[str, ...] = field(default=())

    @property
    def released(self) -> dict[int, CrowdEstimate]:
        """Those that were not withheld, by their places from 0 on."""
        return {place: each for place, each in enumerate(self.crowds) if each is not None}

    @property
    def withheld(self) -> tuple[int, ...]:
        """The numbers of crowds that were withheld, as items."""
        per_crowd = self.items + 1
        places = range(len(self.crowds))
        return tuple(1 + place * per_crowd for place in places if self.crowds[place] is None)

    @property
    def standard_deviation(self) -> float | None:  # type: ignore[override]
        """That of the item that is estimated worst."""
        deviations = (each.items.standard_deviation for each in self.released.values())
        return max(deviations, default=None)

    @property
    def found_above(self) -> float | None:  # type: ignore[override]
        """None if no crowd was withheld; otherwise of what was, nothing is known."""
        return float(self.population) if self.withheld else None

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """Those of crowds that were not withheld."""
        per_crowd = self.items + 1
        found = [1 + place * per_crowd + np.arange(per_crowd) for place in self.released]
        return np.concatenate([np.zeros(0, np.int64), *found])

    @cached_property
    def intervals(self) -> NDArray[np.float64]:
        """See `EstimatedCounts`."""
        found = [np.zeros((3, 0))]
        for each in self.released.values():
            size = each.size.intervals
            found += [size, each.items.intervals]
        return np.concatenate(found, axis=1)

    def crowd(self, place: int) -> ItemEstimates | None:
        """The items of one crowd; None if it was withheld."""
        found = self.crowds[place]
        return None if found is None else found.items

    @property
    def headline(self) -> Estimate | None:
        """The largest estimate of an item in a crowd; None if all crowds were withheld."""
        return self.top(1).headline

    @property
    def estimates(self) -> Self:
        """Itself."""
        return self

    @property
    def method(self) -> str:
        """See `Counts`."""
        return "of each item in each crowd by itself, for as many users as the crowd is likely of"

    def of_items(self, items: Sequence[int] | None = None) -> Iterator[tuple[int, Estimate]]:
        """See `Counts`; nothing is known of crowds that were withheld."""
        per_crowd = self.items + 1
        for number in self.numbers.tolist() if items is None else items:
            place, item = divmod(number - 1, per_crowd)
            found = self.crowds[place]
            if found is not None:
                yield number, found.items.item(item - 1) if item else found.size

    def top(self, count: int) -> FoundItems:
        """The largest estimates of items in crowds; crowds themselves are not among them.

        The error bar is that of the one of them that is estimated worst.
        """
        return self.top_of(range(1, 1 + len(self.crowds) * (self.items + 1)), count)

    def top_of(self, numbers: range, count: int) -> FoundItems:
        """See `Counts`, and `top`."""
        per_crowd = self.items + 1
        places = (self.numbers - 1) // per_crowd
        items = (self.numbers - 1) % per_crowd > 0
        items &= (self.numbers >= numbers.start) & (self.numbers < numbers.stop)
        found, values = self.numbers[items], self.intervals[0, items]
        order = np.argsort(-values, kind="stable")[:count]
        shown = [self.released[place].items for place in np.unique(places[items][order]).tolist()]
        half_width = max((each.half_width for each in shown), default=0.0)
        # Of crowds that were withheld nothing is known.
        above = float(self.population)
        if len(order) and not self.withheld:
            above = float(values[order[-1]]) + half_width
        return FoundItems(
            items=found[order],
            values=values[order],
            standard_deviation=max((each.standard_deviation for each in shown), default=0.0),
            half_width=half_width,
            found_above=above,
            reports=self.reports,
            population=self.population,
            flags=self.flags,
        )

    def plus(self, later: Self) -> CrowdEstimates:
        """The sums with those of another epoch; of a crowd that was withheld at one there is none.

        Raises:
            ValueError: it has other crowds.
        """
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
        """The fields as JSON values; a crowd that was withheld is null."""
        return {
            "crowds": [None if each is None else each.to_json() for each in self.crowds],
            "items_of_each": self.items,
            "reports": self.reports,
            "population": self.population,
            "flags": list(self.flags),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Read `to_json`.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        crowds = tuple(
            None if each is None else CrowdEstimate.from_json(each) for each in body["crowds"]
        )
        items = int(body["items_of_each"])
        for each in crowds:
            if each is not None and len(each.items.values) != items:
                raise ValueError(f"{len(each.items.values)} items in a crowd, of {items}")
        people = int(body["reports"]), int(body["population"])
        return cls(crowds, items, *people, tuple(body["flags"]))
