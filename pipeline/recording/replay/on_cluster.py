"""Replay on the topics of a cluster, with one worker per stage while the replay runs."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from dpstream.pipeline.actions import (
    Action,
    Append,
    EndOffsets,
    Flush,
    LogSlice,
    ReadRange,
    Steps,
    carry_out,
)
from dpstream.pipeline.jobs.deployed_job import IDENTIFIER_BYTES, DeployedJob
from dpstream.pipeline.jobs.job_differences import describe_difference
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.jobs.replays import ReplayError, deploy_replay
from dpstream.pipeline.kafka.cluster import Cluster, KafkaTransport
from dpstream.pipeline.kafka.deployed_jobs import read_jobs, set_phase
from dpstream.pipeline.kafka.stored_topics import topic_ids
from dpstream.pipeline.kafka.topic_reader import reply_from
from dpstream.pipeline.ledger.ledger_topic import write_entries
from dpstream.pipeline.ledger.writing import of_replay
from dpstream.pipeline.operations.processes import dpstream_command
from dpstream.pipeline.operations.restarted_processes import RestartedProcesses
from dpstream.pipeline.recording.replay.pace import Pace, ReplayProgress, Speed
from dpstream.pipeline.recording.replay.replay_plan import ReplayPlan
from dpstream.pipeline.recording.replay.sources import ReplaySource
from dpstream.pipeline.recording.replay.writer import ReplayWriter
from dpstream.pipeline.results.follow import EstimateReader
from dpstream.pipeline.stages.topic_uses import stages_of
from dpstream.pipeline.state import worker_folder
from dpstream.topics.manifests import Manifest
from dpstream.topics.names import JOBS_TOPIC, Role, jobs_topic

WORKER = "replay"
"""Name of each stage's worker."""

# Manifests per batch: for each batch, the manifest log is read to its end.
_EPOCHS_AT_ONCE = 64
_RECORDS_AHEAD = 64
_WAIT_SECONDS = 0.1

Result = TypeVar("Result")


class ClusterReader:
    """Read a job's topics ahead of the requests: windows are small and read one by one."""

    def __init__(self, cluster: Cluster, job: DeployedJob) -> None:
        self._cluster = cluster
        self._job = job
        self._ends: dict[tuple[Role, int], int] = {}
        self._ahead: dict[tuple[Role, int], tuple[int, LogSlice]] = {}

    def __call__(self, steps: Steps[Result], /) -> Result:
        """Perform all actions of `steps`; raise `ClusterError` if a topic no longer exists."""
        return carry_out(steps, self._reply)

    def _reply(self, action: Action) -> object:
        if isinstance(action, ReadRange):
            return self._range(action)
        reply = reply_from(self._cluster, self._job, action)
        if isinstance(action, EndOffsets) and isinstance(reply, dict):
            self._ends |= reply
        return reply

    def _range(self, replay_range: ReadRange) -> LogSlice:
        place = replay_range.role, replay_range.partition
        start, held = self._ahead.get(place, (0, LogSlice((), 0)))
        if start <= replay_range.start < held.end:
            part = _part(held, replay_range)
            if part.records or part.end == replay_range.stop:
                return part
        ahead = min(replay_range.start + _RECORDS_AHEAD, self._ends.get(place, 0))
        further = replace(replay_range, stop=max(replay_range.stop, ahead))
        found = reply_from(self._cluster, self._job, further)
        assert isinstance(found, LogSlice)
        self._ahead[place] = replay_range.start, found
        return _part(found, replay_range)


def _part(held: LogSlice, replay_range: ReadRange) -> LogSlice:
    records = (
        record for record in held.records if replay_range.start <= record.offset < replay_range.stop
    )
    return LogSlice(tuple(records), min(held.end, replay_range.stop))


