"""Estimates that a deployment has published, by epoch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Published
from dpstream.pipeline.results.kinds import kind_of
from dpstream.pipeline.results.measure_series import ChosenRows
from dpstream.pipeline.results.series import Series, SeriesError, known, short_id, triples_of
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.item_sums import NO_SUMS
from dpstream.pipeline.values.value_domains import ValueDomain

MOST_EPOCHS = 1 << 14
"""Latest epochs of a job to keep in memory, plus up to an eighth. Downloads have all epochs."""

MAX_BYTES = 1 << 28
"""Approximate maximum bytes of a job's stored estimates; if they are large, fewer epochs fit."""

_OVERHEAD = 600
# Maximum number of series whose values at all epochs are cached as one array.
_MOST_COLUMNS = 64
# Maximum number of items detected at any epoch; beyond it, only the largest half stays.
_MOST_FOUND = 1 << 14


def check_estimate(domain: ValueDomain, estimate: Published | None) -> None:
    """Raise `ValueError` unless an estimate fits a job over this domain and has valid numbers."""
    if estimate is None:
        return
    words = all(isinstance(flag, str) for flag in estimate.flags)
    if not (words and estimate.may_be_of(domain.size - 1)):
        raise ValueError("the estimate does not fit the job's domain")


@dataclass(frozen=True, slots=True, eq=False)
class Point(EstimateRecord):
    """Published estimate for an epoch, prepared for drawing; `quantiles` are for numeric domains.

    `horizons` is the number of horizons charged to a participating device so far.
    """

    quantiles: NDArray[np.float64]
    horizons: int = 1

    @classmethod
    def of(cls, record: EstimateRecord, domain: ValueDomain) -> Point:
        """Convert a record, except its guarantee; this is slow for numeric domains."""
        when = record.epoch, record.window_status, record.closed_at
        found = record.contributors, record.population, record.estimate
        quantiles = kind_of(domain).quantiles_of(domain, record.estimate)
        charged = record.guarantee.get("horizons", 1)
        return cls(b"", *when, *found, {}, quantiles=quantiles, horizons=charged)

    def triples(self, series: Sequence[Series]) -> NDArray[np.float64]:
        """Return each series' value, low and high, shape (series, 3); NaN where unavailable."""
        return triples_of(series, self.estimate, self.quantiles)

    @property
    def size(self) -> int:
        return _OVERHEAD + (0 if self.estimate is None else 16 * len(self.estimate.numbers))

    def facts(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "window_status": self.window_status.value,
            "flags": list(self.flags),
            "closed_at": self.closed_at,
            "contributors": self.contributors,
            "population": self.population,
        }


