"""What a kind of published numbers says of itself."""

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
from dpstream.pipeline.results.kinds.headline import Headline
from dpstream.pipeline.results.phrases import Sentence
from dpstream.pipeline.results.questions import Query, Question
from dpstream.pipeline.results.series import Series
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.value_domains import ValueDomain

Ranked = Callable[[int], list[int]]
"""So many items, those with the largest sums over all epochs first."""


class PublishedKind(ABC):
    """What is published of a domain, as far as it is asked, said and drawn."""

    single: ClassVar[bool] = False
    """Whether it is one number at every epoch, which needs no name."""

    same_items: ClassVar[bool] = False
    """Whether it is about one and the same items at every epoch, and estimates their counts."""

    in_one: ClassVar[Question]
    """What is asked where there is room for one number."""

    in_few: ClassVar[Question]
    """What is asked of an epoch when people ask nothing."""

    largest_are: ClassVar[str] = "item"
    """What each of those of `largest` is about."""

    quantiles: ClassVar[tuple[Series, ...]] = ()
    """The series of values."""

    @abstractmethod
    def everything(self, domain: ValueDomain) -> Question:
        """What asks for all that is published of an epoch."""

    def watched(self, domain: ValueDomain, most: int) -> Question | None:
        """What is asked for Prometheus: at most so many numbers; None where they would be more."""
        return None

    def overview(self, records: Sequence[EstimateRecord], count: int) -> Question:
        """What shows best how the values of these move, by at most so many curves."""
        return self.in_few

    def headline(
        self,
        domain: ValueDomain,
        record: EstimateRecord,
        truth: NDArray[np.integer] | None = None,
    ) -> Headline:
        """The headline of a record.

        Args:
            domain: of the job.
            record: of an epoch.
            truth: users with each item or in each bucket that was estimated, shape (items,), or
                the count, shape (1,), where it is known.
        """
        for answer in Query(domain, self.in_one).answers(record.estimate, truth):
            numbers = answer.value, answer.low, answer.high, answer.truth
            return Headline(domain.label(answer.item), *numbers, population=record.population)
        return Headline()

    @abstractmethod
    def sentence(
        self, job: DeployedJob, record: EstimateRecord, when: EpochName, *, titled: bool
    ) -> Sentence:
        """What was published of an epoch of which something is known.

        Args:
            job: as deployed.
            record: of the epoch.
            when: its name.
            titled: whether to say what is counted where the title is another.
        """

    def counted(self, job: DeployedJob) -> tuple[str, str]:
        """What a count is of: what leads to it, and the people, as they are counted.

        "Students enrolled" of students is "students enrolled"; another title comes first.
        """
        title, people = job.title, job.people
        if title is not None and title.casefold().startswith(f"{people} ".casefold()):
            return "", people + title[len(people) :]
        return ("" if title is None else f"{title}: "), self.people(job)

    def people(self, job: DeployedJob) -> str:
        """Those who are counted."""
        return job.people

    def change_words(self, job: DeployedJob, change: EstimateRecord) -> tuple[str, str] | None:
        """The change since the epoch before: its number, and what can be said of it.

        Args:
            job: as deployed.
            change: as of `dpstream.pipeline.results.changes` with a lag of 1, and known.
        """
        return None

    def ranks(self, job: DeployedJob, record: EstimateRecord) -> dict[int, tuple[int, int]]:
        """Between which places each item may stand, by its number; empty where not all are known.

        An item stands before another if the intervals that hold for all items at once say so; those
        between which they do not may stand in any order.
        """
        return {}

    @abstractmethod
    def looked_back(
        self, smoothed: SmoothedEstimates, index: int, reports: int
    ) -> Estimate | ItemEstimates:
        """The smoothed estimate of an epoch as it is published of one online.

        Args:
            smoothed: the estimates of a horizon.
            index: of the epoch in the arrays.
            reports: how many were received, of all epochs.
        """

    @abstractmethod
    def find(self, domain: ValueDomain, id: str) -> Series:
        """The series of this id; raises `SeriesError` if there is none."""

    def find_all(self, domain: ValueDomain, ids: Sequence[str]) -> tuple[Series, ...]:
        """The series of these ids, each once; raises `SeriesError` as `find`."""
        return tuple(self.find(domain, each) for each in dict.fromkeys(ids))

    @abstractmethod
    def listed(self, domain: ValueDomain, ranked: Ranked) -> tuple[Series, ...]:
        """The series that a page offers."""

    @abstractmethod
    def chosen(self, domain: ValueDomain, ranked: Ranked, count: int) -> tuple[Series, ...]:
        """Those that are drawn when nobody has chosen, not many more than so many."""

    def small(self, domain: ValueDomain, ranked: Ranked, count: int) -> tuple[Series, ...]:
        """Those that are shown as sparklines, at most so many."""
        return self.listed(domain, ranked)[:count]

    def largest(self, domain: ValueDomain, estimate: Published, count: int) -> tuple[Series, ...]:
        """So many of the largest of an epoch; of numbers the buckets in their order."""
        return ()

    def quantiles_of(self, domain: ValueDomain, estimate: Published | None) -> NDArray[np.float64]:
        """Value, low and high of each of `quantiles`, shape (quantiles, 3); nan where unknown."""
        return np.zeros((0, 3))
