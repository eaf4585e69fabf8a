"""Data classes that make up the status of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.stages.estimate_records import EstimateRecord

# Maximum age in seconds of the last heartbeat of a worker that is up.
HEARTBEAT_TIMEOUT = 10.0

# Maximum age in seconds for an idle worker, whose idle heartbeat is sent every minute.
IDLE_HEARTBEAT_TIMEOUT = 180.0


@dataclass(frozen=True, slots=True)
class OpenWindowStatus:
    """A window of the shuffler that is not finalized yet.

    Attributes:
        reports: Number of reports so far; None if hidden.
        waits_for: Some of the expected producers whose punctuation is missing.
        grace_left: Remaining seconds of the grace period; None before the grace period starts.
    """

    epoch: int
    reports: int | None
    waits_for: tuple[str, ...]
    devices: int | None = None
    begins: str | None = None
    grace_left: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The latest heartbeat of a worker; it counts devices if the number of reports is hidden.

    Attributes:
        age: Seconds since the heartbeat.
        records_per_second: Rate of records read from the stage's topic; None if hidden.
        reports_per_second: Rate of reports; None for stages that read no reports, or after a single
            heartbeat.
        clock_ahead: Seconds by which the worker's clock is ahead of the broker's, negative if it is
            behind.
        ahead: Producers that send epochs ahead of time, each with the number of epochs it is ahead.
        unusable_reports: Device reports that failed to decrypt or were unknown to the protocol.
        contradicting_reports: Device reports that differ from an earlier one by the same device.
        idle: True if the worker exited for lack of work and is restarted on demand.
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
    """The latest heartbeat of a collector; counts start when the collector starts.

    `received` counts examined reports, `acknowledged` those stored in Kafka. `waiting` counts
    requests that wait for Kafka. `stored_per_second` is None after a single heartbeat.
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
    """The workers of a stage, starting with those that are up, and the stage's lag.

    Attributes:
        lag: Number of unfinished records; None if the number is hidden or the topic is missing.
        waiting: Seconds since the oldest unfinished record was written; None if there is no lag.
        deleted: Partitions in which records were deleted before the stage finished them.
    """

    stage: str
    workers: tuple[WorkerStatus, ...]
    lag: int | None
    waiting: float | None
    epoch: int | None = None
    deleted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """A topic that has changed since deployment; it is missing if `partitions` is 0."""

    name: str
    partitions: int
    deployed: int
    unexpected_records: bool = False


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Status of a job, as `dpstream status` prints it.

    Attributes:
        last_epoch: Last epoch of the job; None if unlimited.
        dead_letters: Number of rejected records neither requeued nor discarded so far, by reason.
        issues: Sentences about issues that require action; `notes` require none.
        position: Description of the latest estimate's epoch.
        headline: The latest estimate in words (for items, the largest; for numbers, the median).
        rolling: A recurring job's guarantee for any short run of epochs; None if not stated.
        windows: Number of finalized windows by status; if the history is long, empty until a worker
            reports the numbers.
        producers: Number of registered producers; None if devices report without producers.
        missing_producers: Absent producers, for which windows wait again only after they return.
        suppressed: Length of the run of unreleased epochs that ends with the last finalized epoch.
        other_clocks: Names of topics whose timestamps come from writers' clocks.
        clock_ahead: Minimum seconds by which this machine's clock is ahead of the broker's;
            negative if it is behind, None if unknown.
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
    rolling: str | None = None
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