class History:
    """Stored epochs of a deployment, in increasing order.

    If the epochs exceed about `max_bytes` bytes, the oldest quarter is evicted. `rows` are the
    series of a job with measures, in place of those of its domain.
    """

    def __init__(
        self, domain: ValueDomain, max_bytes: int = MAX_BYTES, rows: tuple[Series, ...] = ()
    ) -> None:
        self.domain = domain
        self.rows = rows
        self.kind = kind_of(domain)
        self.points: list[Point] = []
        self._epochs: list[int] = []
        self._size = 0
        self._max_bytes = max_bytes
        self._columns: OrderedDict[str, _Column] = OrderedDict()
        self._sums = NO_SUMS

    @property
    def last(self) -> Point | None:
        return self.points[-1] if self.points else None

    def append(self, point: Point) -> bool:
        """Add an epoch; return False unless it is later than all stored epochs."""
        if self._epochs and point.epoch <= self._epochs[-1]:
            return False
        self.points.append(point)
        self._epochs.append(point.epoch)
        self._size += point.size
        self._add_up(point.estimate)
        if len(self.points) > MOST_EPOCHS + MOST_EPOCHS // 8:
            self._drop(len(self.points) - MOST_EPOCHS)
        if self._size > self._max_bytes and len(self.points) > 1:
            self._drop(len(self.points) // 4 or 1)
        return True

    def at(self, epoch: int) -> Point | None:
        place = bisect_left(self._epochs, epoch)
        held = place < len(self._epochs) and self._epochs[place] == epoch
        return self.points[place] if held else None

    def after(self, epoch: int) -> Iterator[Point]:
        """Yield the epochs after `epoch`, including those added during the iteration."""
        while (place := bisect_right(self._epochs, epoch)) < len(self._epochs):
            yield self.points[place]
            epoch = self.points[place].epoch

    def part(self, first: int | None, last: int | None) -> slice:
        start = 0 if first is None else bisect_left(self._epochs, first)
        stop = len(self._epochs) if last is None else bisect_right(self._epochs, last)
        return slice(start, max(start, stop))

    def epochs(self, part: slice = slice(None)) -> NDArray[np.int64]:
        return np.array(self._epochs[part], np.int64)

    def triples(
        self, series: Sequence[Series], most: int | None = None
    ) -> list[NDArray[np.float64]]:
        """Return each series' value, low and high at every epoch, float64 (n, 3), NaN for gaps.

        Arrays are read-only and cached, so only new epochs are computed. At most `most` epochs are
        added to an array, which may then lack the latest epochs.
        """
        columns = {}
        for each in series:
            columns[each] = self._columns.setdefault(each.id, _Column())
            self._columns.move_to_end(each.id)
        # Columns of equal length are extended together: many series cost little more than one.
        for length in {column.length for column in columns.values()}:
            behind = [each for each, column in columns.items() if column.length == length]
            stop = len(self.points) if most is None else length + most
            for point in self.points[length:stop]:
                for each, row in zip(behind, point.triples(behind), strict=True):
                    columns[each].append(row)
        while len(self._columns) > _MOST_COLUMNS:
            self._columns.popitem(last=False)
        return [columns[each].rows for each in series]

    def ranked(self, count: int) -> list[int]:
        return list(map(int, self._sums.most(count)))

    def find_all(self, ids: Sequence[str]) -> tuple[Series, ...]:
        if not self.rows:
            return self.kind.find_all(self.domain, ids)
        known = {each.id: each for each in self.rows}
        for id in ids:
            if id not in known:
                raise SeriesError(
                    f"series: got {short_id(id)}; expected IDs from 'series' of the job"
                )
        return tuple(known[id] for id in dict.fromkeys(ids))

    def listed(self) -> tuple[Series, ...]:
        return self.rows or self.kind.listed(self.domain, self.ranked)

    def chosen(self, count: int) -> tuple[Series, ...]:
        if self.rows:
            return ChosenRows().of(self.rows)[:count]
        return self.kind.chosen(self.domain, self.ranked, count)

    def small(self, count: int) -> tuple[Series, ...]:
        return self.rows[:count] or self.kind.small(self.domain, self.ranked, count)

    def values(self, items: Sequence[int]) -> NDArray[np.float64]:
        """Return the items' values at every epoch, float64 (n, items), NaN for gaps."""
        found = np.full((len(self.points), len(items)), np.nan)
        numbers = np.array(items, np.int64)
        for row, point in zip(found, self.points, strict=True):
            if point.estimate is not None and known(point.estimate):
                row[:] = point.estimate.intervals_of(numbers)[0]
        return found

    def _add_up(self, estimate: Published | None) -> None:
        if estimate is None or not known(estimate):
            return
        self._sums = self._sums.plus(estimate.numbers, estimate.intervals[0])
        if estimate.detection_threshold is not None and len(self._sums.items) > _MOST_FOUND:
            self._sums = self._sums.largest(_MOST_FOUND // 2)

    def _drop(self, count: int) -> None:
        self._size -= sum(point.size for point in self.points[:count])
        del self.points[:count], self._epochs[:count]
        self._columns.clear()


class _Column:
    def __init__(self) -> None:
        self._held = np.empty((64, 3))
        self.length = 0

    def append(self, row: NDArray[np.float64]) -> None:
        if self.length == len(self._held):
            self._held = np.concatenate([self._held, np.empty_like(self._held)])
        self._held[self.length] = row
        self.length += 1

    @property
    def rows(self) -> NDArray[np.float64]:
        return self._held[: self.length]