class ClusterReplay:
    """A deployed replay; `keys` is the folder with sealing keys; None means the default folder."""

    def __init__(
        self,
        cluster: Cluster,
        job: DeployedJob,
        source: ReplaySource,
        plan: ReplayPlan,
        tell: Callable[[str], None],
        keys: Path | None = None,
    ) -> None:
        self._keys = [] if keys is None else ["--keys", str(keys)]
        self._cluster = cluster
        self._job = job
        self._source = source
        self._plan = plan
        self._tell = tell
        self._progress = ReplayProgress(plan.last, tell)
        self._transport = KafkaTransport(cluster, job.name, tell)
        self._writer = ReplayWriter(
            job,
            source,
            plan,
            identifiers=partial(secrets.token_bytes, IDENTIFIER_BYTES),
        )

    def run(self, speed: Speed, *, workers: bool) -> None:
        """Write the topics, and wait until the last epoch is published.

        Without `workers`, other processes run the stages, and the method does not wait. Raises
        `ReplayError` if input is missing, and `ProcessError` if a worker fails repeatedly.
        """
        self._run(self._writer.begin())
        with RestartedProcesses(self._tell) if workers else nullcontext() as processes:
            check = (lambda: None) if processes is None else processes.check
            if processes is not None:
                self._start_workers(processes)
            self._write(speed, check)
            if processes is not None:
                self._see_it_published(check)
        if workers:
            # Supervisors no longer start workers for the replay.
            set_phase(self._cluster, self._job, Phase.DRAINED, _now())

    def _run(self, steps: Steps[None]) -> None:
        carry_out(steps, self._carry_out)

    def _carry_out(self, action: Action) -> object:
        self._progress.waiting()
        if isinstance(action, Append | Flush):
            self._transport.carry_out(action)
            return None
        return reply_from(self._cluster, self._job, action)

    def _start_workers(self, processes: RestartedProcesses) -> None:
        for stage in stages_of(self._job):
            own = [] if stage == "publish" else self._keys
            command = ["run", stage, self._job.name, "--name", WORKER, *own]
            processes.start(
                f"{stage} of {self._job.name}",
                dpstream_command(*command, *self._cluster.connection.arguments()),
                worker_folder(self._job.name, stage, WORKER) / "log",
            )

    def _write(self, speed: Speed, check: Callable[[], None]) -> None:
        pace = Pace(speed, time.monotonic())
        batch: list[tuple[Manifest, bytes | None]] = []
        for item in self._plan.items(self._source):
            if self._writer.has(item[0]):
                continue
            due = pace.due(item[0].timestamp)
            while (wait := due - time.monotonic()) > 0:
                check()
                self._progress.waiting()
                time.sleep(min(wait, _WAIT_SECONDS))
            batch.append(item)
            if speed.limited or len(batch) == _EPOCHS_AT_ONCE:
                self._write_batch(batch, check)
                batch = []
        self._write_batch(batch, check)

    def _write_batch(
        self, batch: list[tuple[Manifest, bytes | None]], check: Callable[[], None]
    ) -> None:
        self._run(self._writer.write(batch))
        check()
        if batch:
            self._progress.reached(batch[-1][0].epoch, "written")

    def _see_it_published(self, check: Callable[[], None]) -> None:
        def wait(seconds: float) -> None:
            check()
            self._progress.waiting()
            time.sleep(min(seconds, _WAIT_SECONDS))

        for record in EstimateReader(self._cluster, self._job).follow(self._tell, wait):
            self._progress.reached(record.epoch, "published")
            if record.epoch >= self._plan.last:
                return


def _now() -> int:
    return time.time_ns() // 1_000_000


def find_replay(cluster: Cluster, original: DeployedJob, job: Job) -> DeployedJob | None:
    """Return an unfinished replay or None; raise `ReplayError` if the name is taken."""
    state = read_jobs(cluster)
    running = state.jobs.get(job.name)
    another = "choose another name for the replay with --new-name"
    if job.name in state.unreadable:
        raise ReplayError(
            f"job {job.name} was deployed by an incompatible version of dpstream: {another}"
        )
    if running is None:
        return None
    origin = running.replay_of
    if origin is None or (origin.job, origin.deployment) != (original.name, original.deployment):
        raise ReplayError(
            f"job {job.name} is already deployed, but not as a replay of this deployment of "
            f"{original.name}: {another}"
        )
    changes = describe_difference(running, job)
    if changes:
        raise ReplayError(
            f"job {job.name} is a replay of {original.name} with other settings "
            f"({'; '.join(changes)}): {another}"
        )
    if state.phase(job.name) is Phase.DRAINED:
        raise ReplayError(
            f"job {job.name} is a finished replay of {original.name}: {another}, or end it: "
            f"'dpstream undeploy {job.name}'"
        )
    return running


def start_replay(
    cluster: Cluster,
    original: DeployedJob,
    job: Job,
    *,
    deployment: bytes,
    now: int,
    first_epoch: int | None = None,
) -> DeployedJob:
    topics = job.topic_settings()
    cluster.create_topics([*topics.values(), jobs_topic(job.topics.replication)])
    deployed = deploy_replay(
        original,
        job,
        deployment=deployment,
        deployed_at=now,
        first_epoch=first_epoch,
        start_offsets={
            role: tuple(cluster.end_offsets(topic.name)) for role, topic in topics.items()
        },
    ).model_copy(update={"topic_ids": topic_ids(cluster, job)})
    write_entries(cluster, of_replay(deployed, now), job.topics.replication)
    cluster.append(JOBS_TOPIC, deployed.to_bytes(), key=job.name.encode())
    return deployed
