"""How far the committed offsets of a stage are behind what was written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.kept_state import StageOffsets
from dpstream.pipeline.kafka.workers.groups import floor_of, group_name
from dpstream.topics.names import Role


@dataclass(frozen=True, slots=True)
class StageLag:
    """What a stage has not finished.

    Attributes:
        records: how many.
        seconds: since the oldest of them was written; None without any.
        deleted: partitions that begin above what the stage has finished.
        offsets: of its topic; None without the topic.
    """

    records: int = 0
    seconds: float | None = None
    deleted: tuple[int, ...] = ()
    offsets: StageOffsets | None = None


class Lags:
    """The lags of a job's stages, read again and again."""

    def __init__(self, cluster: Cluster, job: DeployedJob) -> None:
        self._cluster = cluster
        self._job = job
        self._oldest: dict[tuple[Role, int], tuple[int, int]] = {}

    def of(self, stage: str, role: Role, partitions: int, now: int) -> StageLag:
        """The lag of a stage in the topic it reads.

        Args:
            stage: its name.
            role: of the topic.
            partitions: that the topic has; those that were added later are nobody's.
            now: milliseconds since 1970.
        """
        job, cluster, topic = self._job, self._cluster, self._job.topic(role)
        owned = range(min(partitions, len(job.start_offsets[role])))
        if not owned:
            return StageLag()
        # In this order: what a stage has finished may be deleted while we read.
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
        """When records were written that are there; the last answers are remembered.

        They are not read: they may be reports, which are not the business of who looks.
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
