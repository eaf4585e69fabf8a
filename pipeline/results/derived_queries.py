"""Shares, ratios and differences of the items that a job publishes, for every epoch.

They are functions of published estimates (`dpstream.pipeline.results.ratios`): no other data is
read, and no privacy is spent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import NORMAL_95
from dpstream.aggregators.item_covariances import ItemCovariances, sampling_covariances
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.results.counts_queries import Answer, Items, Query
from dpstream.pipeline.results.phrases import capital
from dpstream.pipeline.results.ratios import (
    WEAK_DENOMINATOR,
    Amount,
    DerivedNumber,
    difference_of_parts,
    margin,
    quantile_of,
    ratio,
    share,
)
from dpstream.pipeline.results.roll_ups import WindowRecord
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.boxes import QueryError
from dpstream.pipeline.values.value_domains import ValueDomain

Statistic: TypeAlias = Literal["share", "ratio", "difference"]

MOST_COMPLEMENTED: Final = 256
"""Maximum number of items of which a sum can be the number of users minus the other items."""

WEAK_WORDS: Final = (
    "The denominator is below 3 standard deviations, so the interval may hold less often than "
    "stated"
)

_SEPARATORS: Final[Mapping[Statistic, str]] = {"ratio": "/", "difference": ","}


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sums of items, by item number: numerator and denominator, or two that are compared.

    Attributes:
        name: The pair as requested, such as "bus/car".
        names: Names of the two sums.
    """

    name: str
    names: tuple[str, str]
    first: tuple[int, ...]
    second: tuple[int, ...]

    @classmethod
    def parse(
        cls,
        text: str,
        statistic: Statistic,
        domain: ValueDomain,
        declared: Mapping[str, tuple[str, str]],
    ) -> Pair:
        """Parse ``A/B`` or ``A,B``, where A and B are items or sums such as ``X+Y``.

        `declared` are the items of ratios that the job file names. Items may contain separators.
        """
        separator, option = _SEPARATORS[statistic], f"--{statistic}"
        problem = f"{option}: got {text!r}; expected two items, such as A{separator}B"
        parts = text.split(separator)
        sides = [
            (separator.join(parts[:place]), separator.join(parts[place:]))
            for place in range(1, len(parts))
        ]
        for names in [declared[text]] if text in declared else sides:
            first, second = (each.strip() for each in names)
            try:
                sums = _sum(first, domain, option), _sum(second, domain, option)
            except QueryError as error:
                problem = str(error)
            else:
                return cls(text, (first, second), *sums)
        raise QueryError(problem)


def _sum(text: str, domain: ValueDomain, option: str) -> tuple[int, ...]:
    try:
        return domain.numbers_of([text], option)
    except QueryError:
        if "+" not in text:
            raise
        return domain.numbers_of([each.strip() for each in text.split("+")], option)


@dataclass(frozen=True, slots=True)
class ShareQuery(Query):
    """Query for shares of the users in place of their numbers, cut to [0, 1].

    Attributes:
        simultaneous: True if all intervals of an epoch hold together with 95 % probability.
        signed: True if the numbers are changes, which can be negative.
    """

    simultaneous: bool = False
    signed: bool = False

    derived: ClassVar[str] = "share"

    def answers_of(
        self, record: EstimateRecord, ground_truth: NDArray[np.integer] | None = None
    ) -> tuple[Answer, ...]:
        answers = Query.answers(self, record.estimate)
        users = Amount(0.0 if record.estimate is None else record.estimate.population)
        quantile = quantile_of(len(answers) if self.simultaneous else 1)
        divide = ratio if self.signed else share
        return tuple(
            _answer(each.name, divide(_amount(each), users, quantile=quantile), each.item)
            for each in answers
        )

    def simultaneous_half_width(self, record: EstimateRecord) -> float | None:
        width = Query.simultaneous_half_width(self, record)
        return None if width is None else width / max(1, record.population)


