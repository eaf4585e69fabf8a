"""The curves that a job has, and what an estimate says of each of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aggregators.estimate import GAP
from aggregators.published import Published
from pipeline.results.queries import Query
from pipeline.results.questions import QUARTILES, Quantiles
from pipeline.values.boxes import QueryError
from pipeline.values.value_domains import Kind, ValueDomain

if TYPE_CHECKING:
    from pipeline.serve.history import History

Unit: TypeAlias = Literal["users", "value", "percent"]
MOST_LABELS = 4_096
_MOST_FOUND = 200
_LONGEST_ID = 64


class SeriesError(ValueError):
    """A job has no such series; the message says what it has."""


@dataclass(frozen=True, slots=True)
class Series:
    """One curve.

    Attributes:
        id: as of the API.
        label: for people.
        unit: of its values.
        item: its number, from 1 on, 1 for the one value counted; 0 where it is no item.
        share: of a quantile; 0 where it is none.
        buckets: of a range: the first one from 0 on, and the one after the last.
    """

    id: str
    label: str
    unit: Unit = "users"
    item: int = 0
    share: float = 0.0
    buckets: tuple[int, int] | None = None

    @property
    def number(self) -> int:
        """Of the item or the single bucket it is about; 0 where it is about none."""
        start, end = (0, 0) if self.buckets is None else self.buckets
        return end if end - start == 1 else self.item

    def to_json(self) -> dict[str, str]:
        """What the API says of it."""
        return {"id": self.id, "label": self.label, "unit": self.unit}


VALUE = Series("value", "users", item=1)
_NAMES = ("first quartile", "median", "third quartile")
QUARTILE_SERIES = tuple(
    Series(f"q{share:g}", name, "value", share=share)
    for share, name in zip(QUARTILES, _NAMES, strict=True)
)


def item_series(domain: ValueDomain, items: Iterable[int]) -> tuple[Series, ...]:
    """Of items by their numbers, from 1 on."""
    return tuple(Series(str(item), domain.label(item), item=item) for item in items)


def range_series(domain: ValueDomain) -> Iterator[Series]:
    """Of every single bucket, where they are not too many."""
    labels = domain.items if domain.size <= MOST_LABELS else ()
    for index, label in enumerate(labels or ()):
        yield Series(f"r{label}", label, buckets=(index, index + 1))


class Picture(ABC):
    """Which series a kind of job has."""

    answers: ClassVar[str] = "item"
    """What each of those of `largest` is about."""

    quantiles: ClassVar[tuple[Series, ...]] = ()
    """Those of values."""

    @abstractmethod
    def find(self, domain: ValueDomain, id: str) -> Series:
        """The one of this id; raises `SeriesError` if there is none."""

    @abstractmethod
    def listed(self, history: History) -> tuple[Series, ...]:
        """Those that a page offers."""

    @abstractmethod
    def chosen(self, history: History, count: int) -> tuple[Series, ...]:
        """Those that are drawn when nobody has chosen, not many more than so many."""

    def small(self, history: History, count: int) -> tuple[Series, ...]:
        """Those that are shown as sparklines, at most so many."""
        return self.listed(history)[:count]

    def largest(self, domain: ValueDomain, estimate: Published, count: int) -> tuple[Series, ...]:
        """So many of the largest of an epoch; of numbers the buckets in their order."""
        return ()


class _OneValue(Picture):
    def find(self, domain: ValueDomain, id: str) -> Series:
        if id == VALUE.id:
            return _value_of(domain)
        raise SeriesError(f"series {_shown(id)} is none of this job's, it has only {VALUE.id!r}")

    def listed(self, history: History) -> tuple[Series, ...]:
        return (_value_of(history.domain),)

    def chosen(self, history: History, count: int) -> tuple[Series, ...]:
        return self.listed(history)


def _value_of(domain: ValueDomain) -> Series:
    """The one curve of a job without items."""
    return VALUE if domain.measure is None else Series(VALUE.id, domain.measure, "percent", item=1)


class _Numbers(Picture):
    answers = "range"
    quantiles = QUARTILE_SERIES

    def find(self, domain: ValueDomain, id: str) -> Series:
        for series in QUARTILE_SERIES:
            if id == series.id:
                return series
        if id.startswith("r") and ":" in id and len(id) <= _LONGEST_ID:
            try:
                box = domain.range(id[1:], "series")
            except QueryError as error:
                raise SeriesError(str(error)) from None
            return Series(id, id[1:], buckets=(box.starts[0], box.ends[0]))
        raise SeriesError(
            f"series {_shown(id)} is none of this job's: a quantile is q0.25, q0.5 or q0.75, "
            "a range such as r10:20"
        )

    def listed(self, history: History) -> tuple[Series, ...]:
        return (*QUARTILE_SERIES, *range_series(history.domain))

    def chosen(self, history: History, count: int) -> tuple[Series, ...]:
        return tuple(series for series in QUARTILE_SERIES if series.share == 0.5)

    def largest(self, domain: ValueDomain, estimate: Published, count: int) -> tuple[Series, ...]:
        return tuple(range_series(domain))[:count]


class _FoundItems(Picture):
    def find(self, domain: ValueDomain, id: str) -> Series:
        last = domain.size - 1
        if not (id.isascii() and id.isdecimal() and len(id) <= 20 and 1 <= int(id) <= last):
            raise SeriesError(
                f"series {_shown(id)} is none of this job's: items have numbers from 1 to {last:,}"
            )
        (series,) = item_series(domain, [int(id)])
        return series

    def listed(self, history: History) -> tuple[Series, ...]:
        return self.chosen(history, _MOST_FOUND)

    def chosen(self, history: History, count: int) -> tuple[Series, ...]:
        return item_series(history.domain, history.ranked(count))

    def small(self, history: History, count: int) -> tuple[Series, ...]:
        return self.chosen(history, count)

    def largest(self, domain: ValueDomain, estimate: Published, count: int) -> tuple[Series, ...]:
        return item_series(domain, estimate.top(count).items.tolist())


class _Items(_FoundItems):
    def listed(self, history: History) -> tuple[Series, ...]:
        if history.domain.size - 1 > MOST_LABELS:
            return super().listed(history)
        return item_series(history.domain, range(1, history.domain.size))


PICTURES: Mapping[Kind, Picture] = {
    "value": _OneValue(),
    "items": _Items(),
    "numbers": _Numbers(),
    "found": _FoundItems(),
}
"""By what is published of a job."""


def find_series(domain: ValueDomain, ids: Sequence[str]) -> tuple[Series, ...]:
    """The series of these ids, each once.

    Raises:
        SeriesError: one of them is none of the job's.
    """
    return tuple(PICTURES[domain.kind].find(domain, each) for each in dict.fromkeys(ids))


def check_estimate(domain: ValueDomain, estimate: Published | None) -> None:
    """Look whether an estimate is one of a job over this domain.

    Raises:
        ValueError: it is of another shape, or has numbers that are none.
    """
    if estimate is None:
        return
    words = all(isinstance(flag, str) for flag in estimate.flags)
    if not (words and estimate.may_be_of(domain.size - 1)):
        raise ValueError("this is no estimate of the job's domain")


def known(estimate: Published | None) -> bool:
    """Whether there is something to be drawn: an estimate, and nothing that it needs is missing."""
    return estimate is not None and GAP not in estimate.flags


def quantiles_of(domain: ValueDomain, estimate: Published | None) -> NDArray[np.float64]:
    """Value, low and high of each of `QUARTILES`, shape (3, 3); of other domains shape (0, 3)."""
    found = np.full((len(PICTURES[domain.kind].quantiles), 3), np.nan)
    if len(found) and known(estimate):
        answers = Query(domain, Quantiles(QUARTILES)).answers(estimate)
        for row, answer in zip(found, answers, strict=False):
            row[:] = answer.value, answer.low, answer.high
    return found


def triples_of(
    series: Sequence[Series], estimate: Published | None, quantiles: NDArray[np.float64]
) -> NDArray[np.float64]:
    """What an epoch says of some series: value, low and high of each, shape (series, 3).

    Not a number stands where nothing can be said.

    Args:
        series: of the job.
        estimate: of the epoch.
        quantiles: as of `quantiles_of`.
    """
    found = np.full((len(series), 3), np.nan)
    if estimate is None or not known(estimate):
        return found
    items = [row for row, each in enumerate(series) if each.item]
    ranges = [row for row, each in enumerate(series) if each.buckets is not None]
    for row, each in enumerate(series):
        if each.share:
            found[row] = quantiles[QUARTILES.index(each.share)]
    # All at once: of a thousand, one at a time takes long.
    if items:
        found[items] = estimate.intervals_of(np.array([series[row].item for row in items])).T
    if ranges:
        starts, ends = np.array([series[row].buckets for row in ranges], np.int64).T
        found[ranges] = estimate.ranges(starts, ends).T
    return found


def truth_of(
    series: Series, domain: ValueDomain, estimate: Published | None, truth: NDArray[np.integer]
) -> float | None:
    """The truth about a series.

    Args:
        series: of the job.
        domain: of the job.
        estimate: of the epoch.
        truth: of what was estimated, shape (estimates,).
    """
    if series.buckets is not None:
        return float(truth[slice(*series.buckets)].sum())
    items = np.arange(1, len(truth) + 1)
    if series.share:
        return domain.true_quantile(items, truth, series.share)
    if estimate is not None and estimate.found_above is not None:
        items = estimate.numbers
    (places,) = np.nonzero(items == series.item)
    return float(truth[places[0]]) if places.size else None


def _shown(id: str) -> str:
    return ascii(id[:_LONGEST_ID])
