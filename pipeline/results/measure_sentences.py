"""Sentences and the main number of an epoch of a job with measures.

They are about the first measure of the job file, and about its first breakdown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import NORMAL_95
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_words import EpochName, epoch_name
from dpstream.pipeline.jobs.measure_keys import DEFAULT_MINIMUM
from dpstream.pipeline.results.kinds.headline import Headline
from dpstream.pipeline.results.known_digits import known_count, mean_digits
from dpstream.pipeline.results.measure_rows import MeasureRow
from dpstream.pipeline.results.measure_series import (
    ChosenRows,
    measure_series,
    totals_of,
    with_rows,
)
from dpstream.pipeline.results.measure_words import during, group_words, subject, verb
from dpstream.pipeline.results.phrases import Sentence, capital, how_sure, nothing, title_label
from dpstream.pipeline.results.ratios import Amount, share
from dpstream.pipeline.results.series import NO_QUANTILES, Series, size_of, triples_of
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.randomizers.measures import OTHER

MOST_GROUPS = 4
"""Maximum number of groups that a sentence names."""
MOST_OTHER = 0.1
"""Share of undeclared values above which a warning is shown."""

Triple = tuple[float, float, float]


def measure_sentence(
    job: DeployedJob,
    series: Sequence[Series],
    record: EstimateRecord,
    when: EpochName,
    *,
    titled: bool,
) -> Sentence:
    """Describe the first measure at an epoch; `series` are all of the job."""
    totals = _known(ChosenRows().of(series), record)
    if not totals:
        return Sentence((nothing(job, record),))
    (first, row, triple), *_ = totals
    lead = title_label(job.title) if titled else ""
    window = during(job, row.measure, when)
    groups = _groups(job, series, record)
    if first.unit == "value":
        number, interval = _mean_words(job, row.measure, triple)
        opening = f"{lead}{capital(subject(job, row.measure))} per user {window}: mean "
        added = _total_words(job, first, record)
        return Sentence((opening, number, f" (95 % CI {interval}){added}{groups}."))
    if row.value is not None:
        listed = ", ".join(
            f"{row.value} {_count(job, each, record, triple)}" for each, row, triple in totals
        )
        opening = f"{lead}{capital(job.people)} by {subject(job, row.measure)} {window}: "
        return Sentence((opening, listed, "."))
    known = known_count(*triple, size_of(first, record))
    word, number = known.words
    rest = f" {job.people} {verb(job, row.measure)} {window}{how_sure(known)}{groups}."
    return Sentence((f"{lead}{word} ", number, rest))


def row_headline(
    series: Sequence[Series], record: EstimateRecord, ground_truth: NDArray[np.integer] | None
) -> Headline:
    """Return the total of the first measure as the number that stands for the epoch."""
    totals = _known(ChosenRows().of(series), record)
    if not totals:
        return Headline()
    (first, row, triple), *_ = totals
    true = None
    if ground_truth is not None:
        items = np.array(first.items or (first.item,))
        true = float(np.atleast_1d(ground_truth)[items - 1].sum())
    population = size_of(first, record) if first.unit == "users" else None
    return Headline(row.label, *triple, true, population=population)


def other_warnings(job: DeployedJob, record: EstimateRecord | None) -> Iterator[str]:
    """Yield a warning for each attribute of which many users have a value that is not declared."""
    series = measure_series(job)
    if record is None or not series:
        return
    for (name,) in dict.fromkeys(each for each in job.by or () if len(each) == 1):
        rows = _known(ChosenRows(by=(name,)).of(series), record)
        if not rows or rows[0][0].unit != "users":
            continue
        other = _sum([triple for _, row, triple in rows if row.attributes[name] == OTHER])
        found = share(other, _sum([triple for *_, triple in rows]), other.variance)
        if found.low is not None and found.low > MOST_OTHER:
            yield (
                f"At least {math.floor(100 * found.low)} % of the {job.people} who are counted in "
                f"{epoch_name(job, record.epoch).name} have a {name} that the job file does not "
                f"list. Their number is in the group other{_remedy(job, name)}"
            )


def _remedy(job: DeployedJob, name: str) -> str:
    left = (job.attributes or {})[name].spare
    if not left:
        return ""
    cells = "1 spare cell is" if left == 1 else f"{left:,} spare cells are"
    return f"; {cells} left: add values to attributes.{name}.values and deploy the job file again"


def _sum(triples: Sequence[Triple]) -> Amount:
    variances = [((high - low) / 2 / NORMAL_95) ** 2 for _, low, high in triples]
    return Amount(math.fsum(value for value, *_ in triples), math.fsum(variances))


def _known(
    series: Sequence[Series], record: EstimateRecord
) -> list[tuple[Series, MeasureRow, Triple]]:
    """Return the series that have a number, with their row, and value, low and high."""
    triples = triples_of(series, record.estimate, NO_QUANTILES).tolist()
    return [
        (each, each.row, (value, low, high))
        for each, (value, low, high) in zip(series, triples, strict=True)
        if math.isfinite(value) and each.row is not None
    ]


def _groups(job: DeployedJob, series: Sequence[Series], record: EstimateRecord) -> str:
    """Return the largest groups of the first breakdown, and those that are too small to show."""
    names = next(iter(job.by or ()), ())
    if not names:
        return ""
    chosen = ChosenRows(by=names).of(series)
    known = sorted(_known(chosen, record), key=lambda each: -each[2][0])
    parts: list[str] = []
    for each, row, triple in known[:MOST_GROUPS]:
        with_words = " with " if each.unit == "users" else " for "
        number = _count(job, each, record, triple)
        words, value = group_words(job, row.attributes), job.reads(row.attributes[names[0]])
        # The size of a private group is itself an estimate.
        count = known_count(*triple, size_of(each, record))
        own = each.unit == "users" and not row.whole and not count.may_be_none
        listed_values = len(names) == 1 and (job.attributes or {})[names[0]].period is None
        of = (
            f" ({count.share} of {value if listed_values else 'these'} {job.people})" if own else ""
        )
        parts.append(f"{number}{with_words}{value if parts and len(names) == 1 else words}{of}")
    if len(known) > MOST_GROUPS:
        parts.append(f"{len(known) - MOST_GROUPS:,} smaller groups")
    shown = {each.id for each, *_ in known}
    hidden: frozenset[int] = getattr(record.estimate, "hidden", frozenset())
    small = [
        row
        for each, row in with_rows(chosen)
        if each.id not in shown
        and each.item - 1 not in hidden
        and size_of(each, record)
        and not _to_come(job, row, record.epoch)
    ]
    text = f": {', '.join(parts)}" if parts else ""
    if small:
        listed = ", ".join(group_words(job, row.attributes) for row in small[:MOST_GROUPS])
        more = f" and {len(small) - MOST_GROUPS:,} more" if len(small) > MOST_GROUPS else ""
        least = getattr(job.parameters, "by_minimum", DEFAULT_MINIMUM)
        text += f"; no number for {listed}{more}: fewer than {least:,} devices answered"
    return text


def _to_come(job: DeployedJob, row: MeasureRow, epoch: int) -> bool:
    """Return whether a row is about users who are enrolled after an epoch."""
    attributes, calendar = job.attributes or {}, job.epochs.calendar
    for name, value in row.attributes.items():
        if calendar is not None and attributes[name].enrolled is not None:
            number = job.all_values_of(name).index(value)
            if number and calendar.epoch_of(job.period_calendar(name).start_of(number)) > epoch:
                return True
    return False


def _count(job: DeployedJob, series: Series, record: EstimateRecord, triple: Triple) -> str:
    if series.unit == "value":
        assert series.row is not None
        return _mean_words(job, series.row.measure, triple)[0]
    known = known_count(*triple, size_of(series, record))
    word, number = known.words
    return f"{word.lower()} {number}" if known.may_be_none else number


def _total_words(job: DeployedJob, mean: Series, record: EstimateRecord) -> str:
    """Return a mean's total over users and its interval, with two digits of its margin; or ""."""
    totals = totals_of(job, [mean])
    if not totals or mean.row is None:
        return ""
    ((value, low, high),) = triples_of(totals, record.estimate, NO_QUANTILES).tolist()
    ends = (job.measures or {})[mean.row.measure].mean
    half, users = (high - low) / 2, size_of(mean, record)
    if ends is None or not half > 0:
        return ""
    digits = 1 - math.floor(math.log10(half))
    shown = (
        f"{round(min(max(each, users * ends.low), users * ends.high), digits):,.{max(0, digits)}f}"
        for each in (value, low, high)
    )
    return f", {next(shown)} in all ({' to '.join(shown)})"


def _mean_words(job: DeployedJob, measure: str, triple: Triple) -> tuple[str, str]:
    """Return a mean and its interval, within its range, with the digits that are known."""
    ends = (job.measures or {})[measure].mean
    assert ends is not None
    digits = mean_digits(triple[1], triple[2])
    value, low, high = (min(max(each, ends.low), ends.high) for each in triple)
    return f"{value:,.{digits}f}", f"{low:,.{digits}f} to {high:,.{digits}f}"
