"""What a job is doing: gathered from its topics, judged by fixed rules.

Nothing here is asked of the workers themselves: a worker that hangs cannot hide.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.cluster import Cluster
from pipeline.dead_letters import read_dead_letters
from pipeline.deployed_job import DeployedJob
from pipeline.estimate_records import EstimateRecord
from pipeline.follow import EstimateReader
from pipeline.headlines import headline_of
from topics.names import Role
from topics.records import Reason

STAGES: Mapping[str, Role] = {
    "shuffle": Role.REPORTS,
    "aggregate": Role.SHUFFLED,
    "publish": Role.PARTIALS,
}

# A worker whose last heartbeat is older than this, in seconds, is gone.
SILENCE = 10.0
# A record is stuck if it has waited this many seconds beyond the grace period of its window while
# the live workers of its stage read nothing.
PATIENCE = 60.0
# Heartbeats are compacted away; reading more of them tells nothing new.
_HEARTBEATS_READ = 5_000


@dataclass(frozen=True, slots=True)
class OpenWindow:
    """A window of the shuffle stage that is not decided yet."""

    epoch: int
    reports: int
    waits_for: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The last word of a worker.

    Attributes:
        stage: shuffle, aggregate or publish.
        worker: its name.
        age: seconds since then.
        partitions: those it owns.
        records_per_second: read from its topic.
        reports_per_second: None where a stage sees none, or from a single heartbeat.
        windows: the oldest open windows.
        open_windows: how many there are.
        late_reports: that came after their epoch was decided, since the worker started.
    """

    stage: str
    worker: str
    age: float
    partitions: tuple[int, ...]
    records_per_second: float
    reports_per_second: float | None
    windows: tuple[OpenWindow, ...]
    open_windows: int
    late_reports: int = 0

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
        lag: records that are not finished yet.
        waiting: seconds since the oldest of them was written; None without lag.
    """

    stage: str
    workers: tuple[WorkerStatus, ...]
    lag: int
    waiting: float | None


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
        dead_letters: how many records were refused, by reason.
        problems: sentences on what is wrong; none if all is well.
        position: in words, which epoch the latest estimate is of.
        headline: in words, the latest estimate: of items the largest one, of numbers the median.
    """

    job: str
    deployment: str
    deployed_at: int
    last_epoch: int | None
    published: EstimateRecord | None
    stages: tuple[StageStatus, ...]
    dead_letters: Mapping[str, int]
    problems: tuple[str, ...]
    position: str
    headline: str = ""

    def to_json(self) -> dict[str, Any]:
        """The fields, as JSON values."""
        published = None if self.published is None else self.published.to_json()
        return {**asdict(self), "published": published}


def gather_status(cluster: Cluster, job: DeployedJob, now: int) -> JobStatus:
    """Read and judge the state of a job; `now` is in milliseconds since 1970."""
    from pipeline.workers.worker import group_name

    latest = deque(EstimateReader(cluster, job).read(), maxlen=1)
    published = latest[0] if latest else None
    workers = list(_workers(cluster, job, now))
    stages = []
    for stage, role in STAGES.items():
        lag, waiting = _lag(cluster, job, role, group_name(job, stage), now)
        own = sorted(
            (worker for worker in workers if worker.stage == stage),
            key=lambda worker: (not worker.alive, worker.worker),
        )
        stages.append(StageStatus(stage, tuple(own), lag, waiting))
    dead_letters = Counter(letter.reason.value for letter in read_dead_letters(cluster, job))
    return JobStatus(
        job=job.name,
        deployment=job.deployment.hex(),
        deployed_at=job.deployed_at,
        last_epoch=job.last_epoch,
        published=published,
        stages=tuple(stages),
        dead_letters=dict(sorted(dead_letters.items())),
        problems=tuple(find_problems(job, published, stages, dead_letters)),
        position="" if published is None else job.position_of(published.epoch),
        headline="" if published is None else str(headline_of(job.domain, published)),
    )


