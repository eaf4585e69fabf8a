"""Curves of a job, and the values for each curve at an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP, Published
from dpstream.pipeline.results.counts_queries import QUARTILES
from dpstream.pipeline.values.value_domains import ValueDomain

Unit: TypeAlias = Literal["users", "value", "percent"]
MOST_LABELS = 4_096
LONGEST_ID = 64


class SeriesError(ValueError):
    """A job has no such series; the message lists the valid series."""


@dataclass(frozen=True, slots=True)
class Series:
    """One curve of a job.

    Attributes:
        item: Index of the item, from 1; it is 1 for a single count, and 0 without an item.
        share: Quantile, such as 0.5; otherwise 0.
        buckets: First bucket of a range, counted from 0, and the bucket after its last.
    """

    id: str
    label: str
    unit: Unit = "users"
    item: int = 0
    share: float = 0.0
    buckets: tuple[int, int] | None = None

    @property
    def number(self) -> int:
        """Index of the item or single bucket, from 1; 0 for other series."""
        start, end = (0, 0) if self.buckets is None else self.buckets
        return end if end - start == 1 else self.item

    def to_json(self) -> dict[str, str]:
        return {"id": self.id, "label": self.label, "unit": self.unit}


VALUE = Series("value", "users", item=1)
_NAMES = ("first quartile", "median", "third quartile")
QUARTILE_SERIES = tuple(
    Series(f"q{share:g}", name, "value", share=share)
    for share, name in zip(QUARTILES, _NAMES, strict=True)
)


def item_series(domain: ValueDomain, items: Iterable[int]) -> tuple[Series, ...]:
    return tuple(Series(str(item), domain.label(item), item=item) for item in items)


def range_series(domain: ValueDomain) -> Iterator[Series]:
    """Yield a series for every bucket, unless there are too many."""
    labels = domain.items if domain.size <= MOST_LABELS else ()
    for index, label in enumerate(labels or ()):
        yield Series(f"r{label}", label, buckets=(index, index + 1))


def known(estimate: Published | None) -> bool:
    """Return whether an estimate exists and lacks no input, so that it can be plotted."""
    return estimate is not None and GAP not in estimate.flags


def triples_of(
    series: Sequence[Series], estimate: Published | None, quantiles: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return each series' value, low and high at an epoch, shape (series, 3); NaN if unknown.

    `quantiles` is the result of `PublishedKind.quantiles_of`, shape (quantiles, 3).
    """
    found = np.full((len(series), 3), np.nan)
    if estimate is None or not known(estimate):
        return found
    items = [row for row, each in enumerate(series) if each.item]
    ranges = [row for row, each in enumerate(series) if each.buckets is not None]
    for row, each in enumerate(series):
        if each.share:
            found[row] = quantiles[QUARTILES.index(each.share)]
    # Vectorized: a thousand single lookups are slow.
    if items:
        found[items] = estimate.intervals_of(np.array([series[row].item for row in items])).T
    if ranges:
        starts, ends = np.array([series[row].buckets for row in ranges], np.int64).T
        found[ranges] = estimate.ranges(starts, ends).T
    return found


def ground_truth_of(
    series: Series,
    domain: ValueDomain,
    estimate: Published | None,
    ground_truth: NDArray[np.integer],
) -> float | None:
    """Return a series' ground truth, given that of all estimates, shape (estimates,)."""
    if series.buckets is not None:
        return float(ground_truth[slice(*series.buckets)].sum())
    items = np.arange(1, len(ground_truth) + 1)
    if series.share:
        return domain.true_quantile(items, ground_truth, series.share)
    if estimate is not None and estimate.detection_threshold is not None:
        items = estimate.numbers
    (places,) = np.nonzero(items == series.item)
    return float(ground_truth[places[0]]) if places.size else None


def short_id(id: str) -> str:
    """Escape and shorten an untrusted identifier."""
    return ascii(id[:LONGEST_ID])
