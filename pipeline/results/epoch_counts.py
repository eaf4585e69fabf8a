"""Counts from a job's windows: for one epoch, or summed or averaged over several.

The epochs must be independent, or a large domain searched in windows of epochs. Partials are kept
forever, so an epoch's cells can answer queries beyond the published estimates at any time. Queries
cost no privacy.
"""

from __future__ import annotations

import time
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dpstream.aggregators.counts import CountedWindow
from dpstream.aggregators.estimate import Participation
from dpstream.pipeline.actions import Steps
from dpstream.pipeline.errors import DpstreamError
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epochs import horizons_between
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.topic_reader import read_from
from dpstream.pipeline.protocols.protocol import Aggregator, PerEpochLaw
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.results.follow import follow
from dpstream.pipeline.stages.epoch_log import DecidedEpoch, EpochLog
from dpstream.topics.manifests import WindowStatus


class NoCountsError(DpstreamError):
    """There is no data to query, or not yet any; the message states why."""


@typing.runtime_checkable
class CountsCells(typing.Protocol):
    @property
    def ordered(self) -> bool:
        """True if the cells form a tree, as ranges and quantiles require."""

    def window(self, epochs: Sequence[int], participation: Participation) -> CountedWindow | None:
        """Return the sum over the windows of `epochs`; None if one of them was suppressed."""


@dataclass(frozen=True, slots=True)
class SuppressedEpoch:
    epoch: int
    window_status: WindowStatus
    contributors: int
    minimum: int

    def __str__(self) -> str:
        """Format as a sentence.

        >>> str(SuppressedEpoch(3, WindowStatus.SUPPRESSED, 40, 100))
        'epoch 3 is suppressed (fewer than 100 devices): 40 contributors'
        """
        if self.window_status is WindowStatus.CORRUPT:
            return f"epoch {self.epoch:,} is corrupt: its shares do not sum to a valid count"
        return (
            f"epoch {self.epoch:,} is suppressed (fewer than {self.minimum:,} devices): "
            f"{self.contributors:,} contributors"
        )


@dataclass(frozen=True, slots=True, eq=False)
class EpochCounts:
    """Counts for an epoch, or sums or means over several, in which a user counts once per epoch.

    Attributes:
        epochs: Released epochs from `first` to `last`, which the counts cover.
        suppressed: Other epochs from `first` to `last`.
        contributors, population: Numbers of users, summed over epochs.
        counts: Cells with their counts; None without a released window.
    """

    first: int
    last: int
    epochs: tuple[int, ...]
    suppressed: tuple[SuppressedEpoch, ...]
    contributors: int
    population: int
    counts: CountedWindow | None

    @property
    def averages(self) -> bool:
        return self.counts is not None and self.counts.averages

    @property
    def users(self) -> int:
        """Number of users that the counts describe: for means, the mean population."""
        return round(self.population / len(self.epochs)) if self.averages else self.population

    def plus(self, later: EpochCounts) -> EpochCounts:
        """Add a later epoch's counts; noise is independent per epoch, so variances are summed."""
        if self.counts is None or later.counts is None:
            counts = self.counts or later.counts
        else:
            counts = self.counts.plus(later.counts)
        return EpochCounts(
            first=self.first,
            last=later.last,
            epochs=self.epochs + later.epochs,
            suppressed=self.suppressed + later.suppressed,
            contributors=self.contributors + later.contributors,
            population=self.population + later.population,
            counts=counts,
        )


def window_of(
    aggregator: Aggregator, epoch: int, participation: Participation
) -> CountedWindow | None:
    """Return the counted window of an epoch with reports; None if it has too few reports."""
    if isinstance(aggregator, CountsCells):
        return aggregator.window([epoch], participation)
    estimate = aggregator.estimate(epoch, participation)
    return estimate if isinstance(estimate, CountedWindow) else None


def counts_of(job: DeployedJob, decided: DecidedEpoch) -> EpochCounts:
    epoch, manifest = decided.epoch, decided.manifest
    people = (manifest.contributors, manifest.population)
    counts: CountedWindow | None = None
    if decided.counts is not None:
        local = job.epochs.local(epoch)
        participation = Participation.empty(job.epochs.count, job.added_by_all(job.law))
        participation.set(local, *people)
        counts = window_of(job.aggregator_from_bytes(decided.counts), local, participation)
    if counts is None:
        window_status = (
            WindowStatus.SUPPRESSED
            if manifest.window_status is WindowStatus.RELEASED
            else manifest.window_status
        )
        window_status = window_status if decided.corruption is None else WindowStatus.CORRUPT
        missing = SuppressedEpoch(epoch, window_status, manifest.contributors, job.shuffle.minimum)
        return EpochCounts(epoch, epoch, (), (missing,), 0, 0, None)
    return EpochCounts(epoch, epoch, (epoch,), (), *people, counts)


def read_counts(job: DeployedJob, first: int, last: int | None = None) -> Steps[EpochCounts]:
    """Return the counts for epoch `first`, or summed over the epochs from `first` to `last`.

    >>> counts = read_from(cluster, job, read_counts(job, epoch))  # doctest: +SKIP
    >>> evaluate(counts, job.domain, Top(10)).answers  # doctest: +SKIP

    Raises `NoCountsError` if an epoch is out of range or not published yet, no window was released,
    or the job's epochs are not independent.
    """
    last = first if last is None else last
    check_windows(job)
    check_epochs(job, first, last)
    log = EpochLog(job, first)
    yield from log.find_end()
    total: EpochCounts | None = None
    while total is None or total.last < last:
        decided = yield from log.next()
        counts = None if decided is None else counts_of(job, decided)
        if counts is None or (counts.first > first and total is None):
            raise NoCountsError(_missing(job, first if total is None else total.last + 1, counts))
        total = counts if total is None else total.plus(counts)
    return released(total)


