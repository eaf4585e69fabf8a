"""Coverage of intervals over time, and users who change more often than intervals assume.

Overall coverage hides effects that set in late. If a protocol tracks a limited number of changes,
intervals hold until users have exhausted the limit, and fail afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Published
from dpstream.aggregators.window_errors import IndependentWindows
from dpstream.pipeline.devices.change_log import ChangeLog
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.protocols.change_limits import ChangeLimit
from dpstream.pipeline.stages.epoch_log import DecidedEpoch
from dpstream.pipeline.values.panels import PanelDomain
from dpstream.topics.manifests import WindowStatus


@dataclass(frozen=True, slots=True)
class EpochResult:
    """Final result of an epoch.

    `counts` is the result of `Aggregator.to_bytes` for the epoch's reports; None if the epoch's
    window was not released.
    """

    epoch: int
    window_status: WindowStatus
    contributors: int
    population: int
    counts: bytes | None
    estimate: Published | None


def result_of(job: DeployedJob, epoch: DecidedEpoch) -> EpochResult:
    published, payload = epoch.estimate, epoch.counts
    assert published is not None
    counts = None if payload is None else job.aggregator_from_bytes(payload).to_bytes()
    return EpochResult(
        epoch=published.epoch,
        window_status=published.window_status,
        contributors=published.contributors,
        population=published.population,
        counts=counts,
        estimate=published.estimate,
    )


_PARTS = 5


@dataclass(frozen=True, slots=True)
class CoveredEpochs:
    first_epoch: int
    last_epoch: int
    covered: int
    claimed: int

    JSON_PROPERTIES: ClassVar = ("coverage",)

    @property
    def coverage(self) -> float:
        return self.covered / self.claimed


def coverage_over_time(epochs: Iterable[tuple[int, NDArray[np.bool_]]]) -> list[CoveredEpochs]:
    """Return the coverage of up to five periods of equal length, in order.

    `epochs` yields, in any order, an epoch and whether each of its intervals covers the ground
    truth; epochs from several runs can be mixed.

    >>> parts = coverage_over_time((epoch, np.array([epoch < 6])) for epoch in range(1, 11))
    >>> [(part.first_epoch, part.last_epoch, part.covered) for part in parts]
    [(1, 2, 2), (3, 4, 2), (5, 6, 1), (7, 8, 0), (9, 10, 0)]
    """
    covered, claimed = Counter[int](), Counter[int]()
    for epoch, each in epochs:
        covered[epoch] += int(np.count_nonzero(each))
        claimed[epoch] += len(each)
    known = sorted(+claimed)
    length = max(1, -(-len(known) // _PARTS))
    parts = (known[start : start + length] for start in range(0, len(known), length))
    return [
        CoveredEpochs(
            part[0], part[-1], sum(covered[at] for at in part), sum(claimed[at] for at in part)
        )
        for part in parts
    ]


def used_up(log: ChangeLog, limit: ChangeLimit, horizon: int) -> NDArray[np.int64]:
    """Return the epochs at which users exceed the limit for the first time in a horizon.

    Every user starts again from the initial value after every `horizon` epochs. The result is
    int64, ascending, with one epoch for each user and horizon in which the limit is exceeded.
    """
    exceeded = []
    for first in range(1, log.last_epoch + 1, horizon):
        start, stop = np.searchsorted(log.epochs, [first + 1, first + horizon])
        at_first = np.flatnonzero(log.values_at(first) != log.initial)
        users = np.concatenate([at_first, log.user_indices[start:stop]])
        epochs = np.concatenate([np.full(len(at_first), first), log.epochs[start:stop]])
        order = np.argsort(users, kind="stable")
        users, epochs = users[order], epochs[order].astype(np.int64)
        place = np.arange(len(users)) - np.searchsorted(users, users)
        exceeded.append(epochs[place == limit.max_changes + limit.first_is_free])
    return np.sort(np.concatenate([np.zeros(0, np.int64), *exceeded]))


def _exceeding(job: DeployedJob, log: object) -> NDArray[np.int64]:
    """Return `used_up` for the job's limit; empty if there is no limit or no `ChangeLog`.

    Of several questions, the one in which most users exceed the limit counts.
    """
    limit = job.change_limit
    if limit is None or not isinstance(log, ChangeLog):
        return np.zeros(0, np.int64)
    if not isinstance(job.domain, PanelDomain):
        return used_up(log, limit, job.epochs.count)
    # A number with a mean is tracked as a Boolean, which changes less often.
    counted = (at for at, each in enumerate(job.domain.questions) if each.answer != "mean")
    exceeded = (used_up(log.answers(at), limit, job.epochs.count) for at in counted)
    return max(exceeded, key=len, default=np.zeros(0, np.int64))


def expected_coverage(job: DeployedJob, log: object, runs: int = 1) -> str:
    if len(_exceeding(job, log)):
        return "95 % expected only if all users meet the assumption below"
    many, one = ("trials", "trial") if runs > 1 else ("runs", "run")
    errors = job.protocol_entry.aggregation.window_errors(job.law, job.parameters)
    if isinstance(errors, IndependentWindows):
        return f"95 % expected over many {many}; errors of different epochs are nearly independent"
    return f"95 % expected over many {many}; errors within a {one} are correlated"


def coverage_lines(
    job: DeployedJob, parts: list[CoveredEpochs], log: object
) -> Iterator[tuple[str, str]]:
    """Yield labels and texts: coverage over time, and users with more changes than assumed.

    Changes are known only if `log`, the ground truth, is a `ChangeLog`.
    """
    calendar, limit, horizon = job.epochs.calendar, job.change_limit, job.epochs.count
    named = str if calendar is None else calendar.shown
    if len(parts) > 1:
        yield (
            "  over time",
            ", ".join(
                f"{part.covered / part.claimed:.0%} ({named(part.first_epoch)} to "
                f"{named(part.last_epoch)})"
                for part in parts
            ),
        )
    if limit is None or not isinstance(log, ChangeLog):
        return
    yield "assumption", str(limit)
    epochs = _exceeding(job, log)
    if len(epochs):
        share = len(epochs) / (len(log.users) * -(-log.last_epoch // horizon))
        half = int(epochs[(len(epochs) - 1) // 2])
        yield (
            "  exceeded",
            f"by {share:.1%} of the users, the first from {named(int(epochs[0]))} on, half of them "
            f"by {named(half)}: intervals do not cover later values of these users. To cover them, "
            "increase parameters.max_changes",
        )
