"""Queries about counts, from published data or from windows.

A query requests one count, items, the most frequent items, ranges and boxes, or quantiles. Each
class computes answers and ground truth from any `Counts`, and defines names and curves.
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
from dpstream.pipeline.devices.ground_truths import of_published
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
    """Estimated number for an epoch, with its interval.

    Attributes:
        value: Estimate, in users; for a quantile, a value of the domain.
        standard_error: Standard error; None for quantiles.
        norm_sub: Estimate after Norm-Sub, if requested.
        item: Index of the item, from 1; 0 for other answers.
        flags: Warnings about this answer alone.
        refused: Sentence that states why there is no number; the numbers are then NaN.
    """

    name: str
    value: float
    standard_error: float | None
    ci95_low: float
    ci95_high: float
    norm_sub: float | None = None
    ground_truth: float | None = None
    item: int = 0
    flags: tuple[str, ...] = ()
    refused: str | None = None

    @classmethod
    def of(cls, name: str, estimate: Estimate, item: int = 0) -> Answer:
        assert estimate.value is not None
        assert estimate.ci95_low is not None
        assert estimate.ci95_high is not None
        numbers = estimate.value, estimate.standard_error, estimate.ci95_low, estimate.ci95_high
        return cls(name, *numbers, item=item)

    def to_json(self) -> dict[str, Any]:
        if self.refused is not None:
            return {"name": self.name, "refused": self.refused}
        body = {
            "name": self.name,
            "estimate": self.value,
            "standard_error": self.standard_error,
            "ci95_low": self.ci95_low,
            "ci95_high": self.ci95_high,
        }
        more: dict[str, Any] = {"norm_sub": self.norm_sub, "ground_truth": self.ground_truth}
        more["flags"] = list(self.flags) or None
        return body | {name: value for name, value in more.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers to a query.

    Attributes:
        answers: All answers, in the requested order or in decreasing order.
        detection_threshold: With `Top`, number of users above which an item is included with
            probability 95 %; None if all items are included.
        bucket_width: With `Quantiles` that have bucket resolution, the width of a bucket.
        suppressed: Names of suppressed crowds or rows.
        suppressed_because: Why they are suppressed, as the end of a sentence.
    """

    counts_query: CountsQuery
    answers: tuple[Answer, ...]
    estimator: str
    detection_threshold: float | None = None
    bucket_width: float | None = None
    suppressed: tuple[str, ...] = ()
    suppressed_because: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        notes = []
        if self.detection_threshold is not None:
            notes.append(
                f"an item with more than {self.detection_threshold:,.0f} users is listed with a "
                "probability of 95 %; selecting the largest items biases their estimates upward"
            )
        if self.bucket_width is not None:
            notes.append(
                "a quantile is the start of its bucket, which is "
                f"{number_text(self.bucket_width)} wide; the interval extends to the end of its "
                "last bucket"
            )
        if self.suppressed:
            notes.append(
                f"suppressed, because {self.suppressed_because}: {', '.join(self.suppressed)}"
            )
        return tuple(notes)

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            self.counts_query.plural: self.answers,
            "estimator": self.estimator,
        }
        more = {
            "detection_threshold": self.detection_threshold,
            "bucket_width": self.bucket_width,
            "suppressed_crowds": list(self.suppressed) or None,
        }
        return body | {name: value for name, value in more.items() if value is not None}


