"""Retention: the share of each cohort that does something, by epochs since the cohort started.

A cohort is a value of an attribute that is a date, such as the month of a device's first event. Its
size is estimated from its answers of yes and no if the attribute is private, so shares have
Fieller's intervals. The size of a public cohort is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from dpstream.pipeline.errors import DpstreamError
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.results.derived_queries import item_covariances
from dpstream.pipeline.results.epoch_cells import Side, epoch_cells
from dpstream.pipeline.results.measure_words import partial_flags
from dpstream.pipeline.results.pairs import asked_sides
from dpstream.pipeline.results.ratios import DerivedNumber, quantile_of
from dpstream.pipeline.results.series import known
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.times import EpochCalendar

WIDE: Final = 0.1
"""Half-width of an interval, as a fraction, above which a share is marked."""

_FORMATS = ("%Y-%m-%d", "%Y-%m", "%Y")


class CohortError(DpstreamError):
    """A job has no such cohorts; the message states which it has."""


@dataclass(frozen=True, slots=True)
class Cohort:
    """Users with the same start.

    `name` is the value of the attribute. `side` are the users of the cohort who do something, and
    their whole.
    """

    name: str
    first_epoch: int
    side: Side


@dataclass(frozen=True, slots=True)
class CohortShare:
    cohort: str
    since: int
    epoch: int
    users: float
    number: DerivedNumber

    @property
    def wide(self) -> bool:
        """True if the interval is so wide that the share says little."""
        triple = self.number.triple
        return triple is not None and (triple[2] - triple[1]) / 2 > WIDE

    def to_json(self) -> dict[str, Any]:
        value, low, high = self.number.triple or (None,) * 3
        return {
            "cohort": self.cohort,
            "since": self.since,
            "epoch": self.epoch,
            "users": None if math.isnan(self.users) else self.users,
            "statistic": "share",
            "estimate": value,
            "ci95_low": low,
            "ci95_high": high,
            "wide": self.wide,
            "flags": list(self.number.flags),
            "refused": self.number.refused,
        }


@dataclass(frozen=True, slots=True)
class Cohorts:
    job: DeployedJob
    measure: str
    attribute: str
    cohorts: tuple[Cohort, ...]

    @classmethod
    def of(cls, job: DeployedJob, attribute: str, measure: str | None = None) -> Cohorts:
        """Return the cohorts of an attribute; raise `CohortError` without any.

        The measure may be left out if the job breaks down only one by the attribute.
        """
        calendar = job.epochs.calendar
        if calendar is None:
            raise CohortError(f"job {job.name}: cohorts require epochs.start and epochs.length")
        found: dict[str, list[Cohort]] = {}
        for name, sides in asked_sides(job).items():
            for group, side in sides.items():
                label, _, value = group.partition("=")
                first = _first_epoch(value, calendar) if label == attribute else None
                if first is not None:
                    found.setdefault(name, []).append(Cohort(value, first, side))
        if measure is None and len(found) > 1:
            raise CohortError(f"--cohorts: add --measure, one of: {', '.join(found)}")
        names = list(found) if measure is None else [measure] if measure in found else []
        if not names:
            breakdowns = ", ".join(dict.fromkeys(name for each in job.by or () for name in each))
            raise CohortError(
                f"job {job.name} has no {'measure' if measure is None else measure} by {attribute} "
                f"whose values are dates; it has breakdowns by: {breakdowns or 'nothing'}"
            )
        (name,) = names
        cohorts = sorted(found[name], key=lambda each: each.first_epoch)
        return cls(job, name, attribute, tuple(cohorts))

    def shares(self, records: Iterable[EstimateRecord]) -> Iterator[CohortShare]:
        quantile, covariances = quantile_of(), item_covariances(self.job, "--cohorts")
        items = [item for each in self.cohorts for item in (*each.side.items, *each.side.whole)]
        for record in records:
            cells = epoch_cells(self.job, record, items, covariances)
            if cells is None or not known(record.estimate):
                continue
            for each in self.cohorts:
                since = record.epoch - each.first_epoch
                if since >= 0:
                    number = cells.share(each.side, quantile).within(0.0, 1.0)
                    users = cells.size(each.side)
                    partial = partial_flags(self.job, (self.measure.partition("=")[0],), record)
                    number = replace(number, flags=(*number.flags, *partial))
                    yield CohortShare(each.name, since, record.epoch, users, number)


def _first_epoch(text: str, calendar: EpochCalendar) -> int | None:
    """Return the epoch in which a date such as 2026-03 starts; None for other texts."""
    for form in _FORMATS:
        try:
            date = datetime.strptime(text, form)
        except ValueError:
            continue
        zone = calendar.local(calendar.start).tzinfo
        return calendar.epoch_of(date.replace(tzinfo=zone))
    return None
