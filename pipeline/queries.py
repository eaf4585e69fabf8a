"""Questions about the estimates of an epoch: single items, the largest ones, ranges, quantiles."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregators.estimate import Estimate, ItemEstimates
from aggregators.found_items import FoundItems
from aggregators.norm_sub import norm_sub
from aggregators.range_estimates import OrderedEstimates
from aggregators.top_items import simultaneous_half_width, top_items
from pipeline.estimate_records import EstimateRecord
from pipeline.input.numbers import NumericDomain
from pipeline.input.sets import SetDomain
from pipeline.input.times import shown
from pipeline.input.values import ValueDomain

# Ends of ranges are edges of buckets up to rounding, as a share of a bucket's width.
_ROUNDING = 1e-6

_ALL = slice(None)


class QueryError(ValueError):
    """A question that cannot be asked of a job; the message says what can."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One number about an epoch.

    Attributes:
        name: the item, the range or the share of the quantile.
        value: the estimate, in users; of a quantile, a value.
        standard_deviation: of its noise; None for quantiles.
        low: lower end of the 95 % interval.
        high: upper end of it.
        norm_sub: the estimate after Norm-Sub, where it was asked for.
        truth: where it is known.
    """

    name: str
    value: float
    standard_deviation: float | None
    low: float
    high: float
    norm_sub: float | None = None
    truth: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values; those that were not asked for are left out."""
        body = {
            "name": self.name,
            "estimate": self.value,
            "standard_deviation": self.standard_deviation,
            "low": self.low,
            "high": self.high,
        }
        more = {"norm_sub": self.norm_sub, "truth": self.truth}
        return body | {name: value for name, value in more.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked of every epoch; one of `items`, `top`, `ranges` and `quantiles`.

    Attributes:
        labels: of all items or buckets of the job; none for a job that counts one value, or whose
            items cannot be listed.
        domain: of a job over numbers; None for a job over items.
        sets: of a job over sets of items, which has a name for every item; of the items most held,
            where those are published, it asks for those it names, or for all.
        items: positions of items.
        top: how many of the largest items.
        ranges: name, first bucket and the bucket after the last one, from 0 on.
        quantiles: shares between 0 and 1.
        norm_sub: whether the estimates after Norm-Sub are wanted too.
    """

    labels: tuple[str, ...]
    domain: NumericDomain | None = None
    sets: SetDomain | None = None
    items: tuple[int, ...] = ()
    top: int | None = None
    ranges: tuple[tuple[str, int, int], ...] = ()
    quantiles: tuple[float, ...] = ()
    norm_sub: bool = False

    @property
    def kind(self) -> str:
        """What an answer is about: "item", "range", "quantile", or the one "value" counted."""
        if not self.labels and self.sets is None:
            return "value"
        return "range" if self.ranges else "quantile" if self.quantiles else "item"

    def answers(
        self, estimate: object, truth: NDArray[np.integer] | None = None
    ) -> tuple[Answer, ...]:
        """The answers for an epoch; none where there is no estimate.

        Args:
            estimate: of an epoch of the job.
            truth: users with each item or in each bucket that was estimated, shape (items,), where
                it is known; of one value a single number.
        """
        if isinstance(estimate, FoundItems):
            return tuple(self._found(estimate, truth))
        if isinstance(estimate, Estimate):
            whole = None if truth is None else np.atleast_1d(truth)
            return () if estimate.value is None else (_answer("1", estimate, _ALL, None, whole),)
        if not isinstance(estimate, ItemEstimates) or not estimate.population:
            return ()
        return tuple(self._answers(estimate, truth))

    def _found(self, estimate: FoundItems, truth: NDArray[np.integer] | None) -> Iterator[Answer]:
        for index, item in enumerate(estimate.items.tolist()[: self.top]):
            if not self.items or item - 1 in self.items:
                part = slice(index, index + 1)
                yield _answer(self._label(item - 1), estimate.estimate(index), part, None, truth)

    def _label(self, position: int) -> str:
        return self.labels[position] if self.sets is None else self.sets.label(position + 1)

    def _answers(
        self, estimate: ItemEstimates, truth: NDArray[np.integer] | None
    ) -> Iterator[Answer]:
        fitted = norm_sub(estimate.values, estimate.population) if self.norm_sub else None
        if self.quantiles:
            assert isinstance(estimate, OrderedEstimates)
            # By what is known nobody may have a value.
            if estimate.total > 0:
                yield from (self._quantile(estimate, share, truth) for share in self.quantiles)
        elif self.ranges:
            for name, start, end in self.ranges:
                assert isinstance(estimate, OrderedEstimates)
                part = slice(start, end)
                yield _answer(name, estimate.range(start, end), part, fitted, truth)
        else:
            items: Sequence[int] = self.items or range(len(estimate.values))
            if self.top is not None:
                items = top_items(estimate, self.top).items
            for index in items:
                part = slice(index, index + 1)
                yield _answer(self._label(index), estimate.item(index), part, fitted, truth)

    def _quantile(
        self, estimate: OrderedEstimates, share: float, truth: NDArray[np.integer] | None
    ) -> Answer:
        assert self.domain is not None
        domain, found = self.domain, estimate.quantile(share)
        return Answer(
            name=f"{share:g}",
            value=domain.edge(found.value),
            standard_deviation=None,
            low=domain.edge(found.low),
            high=domain.edge(found.high),
            truth=None if truth is None else true_quantile(domain, truth, share),
        )


def make_query(
    domain: ValueDomain,
    *,
    items: str | None = None,
    top: int | None = None,
    ranges: str | None = None,
    quantiles: str | None = None,
    norm_sub: bool = False,
) -> Query | None:
    """A query as people write it; None if nothing is asked.

    Args:
        domain: of the job.
        items: labels, separated by commas; one that has a comma stands in quotes.
        top: how many of the largest items.
        ranges: ``low:high`` each, separated by commas; an end that is left out is that of all
            values.
        quantiles: shares between 0 and 1, separated by commas.
        norm_sub: also Norm-Sub; by itself, of all items or buckets.

    Raises:
        QueryError: the job, or the rest of the query, does not allow it.

    >>> query = make_query(NumericDomain(0, 80, 8), ranges="10:40,60:")
    >>> query.ranges
    (('10:40', 1, 4), ('60:', 6, 8))
    """
    options = {"--items": items, "--top": top, "--ranges": ranges, "--quantiles": quantiles}
    asked = [name for name, value in options.items() if value is not None]
    if len(asked) > 1:
        raise QueryError(f"{' and '.join(asked)} do not go together: give one of them")
    if not asked and not norm_sub:
        return None
    what = asked[0] if asked else "--norm-sub"
    if isinstance(domain, SetDomain):
        return _query_of_sets(domain, what, items, top, norm_sub)
    labels = domain.items
    if labels is None:
        raise QueryError(f"{what} is for jobs over items or numbers; this one counts one value")
    if not isinstance(domain, NumericDomain):
        if what in ("--ranges", "--quantiles"):
            raise QueryError(f"{what} is for jobs over numbers; of items give --items or --top")
        chosen = tuple(range(len(labels))) if items is None else _items(items, labels)
        return Query(labels, items=() if top else chosen, top=top, norm_sub=norm_sub)
    if what in ("--items", "--top"):
        raise QueryError(f"{what} is for jobs over items; of numbers give --ranges or --quantiles")
    if quantiles is not None:
        if norm_sub:
            raise QueryError("--norm-sub goes with items and ranges, not with --quantiles")
        return Query(labels, domain, quantiles=_shares(quantiles))
    chosen_ranges = (
        tuple((label, index, index + 1) for index, label in enumerate(labels))
        if ranges is None
        else tuple(_range(text, domain) for text in listed(ranges, "--ranges"))
    )
    return Query(labels, domain, ranges=chosen_ranges, norm_sub=norm_sub)


def usual_query(domain: ValueDomain, *, everything: bool) -> Query | None:
    """What is shown of items and numbers when nothing is asked; None for a single count.

    Args:
        domain: of the job.
        everything: all items or buckets, instead of the largest items or the quartiles.
    """
    if isinstance(domain, SetDomain):
        return Query((), sets=domain, top=None if everything else 3)
    if domain.items is None:
        return None
    if isinstance(domain, NumericDomain):
        if not everything:
            return make_query(domain, quantiles="0.25,0.5,0.75")
        buckets = ((label, index, index + 1) for index, label in enumerate(domain.items))
        return Query(domain.items, domain, ranges=tuple(buckets))
    if not everything:
        return make_query(domain, top=3)
    return Query(domain.items, items=tuple(range(len(domain.items))))


def overview(domain: ValueDomain, records: Sequence[EstimateRecord], count: int) -> Query | None:
    """What shows best how a job's values move: its largest items, or the quartiles of its numbers.

    Args:
        domain: of the job.
        records: its estimates.
        count: how many items at most: those with the largest mean over all epochs.

    Returns:
        None for a job that counts a single value.
    """
    if isinstance(domain, SetDomain):
        return Query((), sets=domain, items=_largest(records, count))
    if domain.items is None:
        return None
    if isinstance(domain, NumericDomain):
        return Query(domain.items, domain, quantiles=(0.25, 0.5, 0.75))
    return Query(domain.items, items=_largest(records, count))


def _largest(records: Sequence[EstimateRecord], count: int) -> tuple[int, ...]:
    """The positions of the items with the largest sums over all epochs."""
    totals: NDArray[np.float64] = np.zeros(0)
    found: dict[int, float] = {}
    for record in records:
        estimate = record.estimate
        if isinstance(estimate, ItemEstimates):
            totals = totals + estimate.values if len(totals) else estimate.values
        elif isinstance(estimate, FoundItems):
            for item, value in zip(estimate.items.tolist(), estimate.values, strict=True):
                found[item - 1] = found.get(item - 1, 0.0) + float(value)
    if found:
        return tuple(sorted(found, key=lambda position: -found[position])[:count])
    return tuple(np.argsort(-totals, kind="stable")[:count].tolist())


def record_json(
    query: Query, record: EstimateRecord, truth: NDArray[np.integer] | None = None
) -> Mapping[str, Any]:
    """The answers for an epoch as a JSON value; the names of the largest items differ by epoch."""
    estimate = record.estimate
    body: dict[str, Any] = {
        "epoch": record.epoch,
        "fate": record.fate.value,
        "population": record.population,
        "flags": [] if estimate is None else list(estimate.flags),
        f"{query.kind}s": [answer.to_json() for answer in query.answers(estimate, truth)],
    }
    if query.top is not None and isinstance(estimate, ItemEstimates):
        body["simultaneous_half_width"] = simultaneous_half_width(estimate)
    return body


def _answer(
    name: str,
    estimate: Estimate,
    part: slice,
    fitted: NDArray[np.float64] | None,
    truth: NDArray[np.integer] | None,
) -> Answer:
    assert estimate.value is not None
    assert estimate.low is not None
    assert estimate.high is not None
    return Answer(
        name=name,
        value=estimate.value,
        standard_deviation=estimate.standard_deviation,
        low=estimate.low,
        high=estimate.high,
        norm_sub=None if fitted is None else float(fitted[part].sum()),
        truth=None if truth is None else float(truth[part].sum()),
    )


def true_quantile(domain: NumericDomain, truth: NDArray[np.integer], share: float) -> float | None:
    """A quantile of the users in each bucket, shape (buckets,), spread evenly; None without any."""
    if not truth.any():
        return None
    counts = np.insert(np.cumsum(truth), 0, 0)
    after = int(np.searchsorted(counts, wanted := share * float(counts[-1])))
    before = counts[after - 1]
    return domain.edge(float(after - 1 + (wanted - before) / (counts[after] - before)))


def _query_of_sets(
    domain: SetDomain, what: str, items: str | None, top: int | None, norm_sub: bool
) -> Query:
    if what in ("--ranges", "--quantiles"):
        raise QueryError(
            f"{what} is not answered from what is published: dpstream query is, with "
            f"{'--range or --box' if what == '--ranges' else '--quantile'}"
        )
    if domain.items is None and (items is not None or norm_sub):
        raise QueryError(
            f"{what}: only the items most held are published; dpstream query knows all, with --item"
        )
    chosen = () if items is None or domain.items is None else _items(items, domain.items)
    return Query((), sets=domain, items=chosen, top=top, norm_sub=norm_sub)


def _items(text: str, labels: tuple[str, ...]) -> tuple[int, ...]:
    numbers = {label: index for index, label in enumerate(labels)}
    chosen = []
    for label in listed(text, "--items"):
        if label not in numbers:
            guess = get_close_matches(label[:100], labels, 1)
            hint = (
                f"did you mean {shown(guess[0])}?"
                if guess
                else f"its {len(labels):,} labels begin with {', '.join(map(shown, labels[:3]))}"
            )
            raise QueryError(f"--items: {shown(label)} is not in the domain; {hint}")
        chosen.append(numbers[label])
    return tuple(dict.fromkeys(chosen))


def _shares(text: str) -> tuple[float, ...]:
    return tuple(share_of(each, "--quantiles") for each in listed(text, "--quantiles"))


def share_of(text: str, option: str) -> float:
    """The share of a quantile; `QueryError` unless it lies between 0 and 1."""
    share = _float(text, option)
    if not 0 < share < 1:
        raise QueryError(f"{option}: {share:g} does not lie between 0 and 1")
    return share


def _range(text: str, domain: NumericDomain) -> tuple[str, int, int]:
    low, colon, high = text.partition(":")
    if not colon:
        raise QueryError(f"--ranges: {shown(text)} is not a range: give low:high, such as 10:20")
    return text.strip(), *buckets_between(low, high, domain, "--ranges")


def buckets_between(low: str, high: str, domain: NumericDomain, option: str) -> tuple[int, int]:
    """The first bucket of a range and the bucket after the last one, from 0 on.

    Args:
        low: an edge of buckets; empty for that of all values.
        high: the same.
        domain: of the numbers.
        option: that asks, for messages.

    Raises:
        QueryError: one of them is none, or there is nothing between them.
    """
    start = _edge(_float(low, option) if low.strip() else domain.low, domain, option)
    end = _edge(_float(high, option) if high.strip() else domain.high, domain, option)
    if start >= end:
        raise QueryError(f"{option}: {shown(f'{low}:{high}')} is empty: give the lower end first")
    return start, end


def _edge(value: float, domain: NumericDomain, option: str) -> int:
    """The number of the edge of buckets that a value is."""
    position = (value - domain.low) / domain.width
    index = min(max(round(position), 0), domain.buckets)
    if abs(position - index) <= _ROUNDING:
        return index
    if not 0 <= position <= domain.buckets:
        raise QueryError(
            f"{option}: {value:g} lies outside of the values, {domain.low:g} to {domain.high:g}"
        )
    below = math.floor(position)
    raise QueryError(
        f"{option}: {value:g} lies within a bucket; the nearest edges are "
        f"{domain.edge(below):.10g} and {domain.edge(below + 1):.10g}"
    )


def _float(text: str, option: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise QueryError(f"{option}: {shown(text)} is not a number")
    return number


def listed(text: str, option: str) -> list[str]:
    """What is separated by commas; what has one itself stands in quotes."""
    found = [each.strip() for each in next(csv.reader([text], skipinitialspace=True), [])]
    if not any(found):
        raise QueryError(f"{option} is empty")
    return [each for each in found if each]
