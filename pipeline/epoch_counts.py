"""What the windows of a job say whose epochs stand alone: of one epoch, or of several added up.

Partials are kept for ever, so everything that the cells of an epoch can tell can be asked at any
time, not only what was published of it. Asking costs no privacy.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from aggregators.attendance import Attendance
from aggregators.cell_window import CellWindow
from aggregators.estimate import ItemEstimates
from pipeline.actions import Steps
from pipeline.deployed_job import DeployedJob
from pipeline.epoch_log import EpochLog
from pipeline.protocols import PROTOCOLS
from topics.manifests import Fate, Manifest

Counts: TypeAlias = CellWindow | ItemEstimates
"""Cells, which answer whatever they were made for, or the estimates of all items."""


class NoCountsError(Exception):
    """There is nothing to ask, now or ever; the message says why."""


@typing.runtime_checkable
class CountsCells(typing.Protocol):
    """An `Aggregator` whose cells can be asked for more than it publishes."""

    def window(self, epochs: Sequence[int], attendance: Attendance) -> CellWindow | None:
        """The sum of some epochs' windows; None if one of them was withheld."""
        ...


@dataclass(frozen=True, slots=True)
class Withheld:
    """An epoch whose window was not released.

    Attributes:
        epoch: of the job.
        fate: why.
        contributors: how many there were.
        minimum: how many there must be.
    """

    epoch: int
    fate: Fate
    contributors: int
    minimum: int

    def __str__(self) -> str:
        """In a sentence.

        >>> str(Withheld(3, Fate.TOO_SMALL, 40, 100))
        'epoch 3 was withheld: 40 of at least 100 contributors'
        """
        return (
            f"epoch {self.epoch:,} was withheld: {self.contributors:,} of at least "
            f"{self.minimum:,} contributors"
        )


@dataclass(frozen=True, slots=True, eq=False)
class EpochCounts:
    """The counts of an epoch, or the sums over several: a user counts once at each of them.

    Attributes:
        first: epoch of the job.
        last: epoch of the job.
        epochs: those of them that were released, which the counts are of.
        withheld: the others.
        contributors: users whose reports these are; of several epochs, added up.
        population: users they are about, in the same way.
        counts: None where no window was released.
    """

    first: int
    last: int
    epochs: tuple[int, ...]
    withheld: tuple[Withheld, ...]
    contributors: int
    population: int
    counts: Counts | None

    def plus(self, later: EpochCounts) -> EpochCounts:
        """The sum with a later epoch: noise is drawn anew at each, so variances add up."""
        if self.counts is None or later.counts is None:
            counts = self.counts or later.counts
        else:
            counts = _sum(self.counts, later.counts)
        return EpochCounts(
            first=self.first,
            last=later.last,
            epochs=self.epochs + later.epochs,
            withheld=self.withheld + later.withheld,
            contributors=self.contributors + later.contributors,
            population=self.population + later.population,
            counts=counts,
        )


def counts_of(job: DeployedJob, manifest: Manifest, payload: bytes | None) -> EpochCounts:
    """The counts of an epoch.

    Args:
        job: of a protocol that counts each epoch by itself.
        manifest: of the epoch.
        payload: of its partial; None for a window that was not released.
    """
    epoch, people = manifest.epoch, (manifest.contributors, manifest.population)
    counts: Counts | None = None
    if payload is not None:
        local, attendance = job.local_epoch(epoch), Attendance.empty(job.epochs.count)
        attendance.set(local, *people)
        aggregator = job.aggregator_from_bytes(payload)
        if isinstance(aggregator, CountsCells):
            counts = aggregator.window([local], attendance)
        else:
            found = aggregator.estimate(local, attendance)
            counts = found if isinstance(found, ItemEstimates) else None
    if counts is None:
        fate = Fate.TOO_SMALL if manifest.fate is Fate.RELEASED else manifest.fate
        missing = Withheld(epoch, fate, manifest.contributors, job.shuffle.minimum)
        return EpochCounts(epoch, epoch, (), (missing,), 0, 0, None)
    return EpochCounts(epoch, epoch, (epoch,), (), *people, counts)


