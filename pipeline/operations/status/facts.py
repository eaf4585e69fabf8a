"""The status of a job at work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.stages.estimate_records import EstimateRecord

# Maximum age in seconds of the last heartbeat of a live worker.
HEARTBEAT_TIMEOUT = 10.0

# The same for an idle worker, whose idle heartbeat is sent every minute.
IDLE_HEARTBEAT_TIMEOUT = 180.0


@dataclass(frozen=True, slots=True)
class OpenWindowStatus:
    """A window of the shuffler that is not finalized yet.

    Attributes:
        reports: Number of reports so far; None if hidden.
        waits_for: Some of the expected producers that have not punctuated.
        devices: Number of devices present at the producers that have punctuated.
        begins: Start of the epoch; None without a calendar.
        grace_left: Seconds until it is finalized without them; None before its time has come.
    """

    epoch: int
    reports: int | None
    waits_for: tuple[str, ...]
    devices: int | None = None
    begins: str | None = None
    grace_left: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The latest heartbeat of a worker. If the number of reports is hidden, devices are counted.

    Attributes:
        age: Seconds since the heartbeat.
        records_per_second: Records read from its topic; None if hidden.
        reports_per_second: None for stages that see no reports, and after a single heartbeat.
        windows: The oldest open windows.
        late_reports: Reports after their epoch was finalized, since the worker started.
        clock_ahead: Seconds by which its machine's clock is ahead of the broker's, negative if
            behind; None if unknown.
        ahead: Producers that send epochs whose time has not come, with the number of epochs.
        unusable_reports: Device reports that failed to decrypt or were unknown to the protocol,
            since the worker started.
        contradicting_reports: Device reports that differ from an earlier one of the same device and
            epoch, since the worker started.
        idle: True if it exited for lack of work and is restarted on demand.
    """

    stage: str
    worker: str
    age: float
    partitions: tuple[int, ...]
    records_per_second: float | None
    reports_per_second: float | None
    windows: tuple[OpenWindowStatus, ...]
    open_windows: int
    late_reports: int = 0
    busy: bool = False
    clock_ahead: float | None = None
    ahead: Mapping[str, int] = field(default_factory=dict)
    unusable_reports: int = 0
    contradicting_reports: int = 0
    idle: bool = False

    @property
    def up(self) -> bool:
        return self.age <= (IDLE_HEARTBEAT_TIMEOUT if self.idle else HEARTBEAT_TIMEOUT)


@dataclass(frozen=True, slots=True)
class CollectorStatus:
    """The latest heartbeat of a collector; counts are since its start.

    Attributes:
        collector: ID, new at each start.
        age: Seconds since the heartbeat.
        received: Number of reports examined.
        acknowledged: Number of reports stored.
        rejected: Number of rejected requests by reason.
        waiting: Number of requests that waited for Kafka.
        stored_per_second: Recent rate of stored reports; None after a single heartbeat.
    """

    collector: str
    age: float
    received: int
    acknowledged: int
    rejected: Mapping[str, int]
    waiting: int
    stored_per_second: float | None = None

    @property
    def up(self) -> bool:
        return self.age <= HEARTBEAT_TIMEOUT


@dataclass(frozen=True, slots=True)
class StageStatus:
    """The workers of a stage, live ones first, and the lag of its committed offsets.

    Attributes:
        lag: Number of unfinished records; None if hidden, or without the topic.
        waiting: Seconds since the oldest of them was written; None without lag.
        epoch: Latest epoch finalized, aggregated or published; None before the first.
        deleted: Partitions whose records were deleted before they were finished.
    """

    stage: str
    workers: tuple[WorkerStatus, ...]
    lag: int | None
    waiting: float | None
    epoch: int | None = None
    deleted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """A topic that differs from its state at deployment.

    Attributes:
        partitions: Current number of partitions; 0 if there is no such topic.
        deployed: Number of partitions at deployment.
        unexpected_records: True if partitions beyond those contain records.
    """

    name: str
    partitions: int
    deployed: int
    unexpected_records: bool = False


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Output of `dpstream status` for a job.

    Attributes:
        deployment: Deployment ID in hexadecimal.
        deployed_at: Milliseconds since 1970.
        last_epoch: Last epoch of the job; None if unlimited.
        stages: Stages in the order of the data flow.
        dead_letters: Number of rejected records neither requeued nor discarded, by reason.
        issues: Sentences on issues that require action.
        position: Description of the latest estimate's epoch.
        headline: Description of the latest estimate: for items the largest, for numbers the median.
        assumption: Assumption of the headline's interval; None without one.
        phase: Phase that an operator requested.
        replay_of: For a replay, the original job.
        windows: Number of finalized windows by status; with a long history, empty until a worker
            reports it.
        producers: Number of registered producers; None if devices report for themselves.
        missing_producers: Missing producers, not waited for until they return.
        suppressed: Number of consecutive unreleased epochs, up to the last finalized one.
        other_clocks: Names of topics that use the writers' clocks.
        contradictions: Sentences on stored data that contradicts itself.
        clock_ahead: Minimum seconds by which this machine's clock is ahead of the broker's;
            negative if behind, None if unknown.
        notes: Sentences for information.
    """

    job: str
    deployment: str
    deployed_at: int
    last_epoch: int | None
    published: EstimateRecord | None
    stages: tuple[StageStatus, ...]
    dead_letters: Mapping[str, int]
    issues: tuple[str, ...] = ()
    position: str = ""
    headline: str = ""
    assumption: str | None = None
    phase: Phase = Phase.RUNNING
    replay_of: str | None = None
    windows: Mapping[str, int] = field(default_factory=dict)
    producers: int | None = 0
    missing_producers: tuple[str, ...] = ()
    redriven: int = 0
    discarded: int = 0
    suppressed: int = 0
    topics: tuple[TopicStatus, ...] = ()
    other_clocks: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    clock_ahead: float | None = None
    notes: tuple[str, ...] = ()
    collectors: tuple[CollectorStatus, ...] = ()

    JSON_PROPERTIES: ClassVar = ("late_reports", "unusable_reports", "contradicting_reports")

    @property
    def finished(self) -> bool:
        last = self.last_epoch
        return self.published is not None and last is not None and self.published.epoch >= last

    @property
    def late_reports(self) -> int:
        return sum(worker.late_reports for stage in self.stages for worker in stage.workers)

    @property
    def unusable_reports(self) -> int:
        return sum(worker.unusable_reports for stage in self.stages for worker in stage.workers)

    @property
    def contradicting_reports(self) -> int:
        workers = (worker for stage in self.stages for worker in stage.workers)
        return sum(worker.contradicting_reports for worker in workers)
