"""What counts can be asked, whether they were published or lie in the windows themselves.

A question is about one count, items, the items most held, ranges and boxes, or quantiles. Each kind
knows its answers from any `Counts`, the truth beside them, and how it is drawn and named.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.counts import Counts, NoValuesError
from dpstream.aggregators.estimate import Estimate, Published
from dpstream.aggregators.item_estimates import norm_sub
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.boxes import Box
from dpstream.pipeline.values.item_sums import NO_SUMS, ItemSums
from dpstream.pipeline.values.value_domains import ValueDomain
from dpstream.randomizers.equal_buckets import number_text

QUARTILES = (0.25, 0.5, 0.75)
_NAMED_SHARES = {"0.5": "median"}

_LABELS_MEASURED = 1 << 12


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
        item: its number, from 1 on; 0 where it is about none.
    """

    name: str
    value: float
    standard_deviation: float | None
    low: float
    high: float
    norm_sub: float | None = None
    truth: float | None = None
    item: int = 0

    @classmethod
    def of(cls, name: str, estimate: Estimate, item: int = 0) -> Answer:
        """What an estimate says."""
        assert estimate.value is not None
        assert estimate.low is not None
        assert estimate.high is not None
        numbers = estimate.value, estimate.standard_deviation, estimate.low, estimate.high
        return cls(name, *numbers, item=item)

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
class Answers:
    """What counts say to a question.

    Attributes:
        question: that was asked.
        answers: in the order in which they were asked, or the largest first.
        estimator: how they are made, in words.
        found_above: with `Top`, items that more users hold are among them with a probability of
            95 % each; None where all items are.
        bucket_width: with `Quantiles` that are told to a bucket, how wide it is.
        withheld: crowds that nothing is told of.
    """

    question: Question
    answers: tuple[Answer, ...]
    estimator: str
    found_above: float | None = None
    bucket_width: float | None = None
    withheld: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know besides, in sentences."""
        notes = []
        if self.found_above is not None:
            notes.append(
                f"an item that more than {self.found_above:,.0f} users hold is listed with a "
                "probability of 95 %; selecting the largest biases them upwards"
            )
        if self.bucket_width is not None:
            notes.append(
                f"a quantile is known to a bucket, {number_text(self.bucket_width)} wide: where it "
                "begins; the interval reaches to the end of its last bucket"
            )
        if self.withheld:
            notes.append(
                "withheld, since too few messages were left after deletion: "
                f"{', '.join(self.withheld)}"
            )
        return tuple(notes)

    def to_json(self) -> dict[str, Any]:
        """The answers by their kind, and what is known besides."""
        body: dict[str, Any] = {
            self.question.plural: self.answers,
            "estimator": self.estimator,
        }
        more = {
            "found_above": self.found_above,
            "bucket_width": self.bucket_width,
            "withheld_crowds": list(self.withheld) or None,
        }
        return body | {name: value for name, value in more.items() if value is not None}


class Question(ABC):
    """One kind of question."""

    __slots__ = ()

    in_values: ClassVar[bool] = False
    """Whether the answers are values of the domain instead of numbers of users."""

    selects: ClassVar[bool] = False
    """Whether it selects the largest, which biases them upwards."""

    of_tree: ClassVar[str] = ""
    """What is asked, in words, where cells have to be those of a tree."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """What each answer is about, in one word."""

    @property
    def plural(self) -> str:
        """The same of several."""
        return f"{self.kind}s"

    @property
    def column(self) -> str | None:
        """The column of tables that has the names of answers; None where there is one answer."""
        return self.kind

    @abstractmethod
    def ask(self, counts: Counts, domain: ValueDomain) -> Answers:
        """The answers.

        Raises:
            NotAskedForError: the counts are of another kind.
            NoValuesError: no user has a value, so there are no quantiles.
        """

    def truths(
        self, answers: Sequence[Answer], held: ItemSums, domain: ValueDomain
    ) -> Iterator[float | None]:
        """What users truly hold, beside each answer."""
        items = np.array([answer.item for answer in answers], np.int64)
        yield from map(float, held.of(items))

    def names(self, domain: ValueDomain) -> list[str]:
        """Of the answers, as far as they are known beforehand."""
        return []

    def steady(self, records: Sequence[EstimateRecord], count: int) -> Question:
        """About no more than so many, the same ones at every epoch.

        Args:
            records: of all epochs.
            count: at least 1.
        """
        return self

    def label_of(self, answer: Answer) -> str:
        """What tells an answer from the others, where a job has one number or a few."""
        return answer.name


@dataclass(frozen=True, slots=True)
class Count(Question):
    """How many users have the one value that is counted."""

    kind: ClassVar[str] = "value"
    column: ClassVar[None] = None

    def ask(self, counts: Counts, domain: ValueDomain) -> Answers:
        """See `Question`."""
        answers = (Answer.of("1", estimate, item) for item, estimate in counts.of_items())
        return Answers(self, tuple(answers), counts.method)

    def label_of(self, answer: Answer) -> str:
        """See `Question`: it needs none."""
        return ""


@dataclass(frozen=True, slots=True)
class Items(Question):
    """How many users hold each of these items.

    Attributes:
        items: numbers of items, from 1 on; None for all items of the domain that are known.
    """

    items: tuple[int, ...] | None = None

    kind: ClassVar[str] = "item"

    def ask(self, counts: Counts, domain: ValueDomain) -> Answers:
        """See `Question`."""
        answers = _labelled(domain, counts.of_items(self.items))
        return Answers(self, answers, counts.method, withheld=_withheld(domain, counts))

    def names(self, domain: ValueDomain) -> list[str]:
        """See `Question`."""
        items: Sequence[int] = self.items or ()
        if self.items is None and domain.items is not None:
            items = range(1, min(domain.size, _LABELS_MEASURED))
        return [domain.label(item) for item in items]

    def steady(self, records: Sequence[EstimateRecord], count: int) -> Items:
        """See `Question`."""
        return Items(tuple(range(1, count + 1)) if self.items is None else self.items[:count])


@dataclass(frozen=True, slots=True)
class Top(Question):
    """The items most held.

    Attributes:
        count: how many at most.
        numbers: of a crowd and the items in it; None: all items.
    """

    count: int
    numbers: range | None = None

    kind: ClassVar[str] = "item"
    selects: ClassVar[bool] = True

    def ask(self, counts: Counts, domain: ValueDomain) -> Answers:
        """See `Question`."""
        if self.numbers is None:
            largest, items = counts.top(self.count), domain.size - 1
        else:
            # Among them is the crowd, which is no item.
            largest, items = counts.top_of(self.numbers, self.count), len(self.numbers) - 1
        answers, withheld = _labelled(domain, largest.of_items()), _withheld(domain, counts)
        # Where crowds were withheld, that is what there is to say.
        above = None if len(answers) == items or withheld else largest.found_above
        return Answers(self, answers, counts.method, found_above=above, withheld=withheld)

    def names(self, domain: ValueDomain) -> list[str]:
        """See `Question`."""
        return Items().names(domain)

    def steady(self, records: Sequence[EstimateRecord], count: int) -> Items:
        """See `Question`: those with the largest mean over all epochs."""
        sums = NO_SUMS
        for record in records:
            if record.estimate is not None:
                sums = sums.plus(record.estimate.numbers, record.estimate.intervals[0])
        return Items(tuple(sums.most(min(count, self.count)).tolist()))


@dataclass(frozen=True, slots=True)
class Boxes(Question):
    """How many users' values or points lie in each of these.

    Attributes:
        boxes: at least one.
    """

    boxes: tuple[Box, ...]

    of_tree: ClassVar[str] = "ranges and boxes"

    @property
    def kind(self) -> str:
        """A range along one axis, a box along several."""
        return "range" if len(self.boxes[0].starts) == 1 else "box"

    @property
    def plural(self) -> str:
        """Of `kind`."""
        return "ranges" if self.kind == "range" else "boxes"

    def ask(self, counts: Counts, domain: ValueDomain) -> Answers:
        """See `Question`."""
        answers = (Answer.of(each.name, counts.box(each.starts, each.ends)) for each in self.boxes)
        return Answers(self, tuple(answers), counts.method)

    def truths(
        self, answers: Sequence[Answer], held: ItemSums, domain: ValueDomain
    ) -> Iterator[float | None]:
        """See `Question`."""
        yield from (held.within(box, domain.grid) for box in self.boxes)

    def names(self, domain: ValueDomain) -> list[str]:
        """See `Question`."""
        return [box.name for box in self.boxes]

    def steady(self, records: Sequence[EstimateRecord], count: int) -> Boxes:
        """See `Question`."""
        return Boxes(self.boxes[:count])


@dataclass(frozen=True, slots=True)
class Quantiles(Question):
    """Below which value these shares of all values lie.

    Attributes:
        shares: between 0 and 1.
    """

    shares: tuple[float, ...]

    kind: ClassVar[str] = "quantile"
    in_values: ClassVar[bool] = True
    of_tree: ClassVar[str] = "quantiles"

    def ask(self, counts: Counts, domain: ValueDomain) -> Answers:
        """See `Question`."""
        answers = []
        for share, name in zip(self.shares, self.names(domain), strict=True):
            estimate = counts.quantile(share)
            value, low, high = domain.quantile(estimate.value, estimate.low, estimate.high)
            answers.append(Answer(name, float(value), None, float(low), float(high)))
        return Answers(self, tuple(answers), counts.method, bucket_width=domain.step)

    def truths(
        self, answers: Sequence[Answer], held: ItemSums, domain: ValueDomain
    ) -> Iterator[float | None]:
        """See `Question`."""
        for share in self.shares:
            yield domain.true_quantile(held.items, held.counts, share)

    def names(self, domain: ValueDomain) -> list[str]:
        """See `Question`."""
        return [f"{share:g}" for share in self.shares]

    def label_of(self, answer: Answer) -> str:
        """See `Question`."""
        return _NAMED_SHARES.get(answer.name, answer.name)

    def steady(self, records: Sequence[EstimateRecord], count: int) -> Quantiles:
        """See `Question`."""
        return Quantiles(self.shares[:count])


def _labelled(domain: ValueDomain, found: Iterator[tuple[int, Estimate]]) -> tuple[Answer, ...]:
    # A tree may have more leaves than there are items.
    return tuple(
        Answer.of(domain.label(item), estimate, item)
        for item, estimate in found
        if item < domain.size
    )


def _withheld(domain: ValueDomain, counts: Counts) -> tuple[str, ...]:
    return tuple(map(domain.label, counts.withheld))


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked of every published epoch.

    Attributes:
        domain: of the job.
        question: that is asked.
        norm_sub: whether the estimates after Norm-Sub are wanted too.
    """

    domain: ValueDomain
    question: Question
    norm_sub: bool = False

    def answers(
        self, estimate: Published | None, truth: NDArray[np.integer] | None = None
    ) -> tuple[Answer, ...]:
        """The answers for an epoch; none where there is no estimate.

        Args:
            estimate: of an epoch of the job.
            truth: users with each item or in each bucket that was estimated, shape (items,), where
                it is known; of one value a single number.
        """
        if estimate is None or not (estimate.population or estimate.single):
            return ()
        try:
            answers = self.question.ask(estimate, self.domain).answers
        except NoValuesError:
            return ()
        if self.norm_sub and estimate.found_above is None:
            fitted = norm_sub(estimate.intervals[0], estimate.population)
            beside = self._beside(answers, estimate, fitted)
            answers = tuple(replace(each, norm_sub=value) for each, value in beside)
        if answers and truth is not None:
            beside = self._beside(answers, estimate, np.atleast_1d(truth))
            answers = tuple(replace(each, truth=value) for each, value in beside)
        return answers

    def _beside(
        self, answers: Sequence[Answer], estimate: Published, numbers: NDArray[Any]
    ) -> Iterable[tuple[Answer, float | None]]:
        sums = ItemSums.of_each(estimate.numbers, numbers)
        return zip(answers, self.question.truths(answers, sums, self.domain), strict=True)

    def to_json(
        self, record: EstimateRecord, truth: NDArray[np.integer] | None = None
    ) -> Mapping[str, Any]:
        """The answers for an epoch; the names of the largest items differ by epoch."""
        body: dict[str, Any] = {
            "epoch": record.epoch,
            "fate": record.fate,
            "population": record.population,
            "flags": record.flags,
            self.question.plural: self.answers(record.estimate, truth),
        }
        width = self.simultaneous_half_width(record)
        return body if width is None else body | {"simultaneous_half_width": width}

    def simultaneous_half_width(self, record: EstimateRecord) -> float | None:
        """Of the intervals that hold all counts at once, where items are selected by size."""
        if record.estimate is None or not self.question.selects:
            return None
        return record.estimate.simultaneous_half_width
