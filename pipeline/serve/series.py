"""The curves that a job has, and what an estimate says of each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aggregators.cell_window import MOST_PUBLISHED
from aggregators.estimate import GAP, NORMAL_95, Estimate, ItemEstimates
from aggregators.found_items import FoundItems
from aggregators.published import Published
from aggregators.range_estimates import OrderedEstimates
from pipeline.input.numbers import NumericDomain
from pipeline.input.sets import SetDomain
from pipeline.input.values import ValueDomain
from pipeline.queries import Query, QueryError, buckets_between, true_quantile

Kind: TypeAlias = Literal["value", "items", "numbers", "found"]
Unit: TypeAlias = Literal["users", "value"]
SHARES = (0.25, 0.5, 0.75)
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
        item: its number, from 1 on; 0 where it is no item.
        share: of a quantile; 0 where it is none.
        buckets: of a range: the first one from 0 on, and the one after the last.
    """

    id: str
    label: str
    unit: Unit = "users"
    item: int = 0
    share: float = 0.0
    buckets: tuple[int, int] | None = None

    def to_json(self) -> dict[str, str]:
        """What the API says of it."""
        return {"id": self.id, "label": self.label, "unit": self.unit}


def kind_of(domain: ValueDomain) -> Kind:
    """What the estimates of a job are about."""
    if isinstance(domain, SetDomain):
        return "items" if domain.size - 1 <= MOST_PUBLISHED else "found"
    if domain.items is None:
        return "value"
    return "numbers" if isinstance(domain, NumericDomain) else "items"


VALUE = Series("value", "users")


def quantile_series() -> tuple[Series, ...]:
    """Of a job over numbers."""
    names = {0.25: "first quartile", 0.5: "median", 0.75: "third quartile"}
    return tuple(Series(f"q{share:g}", names[share], "value", share=share) for share in SHARES)


def item_series(domain: ValueDomain, items: Iterable[int]) -> tuple[Series, ...]:
    """Of items by their numbers, from 1 on."""
    return tuple(Series(str(item), _label(domain, item), item=item) for item in items)


def range_series(domain: NumericDomain) -> Iterator[Series]:
    """Of every single bucket."""
    for index, label in enumerate(domain.items):
        yield Series(f"r{label}", label, buckets=(index, index + 1))


def find_series(domain: ValueDomain, ids: Sequence[str]) -> tuple[Series, ...]:
    """The series of these ids, each once.

    Raises:
        SeriesError: one of them is none of the job's.
    """
    return tuple(_find(domain, each) for each in dict.fromkeys(ids))


def _find(domain: ValueDomain, id: str) -> Series:
    kind = kind_of(domain)
    if kind == "value":
        if id == VALUE.id:
            return VALUE
        raise SeriesError(f"series {_shown(id)} is none of this job's, it has only {VALUE.id!r}")
    if isinstance(domain, NumericDomain):
        found = {series.id: series for series in quantile_series()}.get(id)
        if found is not None:
            return found
        low, colon, high = id.removeprefix("r").partition(":")
        if id.startswith("r") and colon and len(id) <= _LONGEST_ID:
            try:
                buckets = buckets_between(low, high, domain, "series")
            except QueryError as error:
                raise SeriesError(str(error)) from None
            return Series(id, id[1:], buckets=buckets)
        raise SeriesError(
            f"series {_shown(id)} is none of this job's: a quantile is q0.25, q0.5 or q0.75, "
            "a range such as r10:20"
        )
    last = domain.size - 1
    if not (id.isascii() and id.isdecimal() and len(id) <= 20 and 1 <= int(id) <= last):
        raise SeriesError(
            f"series {_shown(id)} is none of this job's: items have numbers from 1 to {last:,}"
        )
    (series,) = item_series(domain, [int(id)])
    return series