class CountsQuery(ABC):
    __slots__ = ()

    in_values: ClassVar[bool] = False
    """True if the answers are values of the domain rather than user counts."""

    selects: ClassVar[bool] = False
    """True if the query selects the largest estimates, which biases them upwards."""

    of_tree: ClassVar[str] = ""
    """Noun for the queried intervals, if these require cells that form a tree; otherwise empty."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """Noun for each answer."""

    @property
    def plural(self) -> str:
        return f"{self.kind}s"

    @property
    def column(self) -> str | None:
        """Header of the table column with the names of answers; None for a single answer."""
        return self.kind

    @abstractmethod
    def evaluate(self, counts: Counts, domain: ValueDomain) -> Answers:
        """Answer the query from counts.

        Raises:
            UnsupportedQueryError: If the counts do not support this query.
            NoValuesError: If no user has a value, so there are no quantiles.
        """

    def ground_truths(
        self, answers: Sequence[Answer], sums: ItemSums, domain: ValueDomain
    ) -> Iterator[float | None]:
        items = np.array([answer.item for answer in answers], np.int64)
        yield from map(float, sums.of(items))

    def names(self, domain: ValueDomain) -> list[str]:
        """Return the names of the answers, or an empty list if they depend on data."""
        return []

    def steady(self, records: Sequence[EstimateRecord], count: int) -> CountsQuery:
        """Return a query for the same items at every epoch, with at most `count` answers."""
        return self

    def label_of(self, answer: Answer) -> str:
        """Return the label of an answer in the short list of numbers monitored for a job."""
        return answer.name


@dataclass(frozen=True, slots=True)
class Count(CountsQuery):
    kind: ClassVar[str] = "value"
    column: ClassVar[None] = None

    def evaluate(self, counts: Counts, domain: ValueDomain) -> Answers:
        answers = (Answer.of("1", estimate, item) for item, estimate in counts.of_items())
        return Answers(self, tuple(answers), counts.method)

    def label_of(self, answer: Answer) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Items(CountsQuery):
    """Query the number of users with each of the `items`, numbered from 1; None means all items."""

    items: tuple[int, ...] | None = None

    kind: ClassVar[str] = "item"

    def evaluate(self, counts: Counts, domain: ValueDomain) -> Answers:
        answers = _labeled(domain, counts.of_items(self.items))
        return Answers(self, answers, counts.method, **_suppressed(domain, counts))

    def names(self, domain: ValueDomain) -> list[str]:
        items: Sequence[int] = self.items or ()
        if self.items is None and domain.items is not None:
            items = range(1, min(domain.size, _LABELS_MEASURED))
        return [domain.label(item) for item in items]

    def steady(self, records: Sequence[EstimateRecord], count: int) -> Items:
        return Items(tuple(range(1, count + 1)) if self.items is None else self.items[:count])


@dataclass(frozen=True, slots=True)
class Top(CountsQuery):
    """Query at most `count` of the most frequent items among `numbers` (None: all items)."""

    count: int
    numbers: range | None = None

    kind: ClassVar[str] = "item"
    selects: ClassVar[bool] = True

    def evaluate(self, counts: Counts, domain: ValueDomain) -> Answers:
        if self.numbers is None:
            largest, items = counts.top(self.count), domain.size - 1
        else:
            # The crowd itself is among the numbers, but is not an item.
            largest, items = counts.top_of(self.numbers, self.count), len(self.numbers) - 1
        answers = _labeled(domain, largest.of_items())
        # Suppressed crowds are listed in `suppressed`.
        listed = len(answers) == items or counts.suppressed
        above = None if listed else largest.detection_threshold
        return Answers(
            self, answers, counts.method, detection_threshold=above, **_suppressed(domain, counts)
        )

    def names(self, domain: ValueDomain) -> list[str]:
        return Items().names(domain)

    def steady(self, records: Sequence[EstimateRecord], count: int) -> Items:
        sums = NO_SUMS
        for record in records:
            if record.estimate is not None:
                sums = sums.plus(record.estimate.numbers, record.estimate.intervals[0])
        return Items(tuple(sums.most(min(count, self.count)).tolist()))


@dataclass(frozen=True, slots=True)
class Boxes(CountsQuery):
    """Query the number of users with values or points in each of the `boxes` (at least one)."""

    boxes: tuple[Box, ...]

    of_tree: ClassVar[str] = "ranges and boxes"

    @property
    def kind(self) -> str:
        return "range" if len(self.boxes[0].starts) == 1 else "box"

    @property
    def plural(self) -> str:
        return "ranges" if self.kind == "range" else "boxes"

    def evaluate(self, counts: Counts, domain: ValueDomain) -> Answers:
        answers = (Answer.of(each.name, counts.box(each.starts, each.ends)) for each in self.boxes)
        return Answers(self, tuple(answers), counts.method)

    def ground_truths(
        self, answers: Sequence[Answer], sums: ItemSums, domain: ValueDomain
    ) -> Iterator[float | None]:
        yield from (sums.within(box, domain.grid) for box in self.boxes)

    def names(self, domain: ValueDomain) -> list[str]:
        return [box.name for box in self.boxes]

    def steady(self, records: Sequence[EstimateRecord], count: int) -> Boxes:
        return Boxes(self.boxes[:count])


@dataclass(frozen=True, slots=True)
class Quantiles(CountsQuery):
    """Query the values below which the given shares (from 0 to 1) of all values lie."""

    shares: tuple[float, ...]

    kind: ClassVar[str] = "quantile"
    in_values: ClassVar[bool] = True
    of_tree: ClassVar[str] = "quantiles"

    def evaluate(self, counts: Counts, domain: ValueDomain) -> Answers:
        answers = []
        for share, name in zip(self.shares, self.names(domain), strict=True):
            estimate = counts.quantile(share)
            value, low, high = domain.quantile(
                estimate.value, estimate.ci95_low, estimate.ci95_high
            )
            answers.append(Answer(name, float(value), None, float(low), float(high)))
        return Answers(self, tuple(answers), counts.method, bucket_width=domain.step)

    def ground_truths(
        self, answers: Sequence[Answer], sums: ItemSums, domain: ValueDomain
    ) -> Iterator[float | None]:
        for share in self.shares:
            yield domain.true_quantile(sums.items, sums.counts, share)

    def names(self, domain: ValueDomain) -> list[str]:
        return [f"{share:g}" for share in self.shares]

    def label_of(self, answer: Answer) -> str:
        return _NAMED_SHARES.get(answer.name, answer.name)

    def steady(self, records: Sequence[EstimateRecord], count: int) -> Quantiles:
        return Quantiles(self.shares[:count])


def _labeled(domain: ValueDomain, found: Iterator[tuple[int, Estimate]]) -> tuple[Answer, ...]:
    # A tree may have more leaves than there are items.
    return tuple(
        Answer.of(domain.label(item), estimate, item)
        for item, estimate in found
        if item < domain.size
    )


def _suppressed(domain: ValueDomain, counts: Counts) -> dict[str, Any]:
    names = tuple(map(domain.label, counts.suppressed))
    return {"suppressed": names, "suppressed_because": counts.suppressed_because}


@dataclass(frozen=True, slots=True)
class Query:
    """Query to answer for every published epoch; `norm_sub` adds estimates after Norm-Sub."""

    domain: ValueDomain
    counts_query: CountsQuery
    norm_sub: bool = False

    @property
    def derived(self) -> str | None:
        """Statistic computed from estimates, such as "ratio"; None for the estimates themselves."""
        return None

    @property
    def percent(self) -> bool:
        return False

    @property
    def column(self) -> str | None:
        return self.counts_query.column

    @property
    def name_columns(self) -> tuple[str, ...]:
        return () if self.column is None else (self.column,)

    def names_of(self, answer: Answer) -> tuple[str | None, ...]:
        return () if self.column is None else (answer.name,)

    def statistic_of(self, answer: Answer) -> str | None:
        return self.derived

    def is_mean(self, answer: Answer) -> bool:
        """Return whether an answer is the mean of a number, in the unit of that number."""
        return self.derived is None and answer.item in self.domain.means

    @property
    def names(self) -> list[str]:
        """Names of the answers; empty if they depend on data."""
        return self.counts_query.names(self.domain)

    def answers_of(
        self, record: EstimateRecord, ground_truth: NDArray[np.integer] | None = None
    ) -> tuple[Answer, ...]:
        return self.answers(record.estimate, ground_truth)

    def answers(
        self, estimate: Published | None, ground_truth: NDArray[np.integer] | None = None
    ) -> tuple[Answer, ...]:
        """Return the answers for an epoch; the result is empty without an estimate.

        `ground_truth`, if known, is the number of users with each item or bucket, or with each of
        those that are estimated, shape (items,), or a single count.
        """
        if estimate is None or not (estimate.population or estimate.single):
            return ()
        try:
            answers = self.counts_query.evaluate(estimate, self.domain).answers
        except NoValuesError:
            return ()
        if self.norm_sub and estimate.detection_threshold is None:
            fitted = norm_sub(estimate.intervals[0], estimate.population)
            paired = self._paired(answers, estimate, fitted)
            answers = tuple(replace(each, norm_sub=value) for each, value in paired)
        if answers and ground_truth is not None:
            paired = self._paired(answers, estimate, of_published(ground_truth, estimate))
            answers = tuple(replace(each, ground_truth=value) for each, value in paired)
        return answers

    def _paired(
        self, answers: Sequence[Answer], estimate: Published, numbers: NDArray[Any]
    ) -> Iterable[tuple[Answer, float | None]]:
        sums = ItemSums.of_each(estimate.numbers, numbers)
        return zip(
            answers, self.counts_query.ground_truths(answers, sums, self.domain), strict=True
        )

    def to_json(
        self, record: EstimateRecord, ground_truth: NDArray[np.integer] | None = None
    ) -> Mapping[str, Any]:
        body: dict[str, Any] = {
            "epoch": record.epoch,
            "window_status": record.window_status,
            "population": record.population,
            "flags": record.flags,
        }
        if self.derived is None:
            body[self.counts_query.plural] = self.answers_of(record, ground_truth)
        else:
            body["statistic"] = self.derived
            body[f"{self.derived}s"] = self.answers_of(record)
        width = self.simultaneous_half_width(record)
        return body if width is None else body | {"simultaneous_half_width": width}

    def simultaneous_half_width(self, record: EstimateRecord) -> float | None:
        """Return the half-width of simultaneous intervals; None if items are not ranked."""
        if record.estimate is None or not self.counts_query.selects:
            return None
        return record.estimate.simultaneous_half_width
