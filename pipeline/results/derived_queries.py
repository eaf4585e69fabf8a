"""Shares, ratios and differences of what a job publishes, for every epoch.

They are functions of published estimates (`dpstream.pipeline.results.ratios`): no other data is
read, and no privacy is spent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import NORMAL_95
from dpstream.aggregators.item_covariances import ItemCovariances
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.results.counts_queries import Answer, Items, Query
from dpstream.pipeline.results.epoch_cells import epoch_cells
from dpstream.pipeline.results.measure_rows import measures_of_items
from dpstream.pipeline.results.measure_words import partial_flags
from dpstream.pipeline.results.pairs import Pair, Statistic, measure_pairs, measure_sides
from dpstream.pipeline.results.phrases import capital
from dpstream.pipeline.results.ratios import (
    WEAK_DENOMINATOR,
    Amount,
    DerivedNumber,
    quantile_of,
    ratio,
)
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.boxes import QueryError
from dpstream.pipeline.values.panels import PanelDomain

MOST_SENTENCES: Final = 12

WEAK_WORDS: Final = (
    "The denominator is below 3 standard deviations, so the interval may hold less often than "
    "stated"
)


@dataclass(frozen=True, slots=True)
class ShareQuery(Query):
    """Query for shares of the users in place of their numbers, cut to [0, 1].

    A job with measures has shares of each group. Means have none and are left out.

    Attributes:
        job: The job.
        simultaneous: True if all intervals of an epoch hold together with 95 % probability.
        signed: True if the numbers are changes, which can be negative.
    """

    job: DeployedJob | None = None
    simultaneous: bool = False
    signed: bool = False

    derived: ClassVar[str] = "share"
    percent: ClassVar[bool] = True

    def answers_of(
        self, record: EstimateRecord, ground_truth: NDArray[np.integer] | None = None
    ) -> tuple[Answer, ...]:
        answers = Query.answers(self, record.estimate)
        quantile = quantile_of(len(answers) if self.simultaneous else 1)
        if isinstance(self.domain, PanelDomain) and self.job is not None:
            cells = epoch_cells(self.job, record, (), None)
            sides = {
                side.items: side
                for each in measure_sides(self.job).values()
                for side in each.values()
            }
            return tuple(
                answer_of(
                    each.name,
                    cells.share(sides[each.item,], quantile).within(0.0, 1.0),
                    each.item,
                )
                for each in answers
                if cells is not None and cells.in_users((each.item,))
            )
        users = Amount(0.0 if record.estimate is None else record.estimate.population)
        least = -1.0 if self.signed else 0.0
        return tuple(
            answer_of(
                each.name,
                ratio(_amount(each), users, quantile=quantile).within(least, 1.0),
                each.item,
            )
            for each in answers
        )

    def simultaneous_half_width(self, record: EstimateRecord) -> float | None:
        width = Query.simultaneous_half_width(self, record)
        return None if width is None else width / max(1, record.population)


@dataclass(frozen=True, slots=True)
class PairQuery(Query):
    """Query for ratios, or for differences between shares.

    Attributes:
        job: The job.
        covariances: Covariances of the errors of items; None for a job with panels.
        simultaneous: See `ShareQuery`.
    """

    job: DeployedJob | None = None
    derived: Statistic = "ratio"
    pairs: tuple[Pair, ...] = ()
    covariances: ItemCovariances | None = None
    simultaneous: bool = False

    @property
    def column(self) -> str:
        return "item"

    @property
    def percent(self) -> bool:
        shares = all(pair.unit == "percent" for pair in self.pairs)
        return self.derived == "difference" and shares

    @property
    def names(self) -> list[str]:
        return [pair.name for pair in self.pairs]

    @property
    def own_items(self) -> tuple[int, ...]:
        """Items of this job that are divided or compared."""
        sides = (side for pair in self.pairs for side in (pair.first, pair.second))
        return tuple(item for side in sides for item in side.items)

    def answers_of(
        self, record: EstimateRecord, ground_truth: NDArray[np.integer] | None = None
    ) -> tuple[Answer, ...]:
        """Return the answers for an epoch; a refused one has NaN in place of numbers."""
        return tuple(
            answer_of(pair.name, replace(found, flags=(*found.flags, *self._flags(record, pair))))
            for pair, found, _ in self._found(record)
        )

    def _flags(self, record: EstimateRecord, pair: Pair) -> tuple[str, ...]:
        assert self.job is not None
        items = (*pair.first.items, *pair.second.items)
        return partial_flags(self.job, measures_of_items(self.job, items), record)

    def sentences(self, record: EstimateRecord) -> Iterator[str]:
        """Yield a sentence on each pair at an epoch: what is known, or why nothing is."""
        for number, (pair, found, sides) in enumerate(self._found(record)):
            if number == MOST_SENTENCES:
                return
            lead = f"{pair.name}: " if len(self.pairs) > 1 else ""
            if found.triple is None:
                text = f"no {self.derived}: {found.refused}."
            elif self.derived == "ratio":
                value, low, high = found.triple
                text = f"the ratio is {value:.3g}, between {low:.3g} and {high:.3g}."
            else:
                text = _difference_words(pair, sides, found.triple)
            weak = f" {WEAK_WORDS}." if WEAK_DENOMINATOR in found.flags else ""
            yield (lead + text if lead else capital(text)) + weak

    def _found(
        self, record: EstimateRecord
    ) -> Iterator[tuple[Pair, DerivedNumber, tuple[DerivedNumber, DerivedNumber]]]:
        """Yield each pair with its number, and the shares of its two sides."""
        assert self.job is not None
        items = [
            item
            for pair in self.pairs
            for side in (pair.first, pair.second)
            for item in (*side.items, *side.whole)
        ]
        cells = epoch_cells(self.job, record, items, self.covariances)
        if cells is None:
            return
        quantile = quantile_of(len(self.pairs) if self.simultaneous else 1)
        for pair in self.pairs:
            compute = cells.ratio if self.derived == "ratio" else cells.difference
            found = compute(pair.first, pair.second, quantile)
            sides = DerivedNumber(), DerivedNumber()
            if self.derived == "difference":
                sides = cells.share(pair.first, quantile), cells.share(pair.second, quantile)
            yield pair, found, sides


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

    Shares are those of the answers to `requested`; `signed` shares are changes. `declared` are the
    measures of ratios that the job file names. A ratio and differences together are differences of
    the ratio between groups of a job with measures. Raises `QueryError` for a job whose published
    data do not determine such numbers, and for several statistics.
    """
    options = {"--share": shares, "--ratio": ratios, "--difference": differences}
    given = [option for option, value in options.items() if value]
    if len(given) > 1 and (shares or len(ratios) != 1):
        raise QueryError(f"{' and '.join(given)} are mutually exclusive")
    if not given:
        if simultaneous:
            raise QueryError("--simultaneous requires --share, --ratio or --difference")
        return None
    if requested.norm_sub:
        raise QueryError(f"--norm-sub applies to estimates, not to {given[0]}: remove it")
    if shares:
        if requested.counts_query.in_values:
            raise QueryError("--share requires --range: quantiles are not numbers of users")
        query = requested.counts_query
        return ShareQuery(job.domain, query, job=job, simultaneous=simultaneous, signed=signed)
    covariances = item_covariances(job, given[0])
    pairs = measure_pairs(job, ratios, differences, declared or {})
    return pair_query(
        job,
        "difference" if differences else "ratio",
        pairs,
        covariances=covariances,
        simultaneous=simultaneous,
    )