class EpochCountsLog:
    """The epochs of a deployment in order.

    Args:
        job: as deployed.
        first: the first epoch that is wanted.

    Raises:
        NoCountsError: the epochs of its protocol do not stand alone.
    """

    def __init__(self, job: DeployedJob, first: int = 1) -> None:
        check_per_epoch(job)
        self._job = job
        self._log = EpochLog(job)
        self._first = first

    @property
    def complete(self) -> bool:
        """Whether the last epoch of the job has been read."""
        last, following = self._job.last_epoch, self._log.next_epoch
        return last is not None and following is not None and following > last

    def next(self) -> Steps[EpochCounts | None]:
        """The next epoch that is wanted; None if it is not there yet."""
        yield from self._log.look()
        while (found := (yield from self._log.next())) is not None:
            if found[0].epoch >= self._first:
                return counts_of(self._job, *found)
        return None

    def latest(self) -> Steps[EpochCounts | None]:
        """The latest epoch that is there, released if any is; None if there is none yet."""
        yield from self._log.look()
        latest: tuple[Manifest, bytes | None] | None = None
        while (found := (yield from self._log.next())) is not None:
            if latest is None or latest[1] is None or found[1] is not None:
                latest = found
        return None if latest is None else counts_of(self._job, *latest)


def read_counts(job: DeployedJob, first: int, last: int | None = None) -> Steps[EpochCounts]:
    """The counts of an epoch, or of the epochs from the first to the last added up.

    >>> counts = read_from(cluster, job, read_counts(job, epoch))  # doctest: +SKIP
    >>> ask(counts, job.domain, Top(10)).answers  # doctest: +SKIP

    Args:
        job: as deployed.
        first: epoch.
        last: epoch; None for the first one alone.

    Raises:
        NoCountsError: one of them is no epoch of the job or is not there yet, none was released, or
            the job's protocol does not count each epoch by itself.
    """
    last = first if last is None else last
    log = EpochCountsLog(job, first)
    check_epochs(job, first, last)
    total: EpochCounts | None = None
    while total is None or total.last < last:
        found = yield from log.next()
        if found is None or (found.first > first and total is None):
            raise NoCountsError(_missing(job, first if total is None else total.last + 1, found))
        total = found if total is None else total.plus(found)
    return released(total)


def read_latest(job: DeployedJob) -> Steps[EpochCounts]:
    """The counts of the latest epoch that was released.

    Raises:
        NoCountsError: there is none, or the job's protocol does not count each epoch by itself.
    """
    found = yield from EpochCountsLog(job).latest()
    if found is None:
        raise NoCountsError(f"job {job.name} has no finished epoch yet: add --follow to wait")
    return released(found)


def check_per_epoch(job: DeployedJob) -> None:
    """Raise `NoCountsError` unless the epochs of a job stand alone."""
    if not job.protocol_entry.per_epoch:
        able = ", ".join(name for name, entry in PROTOCOLS.items() if entry.per_epoch)
        raise NoCountsError(
            f"job {job.name} is of protocol {job.protocol}, whose epochs do not stand alone: ask "
            f"dpstream estimates {job.name}, with --items, --top, --ranges or --quantiles; "
            f"dpstream query is for {able}"
        )


def check_epochs(job: DeployedJob, first: int, last: int) -> None:
    """Raise `NoCountsError` unless all epochs from the first to the last are some of the job."""
    if first == last < 1:
        raise NoCountsError(f"epoch {first} lies before the first one of job {job.name}, 1")
    if not 1 <= first <= last:
        raise NoCountsError(f"epochs {first} to {last}: give the first one, from 1 on, first")
    if job.last_epoch is not None and last > job.last_epoch:
        raise NoCountsError(
            f"epoch {last:,} lies after the last one of job {job.name}, {job.last_epoch:,}"
        )


def released(counts: EpochCounts) -> EpochCounts:
    """The same; raises `NoCountsError` if nothing of it was released."""
    if counts.counts is None:
        raise NoCountsError("; ".join(map(str, counts.withheld)))
    return counts


def _missing(job: DeployedJob, epoch: int, found: EpochCounts | None) -> str:
    if found is not None:
        return f"epoch {epoch:,} lies before the first one of job {job.name}, {found.first:,}"
    return (
        f"epoch {epoch:,} of job {job.name} is not published yet: add --follow to wait, or ask for "
        "an earlier one"
    )


def _sum(one: Counts, other: Counts) -> Counts:
    if isinstance(one, CellWindow) and isinstance(other, CellWindow):
        return replace(
            one,
            cells=one.cells + other.cells,
            noise_variance=one.noise_variance + other.noise_variance,
            contributors=one.contributors + other.contributors,
            population=one.population + other.population,
        )
    assert isinstance(one, ItemEstimates)
    assert isinstance(other, ItemEstimates)
    return ItemEstimates(
        values=np.asarray(one.values + other.values, np.float64),
        standard_deviation=math.hypot(one.standard_deviation, other.standard_deviation),
        half_width=math.hypot(one.half_width, other.half_width),
        reports=one.reports + other.reports,
        population=one.population + other.population,
        flags=tuple(dict.fromkeys(one.flags + other.flags)),
    )
