"""Numbers as values: counts of users per bucket, and thus quantiles."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Published
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.level_estimates import LevelEstimates
from dpstream.aggregators.range_estimates import RangeEstimates
from dpstream.aggregators.smoothed_estimates import SmoothedEstimates
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_words import EpochName
from dpstream.pipeline.results.counts_queries import QUARTILES, Boxes, CountsQuery, Quantiles, Query
from dpstream.pipeline.results.kinds.headline import Headline
from dpstream.pipeline.results.kinds.published_kind import PublishedKind, Ranked
from dpstream.pipeline.results.phrases import Sentence, nothing, title_label
from dpstream.pipeline.results.series import (
    LONGEST_ID,
    QUARTILE_SERIES,
    Series,
    SeriesError,
    known,
    range_series,
    short_id,
)
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.boxes import Box, QueryError
from dpstream.pipeline.values.numeric_values import NumericDomain
from dpstream.pipeline.values.value_domains import ValueDomain


class NumbersKind(PublishedKind):
    in_one: ClassVar[CountsQuery] = Quantiles((0.5,))
    in_few: ClassVar[CountsQuery] = Quantiles(QUARTILES)
    largest_are: ClassVar[str] = "range"
    quantiles: ClassVar[tuple[Series, ...]] = QUARTILE_SERIES

    def everything(self, domain: ValueDomain) -> CountsQuery:
        labels = enumerate(domain.items or ())
        return Boxes(tuple(Box(label, (place,), (place + 1,)) for place, label in labels))

    def watched(self, domain: ValueDomain, most: int) -> CountsQuery | None:
        return self.in_one

    def headline(
        self,
        domain: ValueDomain,
        record: EstimateRecord,
        ground_truth: NDArray[np.integer] | None = None,
    ) -> Headline:
        assert isinstance(domain, NumericDomain)
        for answer in Query(domain, self.in_one).answers(record.estimate, ground_truth):
            numbers = answer.value, answer.ci95_low, answer.ci95_high, answer.ground_truth
            return Headline("median", *numbers, domain)
        return Headline(numbers=domain)

    def sentence(
        self, job: DeployedJob, record: EstimateRecord, when: EpochName, *, titled: bool
    ) -> Sentence:
        lead = title_label(job.title) if titled else ""
        headline = self.headline(job.domain, record)
        if headline.value is None:
            return Sentence((nothing(job, record),))
        low, high = headline.edges
        value = headline.shown(headline.value)
        return Sentence(
            (
                f"{lead}Half of the {job.people} have values below ",
                value,
                f" {when.at} (95 % CI {low} to {high}).",
            )
        )

    def smoothed_estimate(
        self, smoothed: SmoothedEstimates, index: int, reports: int
    ) -> ItemEstimates:
        items = smoothed.items_at(index, reports)
        if smoothed.level_variances is None:
            return LevelEstimates.of_values(items)
        variances = tuple(smoothed.level_variances[:, index].tolist())
        deviation, width = items.standard_error, items.half_width
        return RangeEstimates(
            items.values, deviation, width, *items.about, level_variances=variances
        )

    def find(self, domain: ValueDomain, id: str) -> Series:
        for series in QUARTILE_SERIES:
            if id == series.id:
                return series
        if id.startswith("r") and ":" in id and len(id) <= LONGEST_ID:
            try:
                box = domain.range(id[1:], "series")
            except QueryError as error:
                raise SeriesError(str(error)) from None
            return Series(id, id[1:], buckets=(box.starts[0], box.ends[0]))
        raise SeriesError(
            f"series: got {short_id(id)}; expected a quantile (q0.25, q0.5 or q0.75) or a range "
            "such as r10:20"
        )

    def listed(self, domain: ValueDomain, ranked: Ranked) -> tuple[Series, ...]:
        return (*QUARTILE_SERIES, *range_series(domain))

    def chosen(self, domain: ValueDomain, ranked: Ranked, count: int) -> tuple[Series, ...]:
        return tuple(series for series in QUARTILE_SERIES if series.share == 0.5)

    def largest(self, domain: ValueDomain, estimate: Published, count: int) -> tuple[Series, ...]:
        return tuple(range_series(domain))[:count]

    def quantiles_of(self, domain: ValueDomain, estimate: Published | None) -> NDArray[np.float64]:
        rows_of_quartiles = np.full((len(QUARTILE_SERIES), 3), np.nan)
        if known(estimate):
            answers = Query(domain, self.in_few).answers(estimate)
            for row, answer in zip(rows_of_quartiles, answers, strict=False):
                row[:] = answer.value, answer.ci95_low, answer.ci95_high
        return rows_of_quartiles