def read_latest(job: DeployedJob) -> Steps[EpochCounts]:
    check_windows(job)
    latest = yield from latest_counts(job, EpochLog(job))
    if latest is None:
        raise NoCountsError(
            f"job {job.name} has no finished epoch yet. To wait for one, add --follow"
        )
    return released(latest)


def latest_counts(job: DeployedJob, log: EpochLog) -> Steps[EpochCounts | None]:
    yield from log.find_end()
    latest: DecidedEpoch | None = None
    while (decided := (yield from log.next())) is not None:
        if latest is None or latest.counts is None or decided.counts is not None:
            latest = decided
    return None if latest is None else counts_of(job, latest)


def counts_windows(job: DeployedJob) -> bool:
    return job.protocol_entry.per_epoch or isinstance(job.aggregator(), CountsCells)


def check_windows(job: DeployedJob) -> None:
    if not counts_windows(job):
        able = ", ".join(name for name, entry in PROTOCOLS.items() if entry.per_epoch)
        raise NoCountsError(
            f"job {job.name}: protocol {job.protocol} does not support dpstream query; expected "
            f"one of: {able}, or sampled_response with a domain too large to list. Use 'dpstream "
            f"estimates {job.name}' with --item, --top, --range or --quantile, or add --epochs for "
            "the mean over several epochs"
        )


def check_epochs(job: DeployedJob, first: int, last: int) -> None:
    if first == last < 1:
        raise NoCountsError(
            f"epoch {first} is out of range: the first epoch of job {job.name} is 1"
        )
    if not 1 <= first <= last:
        raise NoCountsError(f"epochs {first} to {last}: expected 1 <= first <= last")
    if job.last_epoch is not None and last > job.last_epoch:
        raise NoCountsError(
            f"epoch {last:,} is out of range: the last epoch of job {job.name} is "
            f"{job.last_epoch:,}"
        )
    longest = job.protocol_entry.longest_window(job.law)
    if longest is not None and last - first >= longest:
        raise NoCountsError(
            f"epochs {first:,} to {last:,} of job {job.name}: in more than {longest:,} epochs a "
            f"device answers twice, so the error of a count is unknown. Use at most {longest:,}"
        )


def released(counts: EpochCounts) -> EpochCounts:
    if counts.counts is None:
        raise NoCountsError("; ".join(map(str, counts.suppressed)))
    return counts


def _missing(job: DeployedJob, epoch: int, counts: EpochCounts | None) -> str:
    if counts is not None:
        first = f"the first epoch of job {job.name} is {counts.first:,}"
        return f"epoch {epoch:,} is out of range: {first}"
    return (
        f"epoch {epoch:,} of job {job.name} is not published yet. Query an earlier one, or add "
        "--follow to wait"
    )


def follow_counts(
    cluster: Cluster,
    job: DeployedJob,
    first: int | None = None,
    notify: Callable[[str], None] = lambda message: None,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[EpochCounts]:
    """Yield the counts for every epoch, including suppressed ones, up to the job's last epoch.

    The default `first` is the latest released epoch. `notify` and `wait` are as for `follow`.
    Raises `NoCountsError` for an invalid epoch, or if the job's epochs are not independent.
    """
    check_windows(job)
    log, run = EpochLog(job, first or 1), partial(read_from, cluster, job)
    if first is not None:
        check_epochs(job, first, first)
    elif (latest := run(latest_counts(job, log))) is not None:
        yield latest

    def read() -> Iterator[EpochCounts]:
        return (counts_of(job, epoch) for epoch in log.read(run))

    yield from follow(read, lambda: log.complete, notify, wait)


@dataclass(frozen=True, slots=True)
class Composed:
    """Joint privacy loss per user from the releases for several epochs, rounded up.

    If not `exact`, `epsilon` is that of the whole horizon, which is an upper bound.
    """

    epochs: int
    epsilon: float
    delta: float
    exact: bool


def composed(job: DeployedJob, epochs: int) -> Composed:
    """Return the joint loss from `epochs` epochs, at the delta of one epoch.

    Calibrates a job of exactly that length to compute its loss. If its mechanism differs from that
    of the deployed job, returns the loss for whole horizons.
    """
    own = job.guarantee
    if epochs == 1 or not job.protocol_entry.per_epoch:
        # Otherwise, a device answers once in these epochs.
        return Composed(epochs, own.epsilon, own.delta, exact=True)
    epsilon = _of_as_many(job, epochs)
    if epsilon is not None:
        return Composed(epochs, epsilon, own.delta, exact=True)
    # The epochs may span two horizons: the first of them may be the last of its horizon.
    count = job.epochs.count
    horizons = horizons_between(count, count + epochs - 1, count) if job.epochs.renew else 1
    whole = replace(own, unit="stream").over(horizons)
    return Composed(epochs, whole.stream_epsilon or whole.epsilon, whole.delta, exact=False)


def _of_as_many(job: DeployedJob, epochs: int) -> float | None:
    try:
        other = job.protocol_entry.calibrate(job.parameters, epochs, job.shuffle.minimum)
    except ValueError:
        return None
    law = job.law
    assert isinstance(law, PerEpochLaw)
    assert isinstance(other, PerEpochLaw)
    if other.of_one_epoch().to_json() != law.of_one_epoch().to_json():
        return None
    return job.protocol_entry.randomizer(other).guarantee.stream_epsilon
