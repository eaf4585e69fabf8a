"""Curves of a job, and the values for each curve at an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP, Published
from dpstream.aggregators.panel_estimates import PanelEstimates
from dpstream.pipeline.results.counts_queries import QUARTILES
from dpstream.pipeline.results.measure_rows import MeasureRow
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.value_domains import ValueDomain

Unit: TypeAlias = Literal["users", "value", "percent"]
MOST_LABELS = 4_096
LONGEST_ID = 64
NO_QUANTILES: Final = np.zeros((0, 3))


class SeriesError(ValueError):
    """A job has no such series; the message lists the valid series."""


@dataclass(frozen=True, slots=True)
class Series:
    """One curve of a job.

    Attributes:
        item: Index of the item, from 1; it is 1 for a single count, and 0 without an item.
        share: Quantile, such as 0.5; otherwise 0.
        buckets: First bucket of a range, counted from 0, and the bucket after its last.
        items: Items whose sum the series is; () for a single item.
        row: Measure and attributes of the series; None in jobs without measures.
        total: True if it is a mean multiplied by its number of users.
    """

    id: str
    label: str
    unit: Unit = "users"
    item: int = 0
    share: float = 0.0
    buckets: tuple[int, int] | None = None
    items: tuple[int, ...] = ()
    row: MeasureRow | None = field(default=None, compare=False)
    total: bool = False

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
    labels = domain.items if domain.size <= MOST_LABELS else ()
    for index, label in enumerate(labels or ()):
        yield Series(f"r{label}", label, buckets=(index, index + 1))


def known(estimate: Published | None) -> bool:
    """Return whether an estimate exists and lacks no input, so that it can be plotted."""
    return estimate is not None and GAP not in estimate.flags


def triples_of(
    series: Sequence[Series],
    estimate: Published | None,
    quantiles: NDArray[np.float64],
    *,
    gaps: bool = False,
) -> NDArray[np.float64]:
    """Return each series' value, low and high at an epoch, shape (series, 3); NaN if unknown.

    `quantiles` is the result of `PublishedKind.quantiles_of`, shape (quantiles, 3). With `gaps`,
    estimates that lack an input are included.
    """
    found = np.full((len(series), 3), np.nan)
    if estimate is None or not (gaps or known(estimate)):
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
    for row, each in enumerate(series):
        if each.items:
            found[row] = _sum(estimate.intervals_of(np.array(each.items)))
        if each.total:
            found[row] *= _users_of(each, estimate)
    return found


def _sum(intervals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Add the values and the intervals, shape (3, cells), of cells with independent noise.

    A device in one cell is in no other. So if devices are absent, the cells' errors have a negative
    covariance, and the interval can only be too wide.
    """
    values, lows, highs = intervals
    value, width = values.sum(), np.hypot.reduce(np.stack([values - lows, highs - values]), axis=1)
    return np.array([value, value - width[0], value + width[1]])


def _users_of(series: Series, estimate: Published | None) -> float:
    return float(estimate.sizes[series.item - 1]) if isinstance(estimate, PanelEstimates) else 1.0


def size_of(series: Series, record: EstimateRecord) -> int:
    estimate = record.estimate
    if isinstance(estimate, PanelEstimates) and series.item:
        return round(float(estimate.sizes[series.item - 1]))
    return record.population


def ground_truth_of(
    series: Series,
    domain: ValueDomain,
    estimate: Published | None,
    ground_truth: NDArray[np.integer],
) -> float | None:
    """Return a series' ground truth, given that of all estimates, shape (estimates,)."""
    if series.buckets is not None:
        return float(ground_truth[slice(*series.buckets)].sum())
    if series.items:
        return float(ground_truth[np.array(series.items) - 1].sum())
    items = np.arange(1, len(ground_truth) + 1)
    if series.share:
        return domain.true_quantile(items, ground_truth, series.share)
    if estimate is not None and estimate.detection_threshold is not None:
        items = estimate.numbers
    (places,) = np.nonzero(items == series.item)
    if not places.size:
        return None
    users = _users_of(series, estimate) if series.total else 1.0
    return users * float(ground_truth[places[0]])


def short_id(id: str) -> str:
    return ascii(id[:LONGEST_ID])
