"""Questions to what was published of a job, beside Norm-Sub and the truth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aggregators.counts import NoValuesError
from aggregators.norm_sub import norm_sub
from aggregators.published import Published
from pipeline.results.questions import (
    QUARTILES,
    Answer,
    Asked,
    Boxes,
    Count,
    Items,
    Quantiles,
    Question,
    Top,
)
from pipeline.stages.estimate_records import EstimateRecord
from pipeline.values.boxes import Box, QueryError
from pipeline.values.item_sums import NO_SUMS, ItemSums
from pipeline.values.value_domains import Kind, ValueDomain


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
        estimate = record.estimate
        answers = [answer.to_json() for answer in self.answers(estimate, truth)]
        body: dict[str, Any] = {
            "epoch": record.epoch,
            "fate": record.fate.value,
            "population": record.population,
            "flags": list(record.flags),
            self.question.plural: answers,
        }
        width = self.simultaneous_half_width(record)
        return body if width is None else body | {"simultaneous_half_width": width}

    def simultaneous_half_width(self, record: EstimateRecord) -> float | None:
        """Of the intervals that hold all counts at once, where items are selected by size."""
        if record.estimate is None or not self.question.selects:
            return None
        return record.estimate.simultaneous_half_width


def make_query(domain: ValueDomain, asked: Asked, *, norm_sub: bool = False) -> Query | None:
    """The query that people ask; None if nothing is asked.

    Args:
        domain: of the job.
        asked: by its options.
        norm_sub: also Norm-Sub; by itself, of all items or buckets.

    Raises:
        QueryError: the job, or the rest of the query, does not allow it.
    """
    question = asked.question(domain)
    if question is None and not norm_sub:
        return None
    if domain.kind == "value":
        raise QueryError("--norm-sub is for jobs over items or numbers; this one counts one value")
    if norm_sub and question is not None and question.in_values:
        raise QueryError("--norm-sub goes with items and ranges, not with --quantile")
    question = question or _USUAL[domain.kind][2](domain)
    if domain.slots is not None:
        _check_published(domain, question, norm_sub=norm_sub)
    return Query(domain, question, norm_sub)


def _check_published(domain: ValueDomain, question: Question, *, norm_sub: bool) -> None:
    """Of sets only items are published, and of large domains only those most held."""
    if question.of_tree:
        raise QueryError(
            f"{question.of_tree} are not answered from what is published: ask dpstream query "
            "instead"
        )
    if domain.items is None and (norm_sub or not question.selects):
        raise QueryError(
            f"{'--norm-sub' if norm_sub else '--item'}: only the items most held are published; "
            "dpstream query knows all, with --item"
        )


def usual_query(domain: ValueDomain, *, everything: bool) -> Query | None:
    """What is shown of items and numbers when nothing is asked; None for a single count.

    Args:
        domain: of the job.
        everything: all items or buckets, instead of the largest items or the quartiles.
    """
    if domain.kind == "value":
        return None
    _, brief, every = _USUAL[domain.kind]
    return Query(domain, every(domain) if everything else brief)


def headline_query(domain: ValueDomain) -> Query:
    """What is asked where there is room for one number."""
    return Query(domain, _USUAL[domain.kind][0])


def overview(domain: ValueDomain, records: Sequence[EstimateRecord], count: int) -> Query:
    """What shows best how a job's values move: its largest items, or the quartiles of its numbers.

    Args:
        domain: of the job.
        records: its estimates.
        count: how many items at most: those with the largest mean over all epochs.
    """
    _, brief, _ = _USUAL[domain.kind]
    if not brief.selects:
        return Query(domain, brief)
    sums = NO_SUMS
    for record in records:
        if record.estimate is not None:
            sums = sums.plus(record.estimate.numbers, record.estimate.intervals[0])
    return Query(domain, Items(tuple(sums.most(count).tolist())))


_Usual: TypeAlias = tuple[Question, Question, Callable[[ValueDomain], Question]]
"""What is asked in one number, in a few, and of everything."""


def _buckets(domain: ValueDomain) -> Boxes:
    labels = enumerate(domain.items or ())
    return Boxes(tuple(Box(label, (place,), (place + 1,)) for place, label in labels))


_OF_ITEMS: _Usual = Top(1), Top(3), lambda domain: Items()
_USUAL: Mapping[Kind, _Usual] = {
    "value": (Count(), Count(), lambda domain: Count()),
    "items": _OF_ITEMS,
    "found": _OF_ITEMS,
    "numbers": (Quantiles((0.5,)), Quantiles(QUARTILES), _buckets),
}
