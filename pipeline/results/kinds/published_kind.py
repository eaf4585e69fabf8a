"""Interface for kinds of publication."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Estimate, Published
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.smoothed_estimates import SmoothedEstimates
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_words import EpochName
from dpstream.pipeline.results.counts_queries import CountsQuery, Query
from dpstream.pipeline.results.kinds.headline import Headline
from dpstream.pipeline.results.phrases import Sentence, is_plain, title_label
from dpstream.pipeline.results.series import Series
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.value_domains import ValueDomain

Ranked = Callable[[int], list[int]]
"""Function that returns a given number of items, in decreasing order of sums over all epochs."""


class PublishedKind(ABC):
    single: ClassVar[bool] = False
    """True if a single number is published per epoch; such a number needs no name."""

    same_items: ClassVar[bool] = False
    """True if the same items are published at every epoch, as estimates of their counts."""

    in_one: ClassVar[CountsQuery]
    """Query for displays of a single number."""

    in_few: ClassVar[CountsQuery]
    """Query whose answers describe an epoch by default."""

    largest_are: ClassVar[str] = "item"
    """Noun for each series that `largest` returns."""

    quantiles: ClassVar[tuple[Series, ...]] = ()
    """Series for published quantiles, whose values are values of the domain."""

    @abstractmethod
    def everything(self, domain: ValueDomain) -> CountsQuery:
        """Return the query for all numbers that an epoch publishes."""

    def watched(self, domain: ValueDomain, most: int) -> CountsQuery | None:
        """Return the query for Prometheus; None if it would return more than `most` numbers."""
        return None

    def overview(self, records: Sequence[EstimateRecord], count: int) -> CountsQuery:
        """Return the query for the default plot of the records, with at most `count` curves."""
        return self.in_few

    def headline(
        self,
        domain: ValueDomain,
        record: EstimateRecord,
        ground_truth: NDArray[np.integer] | None = None,
    ) -> Headline:
        """Return the headline of a record.

        `ground_truth`, if known, is the number of users with each estimated item or bucket, shape
        (items,), or the count, shape (1,).
        """
        for answer in Query(domain, self.in_one).answers(record.estimate, ground_truth):
            numbers = answer.value, answer.ci95_low, answer.ci95_high, answer.ground_truth
            return Headline(domain.label(answer.item), *numbers, population=record.population)
        return Headline()

    @abstractmethod
    def sentence(
        self, job: DeployedJob, record: EstimateRecord, when: EpochName, *, titled: bool
    ) -> Sentence:
        """Describe what an epoch publishes; `when` is the name of the epoch.

        `titled` prefixes the job's title, unless the noun from `counted` contains the title.
        """

    def counted(self, job: DeployedJob) -> tuple[str, str]:
        """Return the words that precede a count, and the noun that follows the count.

        With unit "students", the titles "Students enrolled" and "Enrolled students" become the
        noun; all other titles, and titles with punctuation, precede the count.
        """
        title, people = job.title, job.people
        if title is not None and is_plain(title):
            if title.casefold().startswith(f"{people} ".casefold()):
                return "", people + title[len(people) :]
            if title.casefold().endswith(f" {people}".casefold()):
                return "", title[:1].lower() + title[1:]
        return title_label(title), self.people(job)

    def people(self, job: DeployedJob) -> str:
        return job.people

    def change_words(self, job: DeployedJob, change: EstimateRecord) -> tuple[str, str] | None:
        """Return the number and description of the change since the previous epoch, or None."""
        return None

    def ranks(self, job: DeployedJob, record: EstimateRecord) -> dict[int, tuple[int, int]]:
        """Return the first and last possible rank per item number; empty unless ranks are known.

        An item precedes another if their simultaneous intervals do not overlap; otherwise either
        order is possible.
        """
        return {}

    @abstractmethod
    def smoothed_estimate(
        self, smoothed: SmoothedEstimates, index: int, reports: int
    ) -> Estimate | ItemEstimates:
        """Return the smoothed estimate at `index`, in the format of an online estimate.

        `reports` is the number of reports received in all epochs.
        """

    @abstractmethod
    def find(self, domain: ValueDomain, id: str) -> Series:
        """Return the series with this ID; raise `SeriesError` if there is no such series."""

    def find_all(self, domain: ValueDomain, ids: Sequence[str]) -> tuple[Series, ...]:
        return tuple(self.find(domain, each) for each in dict.fromkeys(ids))

    @abstractmethod
    def listed(self, domain: ValueDomain, ranked: Ranked) -> tuple[Series, ...]:
        """Return the series that the live page offers."""

    @abstractmethod
    def chosen(self, domain: ValueDomain, ranked: Ranked, count: int) -> tuple[Series, ...]:
        """Return about `count` series to draw by default."""

    def small(self, domain: ValueDomain, ranked: Ranked, count: int) -> tuple[Series, ...]:
        """Return at most `count` series for sparklines."""
        return self.listed(domain, ranked)[:count]

    def largest(self, domain: ValueDomain, estimate: Published, count: int) -> tuple[Series, ...]:
        """Return an epoch's `count` largest items or, for numbers, its first `count` buckets."""
        return ()

    def quantiles_of(self, domain: ValueDomain, estimate: Published | None) -> NDArray[np.float64]:
        """Return the value, low and high of `quantiles`, shape (quantiles, 3); NaN if unknown."""
        return np.zeros((0, 3))
