"""Drain a job: finalize and publish its open windows with the reports received, then stop.

For each partition, one record tells the shuffler up to which offset to drain. Later reports stay in
the topic until the job is resumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.jobs.producer_registry import ProducerRegistry
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import (
    DeploymentError,
    check_has_devices,
    read_jobs,
    set_phase,
)
from dpstream.pipeline.kafka.topic_reader import TopicReader
from dpstream.pipeline.kafka.workers import floor_of, group_name
from dpstream.pipeline.operations.status.facts import OpenWindowStatus
from dpstream.pipeline.operations.status.heartbeats import Heartbeats
from dpstream.pipeline.results.follow import EstimateReader
from dpstream.pipeline.stages.decision_log import Decision, DecisionLog
from dpstream.pipeline.stages.epoch_sets import EpochSet
from dpstream.pipeline.stages.topic_uses import stages_of
from dpstream.topics.names import Role
from dpstream.topics.records import Drain


def start_drain(cluster: Cluster, job: DeployedJob, now: int) -> Mapping[int, int]:
    """Request a job's workers to finalize all open windows.

    A drain already in progress continues unchanged. Returns the offset up to which each partition
    of the report topic is drained. Raises DeploymentError for a replay, which has no open windows.
    """
    check_has_devices(job)
    if read_jobs(cluster).phase(job.name) is Phase.DRAINING:
        registry = ProducerRegistry(job)
        for record in TopicReader(cluster, job, Role.PRODUCERS).read():
            registry.apply(record)
        if len(registry.drains) >= job.topics.partitions:
            return registry.drains
    # The job does not use partitions that were added later.
    ends = dict(enumerate(cluster.end_offsets(job.topic(Role.REPORTS))[: job.topics.partitions]))
    for partition, end in ends.items():
        drain = Drain(job.deployment, partition, end)
        cluster.append(job.topic(Role.PRODUCERS), drain.to_bytes())
    set_phase(cluster, job, Phase.DRAINING, now)
    return ends


def end_drain(cluster: Cluster, job: DeployedJob, now: int) -> None:
    """Record that everything is published, so that the workers can be stopped.

    Raises DeploymentError if the job was meanwhile resumed, paused, replaced or undeployed.
    """
    state = read_jobs(cluster)
    found = state.jobs.get(job.name)
    if found is None or found.deployment != job.deployment:
        raise DeploymentError(f"job {job.name} was undeployed or replaced during the drain")
    if (phase := state.phase(job.name)) is not Phase.DRAINING:
        raise DeploymentError(
            f"everything is published, but job {job.name} is {phase}: its phase was changed "
            "during the drain"
        )
    set_phase(cluster, job, Phase.DRAINED, now)


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """Progress of a drain.

    `unfinished` counts report records below the drain offsets. `undecided` epochs are not finalized
    although a later epoch is. `idle` stages have no running worker.
    """

    unfinished: int
    windows: tuple[OpenWindowStatus, ...]
    undecided: tuple[int, ...]
    unpublished: tuple[int, ...]
    idle: tuple[str, ...]
    finished: bool = False

    @property
    def done(self) -> bool:
        return not (self.unfinished or self.undecided or self.unpublished)


class DrainWatch:
    def __init__(self, cluster: Cluster, job: DeployedJob, ends: Mapping[int, int]) -> None:
        self._cluster = cluster
        self._job = job
        self._ends = ends
        self._group = group_name(job, "shuffle")
        self._manifest_log = TopicReader(cluster, job, Role.MANIFESTS)
        self._status_log = TopicReader(cluster, job, Role.STATUS)
        self._decisions = DecisionLog(job, self._note)
        self._last = 0
        self._estimates = EstimateReader(cluster, job)
        self._published = EpochSet()
        self._heartbeats = Heartbeats(job)

    def progress(self, now: int) -> DrainProgress:
        # Read the offsets before the manifests, which then cover all records below the offsets.
        unfinished = self._unfinished()
        self._read_on()
        first = self._decisions.first_epoch or 1
        decided = self._decisions.decided
        missing = tuple(decided.missing(first, self._last))
        unpublished = tuple(
            epoch for epoch in self._published.missing(first, self._last) if epoch in decided
        )
        workers = [worker for worker in self._heartbeats.workers(now) if worker.up]
        stages = {worker.stage for worker in workers}
        return DrainProgress(
            unfinished=unfinished,
            windows=tuple(
                sorted(
                    (window for worker in workers for window in worker.windows),
                    key=lambda window: window.epoch,
                )
            ),
            undecided=missing,
            unpublished=unpublished,
            idle=tuple(stage for stage in stages_of(self._job) if stage not in stages),
            finished=(self._job.last_epoch or 0) in self._published,
        )

    def _unfinished(self) -> int:
        job = self._job
        committed = self._cluster.committed(self._group, job.topic(Role.REPORTS))
        floors = list(map(floor_of, committed))
        return sum(
            max(0, end - max(floors[partition], job.start_offset(Role.REPORTS, partition)))
            for partition, end in self._ends.items()
        )

    def _read_on(self) -> None:
        for record in self._manifest_log.read():
            self._decisions.apply(record)
        for record in self._status_log.read():
            self._heartbeats.apply(record)
        for estimate in self._estimates.read():
            self._published.add(estimate.epoch)

    def _note(self, decision: Decision) -> None:
        manifest = decision.manifest
        if manifest.first_offset < self._ends[self._job.topics.partition_of(manifest.epoch)]:
            self._last = max(self._last, manifest.epoch)
