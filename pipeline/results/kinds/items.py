"""Counts of items: of all listed items, or of the most frequent items in a very large domain."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import ClassVar

import numpy as np

from dpstream.aggregators.estimate import NORMAL_95, Published
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.smoothed_estimates import SmoothedEstimates
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_words import EpochName
from dpstream.pipeline.results.counts_queries import Answer, CountsQuery, Items, Query, Top
from dpstream.pipeline.results.kinds.published_kind import PublishedKind, Ranked
from dpstream.pipeline.results.known_digits import known_count
from dpstream.pipeline.results.phrases import Sentence, nothing, title_label
from dpstream.pipeline.results.series import MOST_LABELS, Series, SeriesError, item_series, short_id
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.value_domains import ValueDomain

_MOST_ALIKE = 64
_MOST_FOUND = 200


class FoundKind(PublishedKind):
    in_one: ClassVar[CountsQuery] = Top(1)
    in_few: ClassVar[CountsQuery] = Top(3)

    def everything(self, domain: ValueDomain) -> CountsQuery:
        return Items()

    def overview(self, records: Sequence[EstimateRecord], count: int) -> CountsQuery:
        return Top(count).steady(records, count)

    def sentence(
        self, job: DeployedJob, record: EstimateRecord, when: EpochName, *, titled: bool
    ) -> Sentence:
        lead = title_label(job.title) if titled else ""
        answers = Query(job.domain, Top(_MOST_ALIKE)).answers(record.estimate)
        if not answers:
            return Sentence((nothing(job, record),))
        wide = [_widened(job, each) for each in answers]
        people = None if job.domain.column is not None else record.population
        known = [
            known_count(each.value, low, high, people)
            for each, (low, high) in zip(answers, wide, strict=True)
        ]
        if known[0].may_be_none:
            most = max(each.high for each in known)
            return Sentence(
                (
                    f"{lead}No item differs significantly from 0 {when.at}: each has fewer than "
                    f"{most:,} {job.people}.",
                )
            )
        first_low, _ = wide[0]
        # The interval is shown elsewhere, next to the intervals of all other items.
        largest = known_count(answers[0].value, answers[0].ci95_low, answers[0].ci95_high, people)
        alike = [place for place, (_, high) in enumerate(wide) if high >= first_low]
        names = [job.reads(answers[place].name) for place in alike]
        averaged = None if record.estimate is None else record.estimate.averaged
        opening = f"{lead}Most frequent {when.at}: "
        if averaged is not None and averaged > 1:
            opening = f"{lead}Most frequent on average in {averaged:,} epochs up to {when.name}: "
        share = f" ({largest.share})" if largest.share else ""
        first = f"about {largest.value:,} {job.people}{share}"
        if len(names) == 1:
            return Sentence((opening, names[0], f", with {first}."))
        listed = _or(names)
        tie = f" (a statistical tie). The estimate for {names[0]} is {first}."
        return Sentence((opening, listed, tie))

    def smoothed_estimate(
        self, smoothed: SmoothedEstimates, index: int, reports: int
    ) -> ItemEstimates:
        return smoothed.items_at(index, reports)

    def find(self, domain: ValueDomain, id: str) -> Series:
        last = domain.size - 1
        if not (id.isascii() and id.isdecimal() and len(id) <= 20 and 1 <= int(id) <= last):
            raise SeriesError(
                f"series: got {short_id(id)}; expected an item number from 1 to {last:,}"
            )
        (series,) = item_series(domain, [int(id)])
        return series

    def listed(self, domain: ValueDomain, ranked: Ranked) -> tuple[Series, ...]:
        return self.chosen(domain, ranked, _MOST_FOUND)

    def chosen(self, domain: ValueDomain, ranked: Ranked, count: int) -> tuple[Series, ...]:
        return item_series(domain, ranked(count))

    def small(self, domain: ValueDomain, ranked: Ranked, count: int) -> tuple[Series, ...]:
        return self.chosen(domain, ranked, count)

    def largest(self, domain: ValueDomain, estimate: Published, count: int) -> tuple[Series, ...]:
        return item_series(domain, estimate.top(count).items.tolist())


class ItemsKind(FoundKind):
    same_items: ClassVar[bool] = True

    def watched(self, domain: ValueDomain, most: int) -> CountsQuery | None:
        return Items() if domain.items is not None and len(domain.items) <= most else None

    def ranks(self, job: DeployedJob, record: EstimateRecord) -> dict[int, tuple[int, int]]:
        estimate = record.estimate
        if job.domain.column is not None or estimate is None:
            return {}
        values, lows, highs = estimate.intervals
        factor = _factor(job)
        lows, highs = values - factor * (values - lows), values + factor * (highs - values)
        surely_above = len(values) - np.searchsorted(np.sort(lows), highs, side="right")
        perhaps_above = len(values) - np.searchsorted(np.sort(highs), lows, side="left")
        numbers = estimate.numbers.tolist()
        places = zip(numbers, surely_above.tolist(), perhaps_above.tolist(), strict=True)
        # The items that may precede an item include the item itself.
        return {number: (above + 1, perhaps) for number, above, perhaps in places}

    def listed(self, domain: ValueDomain, ranked: Ranked) -> tuple[Series, ...]:
        if domain.size - 1 > MOST_LABELS:
            return super().listed(domain, ranked)
        return item_series(domain, range(1, domain.size))


def _widened(job: DeployedJob, answer: Answer) -> tuple[float, float]:
    """Return an item's simultaneous interval; all items' intervals hold together in 19 of 20 cases.

    Two items whose intervals do not overlap differ, however their errors are correlated.
    """
    factor = _factor(job)
    return (
        answer.value - factor * (answer.value - answer.ci95_low),
        answer.value + factor * (answer.ci95_high - answer.value),
    )


def _factor(job: DeployedJob) -> float:
    return NormalDist().inv_cdf(1 - 0.025 / max(job.domain.size - 1, 1)) / NORMAL_95


def _or(names: Sequence[str]) -> str:
    if len(names) <= 3:
        return f"{', '.join(names[:-1])} or {names[-1]}"
    others = f"{len(names) - 2:,} others"
    at_least = "at least " if len(names) == _MOST_ALIKE else ""
    return f"{names[0]}, {names[1]} or one of {at_least}{others}"