def find_problems(
    job: DeployedJob,
    published: EstimateRecord | None,
    stages: Sequence[StageStatus],
    dead_letters: Mapping[str, int],
) -> Iterator[str]:
    """Sentences on what is wrong.

    A job whose last epoch is published needs no workers. Records of an earlier deployment that
    arrive late are refused, and nobody's fault.
    """
    if published is None or job.last_epoch is None or published.epoch < job.last_epoch:
        for stage in stages:
            alive = [worker for worker in stage.workers if worker.alive]
            if not alive:
                yield (
                    f"no worker of stage {stage.stage} is alive: "
                    f"dpstream run {stage.stage} {job.name} starts one"
                )
            elif _stuck(job, stage, alive):
                assert stage.waiting is not None
                yield (
                    f"stage {stage.stage} is stuck: {stage.lag:,} records wait, the oldest for "
                    f"{stage.waiting:,.0f} s: look at what its workers say, or restart them"
                )
    late = sum(worker.late_reports for stage in stages for worker in stage.workers)
    if late:
        yield (
            f"{late:,} reports came after their epoch was decided, and do not count: "
            f"dpstream producers {job.name} shows who is behind"
        )
    refused = sum(
        count for reason, count in dead_letters.items() if reason != Reason.DEPLOYMENT.value
    )
    if refused:
        letters = "1 dead letter" if refused == 1 else f"{refused:,} dead letters"
        yield f"{letters}: dpstream dead-letters {job.name} lists what was refused"


def _stuck(job: DeployedJob, stage: StageStatus, alive: Sequence[WorkerStatus]) -> bool:
    allowed = PATIENCE + (job.shuffle.grace if stage.stage == "shuffle" else 0.0)
    idle = not any(worker.records_per_second for worker in alive)
    return stage.waiting is not None and stage.waiting > allowed and idle


def _workers(cluster: Cluster, job: DeployedJob, now: int) -> Iterator[WorkerStatus]:
    """The last word of every worker of the deployment."""
    topic = job.topic(Role.STATUS)
    (end,) = cluster.end_offsets(topic)
    start = max(job.start_offset(Role.STATUS), end - _HEARTBEATS_READ)
    last: dict[bytes, list[dict[str, Any]]] = {}
    for record in cluster.read(topic, start=start, stop=end):
        try:
            body = json.loads(record.value)
        except (ValueError, RecursionError):
            continue
        own = isinstance(body, dict) and body.get("deployment") in (None, job.deployment.hex())
        if own and record.key:
            last[record.key] = [*last.get(record.key, [])[-1:], body]
    for beats in last.values():
        # Another version's heartbeats may say other things.
        try:
            worker = _worker(beats, now)
        except (AttributeError, KeyError, TypeError):
            continue
        yield worker


def _worker(beats: Sequence[Mapping[str, Any]], now: int) -> WorkerStatus:
    beat = beats[-1]
    return WorkerStatus(
        stage=beat["stage"],
        worker=beat["worker"],
        age=max(0, now - beat["time"]) / 1000,
        partitions=tuple(beat["partitions"]),
        records_per_second=beat["records_per_second"],
        reports_per_second=_reports_per_second(beats),
        windows=tuple(
            OpenWindow(window["epoch"], window["reports"], tuple(window["waits_for"]))
            for window in beat.get("windows", ())
        ),
        open_windows=beat.get("open_windows", 0),
        late_reports=beat.get("counts", {}).get("late_reports", 0),
    )


def _reports_per_second(beats: Sequence[Mapping[str, Any]]) -> float | None:
    counts = [beat.get("counts", {}).get("reports") for beat in beats]
    if len(beats) < 2 or None in counts or counts[1] < counts[0]:
        return None
    elapsed = (beats[1]["time"] - beats[0]["time"]) / 1000
    return round((counts[1] - counts[0]) / elapsed, 1) if elapsed > 0 else None


def _lag(
    cluster: Cluster, job: DeployedJob, role: Role, group: str, now: int
) -> tuple[int, float | None]:
    """Records that are not finished, and the seconds since the oldest was written."""
    topic = job.topic(role)
    lag, oldest = 0, None
    for partition, (end, committed, first) in enumerate(
        zip(
            cluster.end_offsets(topic),
            cluster.committed(group, topic),
            cluster.start_offsets(topic),
            strict=True,
        )
    ):
        floor = max(committed or 0, first, job.start_offset(role, partition))
        if floor >= end:
            continue
        lag += end - floor
        for record in cluster.read(topic, partition, floor, floor + 1):
            oldest = record.timestamp if oldest is None else min(oldest, record.timestamp)
    return lag, None if oldest is None else max(0, now - oldest) / 1000
