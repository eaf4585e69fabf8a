"""What can be said of a job at work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.stages.estimate_records import EstimateRecord

# A worker whose last heartbeat is older than this, in seconds, is gone.
SILENCE = 10.0

# So is one that rests: every minute it is said that it does.
RESTING_SILENCE = 180.0


@dataclass(frozen=True, slots=True)
class OpenWindowStatus:
    """A window of the shuffle stage that is not decided yet.

    Attributes:
        epoch: of the window.
        reports: so far; None where their number is hidden.
        waits_for: some of the producers who are expected and have not punctuated.
        devices: present with the producers that are in.
        begins: when its epoch does; None without a calendar.
        grace_left: seconds until it is decided without them; None as long as its time has not come.
    """

    epoch: int
    reports: int | None
    waits_for: tuple[str, ...]
    devices: int | None = None
    begins: str | None = None
    grace_left: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The last word of a worker.

    Attributes:
        stage: shuffle, aggregate or publish.
        worker: its name.
        age: seconds since then.
        partitions: those it owns.
        records_per_second: read from its topic; None where their number is hidden.
        reports_per_second: None where a stage sees none, or from a single heartbeat; of devices,
            where the number of reports is hidden.
        windows: the oldest open windows.
        open_windows: how many there are.
        late_reports: that came after their epoch was decided, since the worker started; devices,
            where the number of reports is hidden.
        busy: whether it has read anything lately.
        clock_ahead: by how many seconds its machine's clock is ahead of the broker's, negative if
            behind; None where that is not known.
        ahead: producers that send epochs whose time has not come, and by how many.
        unusable_reports: of devices that report for themselves: that did not open, or say what the
            protocol does not know, since the worker started.
        contradicting_reports: of devices that report for themselves: that differ from an earlier
            one of the same device and epoch, since the worker started.
        resting: whether it has ended since there is nothing to do, and is started when there is.
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
    resting: bool = False

    @property
    def alive(self) -> bool:
        """Whether it has spoken lately, or it was said lately that it rests."""
        return self.age <= (RESTING_SILENCE if self.resting else SILENCE)


@dataclass(frozen=True, slots=True)
class CollectorStatus:
    """The last word of a collector; its counts are of its own life.

    Attributes:
        collector: its id, of this life.
        age: seconds since then.
        received: reports that were looked at.
        acknowledged: reports that it has stored.
        refused: requests, by reason.
        waiting: requests that waited for Kafka.
        stored_per_second: reports, lately; None from a single heartbeat.
    """

    collector: str
    age: float
    received: int
    acknowledged: int
    refused: Mapping[str, int]
    waiting: int
    stored_per_second: float | None = None

    @property
    def alive(self) -> bool:
        """Whether it has spoken lately."""
        return self.age <= SILENCE


@dataclass(frozen=True, slots=True)
class StageStatus:
    """A stage: its workers, and how far its committed offsets are behind.

    Attributes:
        stage: shuffle, aggregate or publish.
        workers: live ones first.
        lag: records that are not finished yet; None where their number is hidden, and without the
            topic.
        waiting: seconds since the oldest of them was written; None without lag.
        epoch: the latest one that was decided, added up or published; None before the first.
        deleted: partitions of which records were deleted before they were finished.
    """

    stage: str
    workers: tuple[WorkerStatus, ...]
    lag: int | None
    waiting: float | None
    epoch: int | None = None
    deleted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """A topic that is not as the job was deployed with it.

    Attributes:
        name: of the topic.
        partitions: how many it has; 0 if there is no such topic.
        deployed: how many it had then.
        stray: whether there are records in partitions beyond those.
    """

    name: str
    partitions: int
    deployed: int
    stray: bool = False


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What `dpstream status` shows of a job.

    Attributes:
        job: the job's name.
        deployment: as hexadecimal digits.
        deployed_at: milliseconds since 1970.
        last_epoch: of the job; None for one that goes on without end.
        published: the latest estimate; None before the first.
        stages: in the order of the data flow.
        dead_letters: how many records were refused, and neither fed back nor dismissed, by reason.
        problems: sentences on what needs a person; none if all is well.
        position: in words, which epoch the latest estimate is of.
        headline: in words, the latest estimate: of items the largest one, of numbers the median.
        assumption: in words, what the interval of the headline assumes; None if nothing.
        phase: what an operator wants it to do.
        replay_of: of a replay, the job that ran.
        windows: decided so far, by fate; empty until a worker has told how many, of a long history.
        producers: how many have registered; None where devices report for themselves.
        silent: names of producers that are not waited for until they are back.
        redriven: dead letters that were fed back.
        dismissed: dead letters that somebody has seen and dismissed.
        withheld: of how many epochs up to the last decided one, without a break, nothing was
            released.
        topics: those that are not as the job was deployed with them.
        other_clocks: names of topics that go by the clocks of whoever writes to them.
        contradictions: sentences on what is kept and does not agree with itself.
        clock_ahead: by how many seconds the clock of the machine that looks is ahead of the
            broker's, at least; negative if behind, None where that is not known.
        notes: sentences on what is good to know.
        collectors: of devices that report for themselves, live ones first.
    """

    job: str
    deployment: str
    deployed_at: int
    last_epoch: int | None
    published: EstimateRecord | None
    stages: tuple[StageStatus, ...]
    dead_letters: Mapping[str, int]
    problems: tuple[str, ...] = ()
    position: str = ""
    headline: str = ""
    assumption: str | None = None
    phase: Phase = Phase.RUNNING
    replay_of: str | None = None
    windows: Mapping[str, int] = field(default_factory=dict)
    producers: int | None = 0
    silent: tuple[str, ...] = ()
    redriven: int = 0
    dismissed: int = 0
    withheld: int = 0
    topics: tuple[TopicStatus, ...] = ()
    other_clocks: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    clock_ahead: float | None = None
    notes: tuple[str, ...] = ()
    collectors: tuple[CollectorStatus, ...] = ()

    JSON_PROPERTIES: ClassVar = ("late_reports", "unusable_reports", "contradicting_reports")

    @property
    def finished(self) -> bool:
        """Whether the last epoch is published."""
        last = self.last_epoch
        return self.published is not None and last is not None and self.published.epoch >= last

    @property
    def late_reports(self) -> int:
        """That came after their epoch was decided, as far as the workers remember."""
        return sum(worker.late_reports for stage in self.stages for worker in stage.workers)

    @property
    def unusable_reports(self) -> int:
        """Of devices that report for themselves, as far as the workers remember."""
        return sum(worker.unusable_reports for stage in self.stages for worker in stage.workers)

    @property
    def contradicting_reports(self) -> int:
        """Of devices that sent another one for the epoch before, as far as the workers remember."""
        workers = (worker for stage in self.stages for worker in stage.workers)
        return sum(worker.contradicting_reports for worker in workers)
