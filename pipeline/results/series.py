"""The curves that a job has, and what an estimate says of each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP, Published
from dpstream.pipeline.results.questions import QUARTILES
from dpstream.pipeline.values.value_domains import ValueDomain

Unit: TypeAlias = Literal["users", "value", "percent"]
MOST_LABELS = 4_096
LONGEST_ID = 64


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


def known(estimate: Published | None) -> bool:
    """Whether there is something to be drawn: an estimate, and nothing that it needs is missing."""
    return estimate is not None and GAP not in estimate.flags


def triples_of(
    series: Sequence[Series], estimate: Published | None, quantiles: NDArray[np.float64]
) -> NDArray[np.float64]:
    """What an epoch says of some series: value, low and high of each, shape (series, 3).

    Not a number stands where nothing can be said.

    Args:
        series: of the job.
        estimate: of the epoch.
        quantiles: of the epoch, (quartiles, 3), as of `PublishedKind.quantiles_of`.
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


def short_id(id: str) -> str:
    """An identifier that somebody has sent, as it is shown."""
    return ascii(id[:LONGEST_ID])
