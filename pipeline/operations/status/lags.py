"""Lag of a stage: how far its committed offsets are behind the end of its topic.

This machine's clock might differ from the broker's, and a broker does not send its time to readers.
However, the broker's clock stamps every record, and workers write one record per second. A record
that appears between two polls was written between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_times import CLOCK_TOLERANCE
from dpstream.pipeline.kafka.broker_clock import steady_seconds
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.many_topics import ManyTopics, Tail
from dpstream.pipeline.kafka.stored_state import StageOffsets
from dpstream.pipeline.kafka.workers import floor_of, group_name
from dpstream.pipeline.stages.topic_uses import stages_of
from dpstream.topics.names import SUMS, Role


class ComparedClock:
    """Compare this machine's clock with the timestamps of other machines' records.

    `ahead` is the minimum number of seconds by which this machine's clock is ahead of the broker's.
    It is negative if this clock is behind, 0 within the tolerance, and None if unknown.
    """

    def __init__(self, steady: Callable[[], float] = steady_seconds) -> None:
        self._steady = steady
        self._compared: float | None = None
        self.ahead: float | None = None

    def compare(self, now: int, newest: int | None) -> None:
        """Update `ahead` from the `newest` timestamp (ms) among new records, if any."""
        moment = self._steady()
        since, self._compared = self._compared, moment
        if newest is None:
            return
        most = (now - newest) / 1000
        if abs(most) <= CLOCK_TOLERANCE:
            self.ahead = 0.0
        elif most < 0:
            self.ahead = most
        elif since is not None:
            least = most - (moment - since)
            self.ahead = least if least > CLOCK_TOLERANCE else 0.0

    def broker_time(self, now: int) -> int:
        """Return the best estimate of the broker's time when this machine's clock shows `now`."""
        return now - int(1000 * (self.ahead or 0.0))


HEARTBEATS_READ = 300
"""Number of latest heartbeats read per job if there are many jobs; older ones are ignored."""
_LATEST = 64
_READ = (Role.PRODUCERS, Role.MANIFESTS, Role.ESTIMATES, Role.PARTIALS, *SUMS, Role.DEAD_LETTERS)


def look_ahead(cluster: ManyTopics, jobs: Iterable[DeployedJob]) -> None:
    topics: list[str] = []
    groups: dict[str, str] = {}
    tails: dict[str, Tail] = {}
    for job in jobs:
        topics += map(job.topic, job.start_offsets)
        groups |= {group_name(job, stage): job.topic(at) for stage, at in stages_of(job).items()}
        for role in (Role.STATUS, *_READ):
            if role in job.start_offsets:
                at_most = HEARTBEATS_READ if role is Role.STATUS else _LATEST
                tails[job.topic(role)] = Tail(job.start_offset(role), at_most)
    cluster.look(topics, groups, tails)


@dataclass(frozen=True, slots=True)
class StageLag:
    """Number of records that a stage has not finished, and the oldest record's age in seconds.

    `deleted` has the partitions that now start above the stage's finished offset. `offsets` is None
    if the topic is missing.
    """

    records: int = 0
    seconds: float | None = None
    deleted: tuple[int, ...] = ()
    offsets: StageOffsets | None = None


class Lags:
    def __init__(self, cluster: Cluster, job: DeployedJob) -> None:
        self._cluster = cluster
        self._job = job
        self._oldest: dict[tuple[Role, int], tuple[int, int]] = {}

    def of(self, stage: str, role: Role, partitions: int, now: int) -> StageLag:
        """Return a stage's lag at `now` (ms), without partitions that were added later."""
        job, cluster, topic = self._job, self._cluster, self._job.topic(role)
        owned = range(min(partitions, len(job.start_offsets[role])))
        if not owned:
            return StageLag()
        # Keep this order: records that a stage has finished might be deleted meanwhile.
        firsts = cluster.start_offsets(topic)
        committed = cluster.committed(group_name(job, stage), topic)
        ends = cluster.end_offsets(topic)
        lag, waiting, deleted = 0, dict[int, int](), list[int]()
        for partition in owned:
            first, end = firsts[partition], ends[partition]
            wanted = max(floor_of(committed[partition]), job.start_offset(role, partition))
            if wanted < first:
                deleted.append(partition)
            floor = max(wanted, first)
            if floor < end:
                lag += end - floor
                waiting[partition] = floor
        oldest = self._written(role, waiting, now)
        seconds = max(0, now - min(oldest)) / 1000 if oldest else None
        count = len(owned)
        offsets = StageOffsets(role, firsts[:count], committed[:count], ends[:count])
        return StageLag(lag, seconds, tuple(deleted), offsets)

    def _written(self, role: Role, offsets: Mapping[int, int], now: int) -> list[int]:
        """Return, using a cache, the write times of the records that exist at these offsets.

        The records are not read: they might be reports, to which this login needs no access.
        """
        unknown = {
            partition: offset
            for partition, offset in offsets.items()
            if self._oldest.get((role, partition), (None,))[0] != offset
        }
        if unknown:
            found = self._cluster.written(self._job.topic(role), unknown, now)
            for partition, written in found.items():
                self._oldest[role, partition] = unknown[partition], written
        return [
            known[1]
            for partition, offset in offsets.items()
            if (known := self._oldest.get((role, partition))) is not None and known[0] == offset
        ]