@dataclass(frozen=True, slots=True)
class PairQuery(Query):
    """Query for ratios of items, or for differences between their shares of the users.

    Attributes:
        covariances: Covariances of the errors of items.
        sampled: True if the answers of an epoch are those of a sample of the users.
        per_epoch: True if epochs are independent.
        head_count: True if every user has one of the items.
        simultaneous: See `ShareQuery`.
    """

    derived: Statistic = "ratio"
    pairs: tuple[Pair, ...] = ()
    covariances: ItemCovariances = sampling_covariances
    sampled: bool = False
    per_epoch: bool = False
    head_count: bool = False
    simultaneous: bool = False

    @property
    def column(self) -> str:
        return "item"

    @property
    def names(self) -> list[str]:
        return [pair.name for pair in self.pairs]

    def answers_of(
        self, record: EstimateRecord, ground_truth: NDArray[np.integer] | None = None
    ) -> tuple[Answer, ...]:
        """Return the answers for an epoch; a refused one has NaN in place of numbers."""
        return tuple(_answer(pair.name, found) for pair, found, _ in self._found(record))

    def sentences(self, record: EstimateRecord) -> Iterator[str]:
        """Yield a sentence on each pair at an epoch: what is known, or why nothing is."""
        for pair, found, shares in self._found(record):
            lead = f"{pair.name}: " if len(self.pairs) > 1 else ""
            if found.triple is None:
                text = f"no {self.derived}: {found.refused}."
            elif self.derived == "ratio":
                value, low, high = found.triple
                text = f"the ratio is {value:.3g}, between {low:.3g} and {high:.3g}."
            else:
                text = _compared(pair, shares, found.triple)
            weak = f" {WEAK_WORDS}." if WEAK_DENOMINATOR in found.flags else ""
            yield (lead + text if lead else capital(text)) + weak

    def _found(
        self, record: EstimateRecord
    ) -> Iterator[tuple[Pair, DerivedNumber, tuple[float, float]]]:
        """Yield each pair with its number, and its two shares of the users."""
        estimate = None if record.estimate is None else record.estimate.listed()
        if estimate is None or not estimate.population:
            return
        users = estimate.population
        numbers = self._items(estimate.numbers)
        values, lows, highs = estimate.intervals_of(numbers)
        answers = estimate.reports
        if not self.sampled:
            averaged = record.averaged if isinstance(record, WindowRecord) else 1
            answers = record.contributors * (averaged if self.per_epoch else 1)
        covariances = self.covariances(answers, users, values)
        np.fill_diagonal(covariances, ((highs - lows) / 2 / NORMAL_95) ** 2)
        heads = users if self.head_count and len(numbers) == len(estimate.numbers) else None
        quantile = quantile_of(len(self.pairs) if self.simultaneous else 1)
        for pair in self.pairs:
            first, second = (
                margin(np.isin(numbers, items), covariances, heads)
                for items in (pair.first, pair.second)
            )
            x, y = (each.amount(values, covariances) for each in (first, second))
            common = first.covariance(second, covariances)
            if self.derived == "ratio":
                found = ratio(x, y, common, quantile)
            else:
                found = difference_of_parts(x, y, users, common, quantile)
            yield pair, found, (x.value / users, y.value / users)

    def _items(self, every: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of the items that are read: all if the others can be subtracted."""
        if self.head_count and len(every) <= MOST_COMPLEMENTED:
            return every
        return np.unique([item for pair in self.pairs for item in (*pair.first, *pair.second)])


def derived_query(
    job: DeployedJob,
    requested: Query,
    *,
    shares: bool = False,
    ratios: Sequence[str] = (),
    differences: Sequence[str] = (),
    simultaneous: bool = False,
    signed: bool = False,
    declared: Mapping[str, tuple[str, str]] | None = None,
) -> ShareQuery | PairQuery | None:
    """Return the query for shares, for ratios or for differences; None if all are left out.

    Shares are those of the answers to `requested`; `signed` shares are changes. Raises `QueryError`
    for a job whose published data do not determine such numbers, and for several statistics.
    """
    options = {"--share": shares, "--ratio": ratios, "--difference": differences}
    given = [option for option, value in options.items() if value]
    if len(given) > 1:
        raise QueryError(f"{' and '.join(given)} are mutually exclusive")
    if not given:
        if simultaneous:
            raise QueryError("--simultaneous requires --share, --ratio or --difference")
        return None
    if requested.norm_sub:
        raise QueryError(f"--norm-sub applies to estimates, not to {given[0]}: remove it")
    domain = job.domain
    if shares:
        if requested.counts_query.in_values:
            raise QueryError("--share requires --range: quantiles are not numbers of users")
        return ShareQuery(domain, requested.counts_query, simultaneous=simultaneous, signed=signed)
    statistic: Statistic = "ratio" if ratios else "difference"
    covariances = _covariances(job, given[0])
    texts = dict.fromkeys((*ratios, *differences))
    pairs = tuple(Pair.parse(each, statistic, domain, declared or {}) for each in texts)
    return _of_pairs(job, statistic, pairs, covariances, simultaneous=simultaneous)


def pair_query(job: DeployedJob, statistic: Statistic, pair: Pair) -> PairQuery:
    """Return the query for one pair; raise `QueryError` like `derived_query`."""
    return _of_pairs(job, statistic, (pair,), _covariances(job, statistic), simultaneous=False)


def _of_pairs(
    job: DeployedJob,
    statistic: Statistic,
    pairs: tuple[Pair, ...],
    covariances: ItemCovariances,
    *,
    simultaneous: bool,
) -> PairQuery:
    return PairQuery(
        job.domain,
        Items(tuple(item for pair in pairs for item in (*pair.first, *pair.second))),
        derived=statistic,
        pairs=pairs,
        covariances=covariances,
        sampled=job.protocol_entry.sampled is not None,
        per_epoch=job.protocol_entry.per_epoch,
        head_count=bool(getattr(job.parameters, "complete", False)),
        simultaneous=simultaneous,
    )


def _covariances(job: DeployedJob, option: str) -> ItemCovariances:
    domain = job.domain
    if domain.kind != "items" or domain.column is not None:
        raise QueryError(
            f"{option} requires a job over a fixed list of items without crowds. Use --share for "
            f"the share of all {job.people}"
        )
    found = job.protocol_entry.aggregation.item_covariances(job.law, job.parameters)
    if found is None:
        raise QueryError(
            f"{option}: the published data of job {job.name} ({job.protocol}) do not show how the "
            "errors of two items are correlated; expected hadamard_values, sampled_response, "
            "projective_geometry, shuffled_counts or count_min, with one item per user"
        )
    return found


def _amount(answer: Answer) -> Amount:
    return Amount(answer.value, ((answer.ci95_high - answer.ci95_low) / 2 / NORMAL_95) ** 2)


def _answer(name: str, found: DerivedNumber, item: int = 0) -> Answer:
    value, low, high = found.triple or (math.nan,) * 3
    return Answer(
        name,
        value,
        found.standard_error,
        low,
        high,
        item=item,
        flags=found.flags,
        refused=found.refused,
    )


def _compared(pair: Pair, shares: tuple[float, float], triple: tuple[float, float, float]) -> str:
    value, low, high = (100 * each for each in triple)
    if low <= 0 <= high:
        return f"no detectable difference: it lies between {low:+.1f} and {high:+.1f} points."
    first, second = pair.names
    parts = [f"{100 * min(max(each, 0.0), 1.0):.1f}" for each in shares]
    if value < 0:
        first, second, parts = second, first, parts[::-1]
        value, low, high = -value, -high, -low
    return (
        f"{value:.1f} points more of {first} than of {second} ({parts[0]} and {parts[1]} %), "
        f"between {low:.1f} and {high:.1f} points."
    )