def declared_ratios(job: DeployedJob) -> ShareQuery | PairQuery | None:
    """Return the query for the ratios that a job file declares; None without any."""
    declared = {
        name: (each.numerator, each.denominator) for name, each in (job.ratios or {}).items()
    }
    everything = Query(job.domain, Items())
    return derived_query(job, everything, ratios=list(declared), declared=declared)


def pair_query(
    job: DeployedJob,
    statistic: Statistic,
    pairs: tuple[Pair, ...],
    *,
    covariances: ItemCovariances | None = None,
    simultaneous: bool = False,
) -> PairQuery:
    """Return the query for pairs; raise `QueryError` like `derived_query`."""
    items = (item for pair in pairs for side in (pair.first, pair.second) for item in side.items)
    return PairQuery(
        job.domain,
        Items(tuple(items)),
        job=job,
        derived=statistic,
        pairs=pairs,
        covariances=covariances or item_covariances(job, f"--{statistic}"),
        simultaneous=simultaneous,
    )


def item_covariances(job: DeployedJob, option: str) -> ItemCovariances | None:
    """Return the covariances of a job's items; None for panels, whose estimates determine them.

    Raises `QueryError`, with the requested option, if published data do not determine them.
    """
    domain = job.domain
    if isinstance(domain, PanelDomain):
        return None
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


def answer_of(name: str, found: DerivedNumber, item: int = 0) -> Answer:
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


def _difference_words(
    pair: Pair, sides: tuple[DerivedNumber, DerivedNumber], triple: tuple[float, float, float]
) -> str:
    """Describe a difference; an interval with 0 does not show that two numbers are equal."""
    percent = pair.unit == "percent"
    value, low, high = (100 * each if percent else each for each in triple)

    def number(each: float) -> str:
        return f"{each:.1f}" if percent else f"{each:.3g}"

    unit = " points" if percent else ""
    if low <= 0 <= high:
        ends = " and ".join(f"{'+' if each > 0 else ''}{number(each)}" for each in (low, high))
        return f"no detectable difference: it lies between {ends}{unit}."
    first, second = pair.first.name, pair.second.name
    shares = [each.value or 0.0 for each in sides]
    if value < 0:
        first, second, shares = second, first, shares[::-1]
        value, low, high = -value, -high, -low
    shown = [number(100 * min(max(each, 0.0), 1.0) if percent else each) for each in shares]
    both = " and ".join(shown) + (" %" if percent else "")
    return (
        f"{number(value)}{unit} more of {first} than of {second} ({both}), between {number(low)} "
        f"and {number(high)}{unit}."
    )
