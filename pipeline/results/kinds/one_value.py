"""One value per epoch: a count of users."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Estimate
from dpstream.aggregators.smoothed_estimates import SmoothedEstimates
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_words import EpochName, period
from dpstream.pipeline.results.counts_queries import Count, CountsQuery, Query
from dpstream.pipeline.results.kinds.headline import Headline
from dpstream.pipeline.results.kinds.published_kind import PublishedKind, Ranked
from dpstream.pipeline.results.known_digits import known_count, step_of
from dpstream.pipeline.results.phrases import Sentence, how_sure, is_plain
from dpstream.pipeline.results.series import VALUE, Series, SeriesError, short_id
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.value_domains import ValueDomain


class CountKind(PublishedKind):
    single: ClassVar[bool] = True
    same_items: ClassVar[bool] = True
    in_one: ClassVar[CountsQuery] = Count()
    in_few: ClassVar[CountsQuery] = Count()

    def everything(self, domain: ValueDomain) -> CountsQuery:
        return self.in_one

    def watched(self, domain: ValueDomain, most: int) -> CountsQuery | None:
        return self.in_one

    def headline(
        self,
        domain: ValueDomain,
        record: EstimateRecord,
        ground_truth: NDArray[np.integer] | None = None,
    ) -> Headline:
        for answer in Query(domain, self.in_one).answers(record.estimate, ground_truth):
            numbers = answer.value, answer.ci95_low, answer.ci95_high, answer.ground_truth
            return Headline("", *numbers, population=record.population)
        return Headline(
            ground_truth=None
            if ground_truth is None or not len(ground_truth)
            else int(ground_truth[0])
        )

    def sentence(
        self, job: DeployedJob, record: EstimateRecord, when: EpochName, *, titled: bool
    ) -> Sentence:
        headline = self.headline(job.domain, record)
        assert headline.value is not None
        assert headline.ci95_low is not None
        assert headline.ci95_high is not None
        lead, noun = self.counted(job)
        lead = lead if titled else ""
        known = known_count(
            headline.value, headline.ci95_low, headline.ci95_high, record.population
        )
        word, number = known.words
        return Sentence((f"{lead}{word} ", number, f" {noun} {when.at}{how_sure(known)}."))

    def people(self, job: DeployedJob) -> str:
        state = job.reads("1")
        if state == "1":
            return job.people if job.title else f"{job.people} with value 1"
        return f"{job.people} {state}" if is_plain(state) else f"{job.people} with value “{state}”"

    def change_words(self, job: DeployedJob, change: EstimateRecord) -> tuple[str, str] | None:
        headline = change.summary
        assert headline.value is not None
        assert headline.ci95_low is not None
        assert headline.ci95_high is not None
        step = step_of(headline.ci95_low, headline.ci95_high)
        half = -(-(headline.ci95_high - headline.ci95_low) / 2 // step) * step
        value = round(headline.value / step) * step
        before = f"the {period(job)} before"
        if headline.ci95_low > 0 or headline.ci95_high < 0:
            # Words state the direction, since "-4,780 fewer" would be wrong.
            way = "more" if value > 0 else "fewer"
            return f"{abs(value):,.0f} ± {half:,.0f}", f"{way} than {before}"
        number = f"{value:+,.0f} ± {half:,.0f}".replace("-", "\N{MINUS SIGN}")
        return number, f"no significant change since {before}"

    def smoothed_estimate(self, smoothed: SmoothedEstimates, index: int, reports: int) -> Estimate:
        return smoothed.count_at(index, reports)

    def find(self, domain: ValueDomain, id: str) -> Series:
        if id == VALUE.id:
            return VALUE
        raise SeriesError(f"series: got {short_id(id)}; expected {VALUE.id!r}")

    def listed(self, domain: ValueDomain, ranked: Ranked) -> tuple[Series, ...]:
        return (VALUE,)

    def chosen(self, domain: ValueDomain, ranked: Ranked, count: int) -> tuple[Series, ...]:
        return (VALUE,)