def check_estimate(domain: ValueDomain, estimate: Published | None) -> None:
    """Look whether an estimate is one of a job over this domain.

    Raises:
        ValueError: it is of another shape, or has numbers that are none.
    """
    if estimate is None:
        return
    if isinstance(estimate, Estimate):
        parts = (estimate.value, estimate.low, estimate.high)
        numbers = np.array([] if estimate.value is None else parts, np.float64)
        fits = kind_of(domain) == "value"
    else:
        numbers = np.append(estimate.values, estimate.half_width)
        if isinstance(estimate, FoundItems):
            numbers = np.append(numbers, estimate.found_above)
            last = domain.size - 1
            inside = bool(((estimate.items >= 1) & (estimate.items <= last)).all())
            fits = inside and estimate.items.shape == estimate.values.shape
        else:
            count = domain.size - 1 if domain.items is None else len(domain.items)
            fits = estimate.values.shape == (count,)
    if not (
        fits and np.isfinite(numbers).all() and all(isinstance(f, str) for f in estimate.flags)
    ):
        raise ValueError("this is no estimate of the job's domain")


def known(estimate: Published | None) -> bool:
    """Whether there is something to be drawn: an estimate, and nothing that it needs is missing."""
    return estimate is not None and GAP not in estimate.flags


def quantiles_of(domain: ValueDomain, estimate: Published | None) -> NDArray[np.float64]:
    """Value, low and high of each of `SHARES`, shape (3, 3); of other domains shape (0, 3)."""
    if not isinstance(domain, NumericDomain):
        return np.zeros((0, 3))
    found = np.full((len(SHARES), 3), np.nan)
    if known(estimate):
        query = Query(domain.items, domain, quantiles=SHARES)
        for row, answer in zip(found, query.answers(estimate), strict=False):
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
    if estimate is None or not known(estimate) or not series:
        return found
    match estimate:
        case Estimate():
            if estimate.value is not None:
                found[:] = estimate.value, estimate.low, estimate.high
        case FoundItems():
            places = {item: place for place, item in enumerate(estimate.items.tolist())}
            held = [(row, places[each.item]) for row, each in enumerate(series)
                    if each.item in places]  # fmt: skip
            if held:
                rows, at = np.array(held).T
                found[rows] = _around(estimate.values[at], estimate.half_width)
        case OrderedEstimates():
            _fill_numbers(found, series, estimate, quantiles)
        case ItemEstimates():
            at = np.array([each.item - 1 for each in series])
            found[:] = _around(estimate.values[at], estimate.half_width)
    return found


def _fill_numbers(
    found: NDArray[np.float64],
    series: Sequence[Series],
    estimate: OrderedEstimates,
    quantiles: NDArray[np.float64],
) -> None:
    ranges = [row for row, each in enumerate(series) if each.buckets is not None]
    for row, each in enumerate(series):
        if each.share:
            found[row] = quantiles[SHARES.index(each.share)]
    if ranges:
        # All at once: of a thousand ranges, one at a time takes long.
        starts, ends = np.array([series[row].buckets for row in ranges], np.int64).T
        below = np.insert(np.cumsum(estimate.values), 0, 0.0)
        widths = NORMAL_95 * np.sqrt(estimate.variances(starts, ends))
        found[ranges] = _around(below[ends] - below[starts], widths)


def _around(
    values: NDArray[np.float64], widths: float | NDArray[np.float64]
) -> NDArray[np.float64]:
    return np.stack([values, values - widths, values + widths], axis=1)


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
    if series.share:
        assert isinstance(domain, NumericDomain)
        return true_quantile(domain, truth, series.share)
    if series.buckets is not None:
        return float(truth[slice(*series.buckets)].sum())
    if isinstance(estimate, FoundItems):
        places = np.flatnonzero(estimate.items == series.item)
        return float(truth[places[0]]) if places.size else None
    place = max(series.item - 1, 0)
    return float(truth[place]) if place < len(truth) else None


def _label(domain: ValueDomain, item: int) -> str:
    if isinstance(domain, SetDomain):
        return domain.label(item)
    assert domain.items is not None
    return domain.items[item - 1]


def _shown(id: str) -> str:
    return ascii(id[:_LONGEST_ID])
