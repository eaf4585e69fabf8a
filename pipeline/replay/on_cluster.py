"""A replay on the topics of a cluster, with a worker of each stage while it lasts."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from pipeline.actions import (
    Action,
    Append,
    EndOffset,
    Flush,
    LogSlice,
    ReadRange,
    Steps,
    end_offset,
)
from pipeline.cluster import Cluster, KafkaTransport
from pipeline.deployed_job import IDENTIFIER_BYTES, DeployedJob
from pipeline.deployments import set_phase
from pipeline.follow import EstimateReader
from pipeline.phases import Phase
from pipeline.replay.pace import Pace, Speed
from pipeline.replay.plan import ReplayPlan
from pipeline.replay.progress import Progress
from pipeline.replay.sources import ReplaySource
from pipeline.replay.writer import ReplayWriter
from pipeline.smoothing import read_from
from pipeline.state import worker_folder
from pipeline.subprocesses import python_module
from pipeline.up.processes import Supervisor
from topics.manifests import Manifest
from topics.names import Role

WORKER = "replay"
"""The name of the worker of each stage."""

_STAGES = ("aggregate", "publish")
# Manifests are written so many at a time: each time the manifest log is read to its end.
_EPOCHS_AT_ONCE = 64
_RECORDS_AHEAD = 64
_WAIT_SECONDS = 0.1

Result = TypeVar("Result")


class ClusterReader:
    """Carries out what reads the topics of a job, and reads a little ahead.

    Windows are small and asked for one by one: each would take a request of its own.
    """

    def __init__(self, cluster: Cluster, job: DeployedJob) -> None:
        self._cluster = cluster
        self._job = job
        self._ends: dict[tuple[Role, int], int] = {}
        self._ahead: dict[tuple[Role, int], tuple[int, LogSlice]] = {}

    def __call__(self, steps: Steps[Result], /) -> Result:
        """What the generator returns; `ClusterError` if a topic is gone."""
        reply: object = None
        while True:
            try:
                action = steps.send(reply)
            except StopIteration as finished:
                result: Result = finished.value
                return result
            match action:
                case EndOffset(role, partition):
                    reply = self._ends[role, partition] = self._read(end_offset(role, partition))
                case ReadRange():
                    reply = self._range(action)
                case _:
                    raise TypeError(f"a reader does not {action}")

    def _range(self, wanted: ReadRange) -> LogSlice:
        place = wanted.role, wanted.partition
        start, held = self._ahead.get(place, (0, LogSlice((), 0)))
        if start <= wanted.start < held.end:
            found = _part(held, wanted)
            if found.records or found.end == wanted.stop:
                return found
        ahead = min(wanted.start + _RECORDS_AHEAD, self._ends.get(place, 0))
        further = replace(wanted, stop=max(wanted.stop, ahead))
        held = self._read(_asked(further))
        self._ahead[place] = wanted.start, held
        return _part(held, wanted)

    def _read(self, steps: Steps[Result]) -> Result:
        return read_from(self._cluster, self._job, steps)


def _part(held: LogSlice, wanted: ReadRange) -> LogSlice:
    records = (record for record in held.records if wanted.start <= record.offset < wanted.stop)
    return LogSlice(tuple(records), min(held.end, wanted.stop))


class ClusterDriver:
    """Carries out the actions of a `ReplayWriter` on the topics of a job.

    Args:
        cluster: where.
        job: the replay.
        notify: is told what the operator should know.
        tick: is called before every action.
    """

    def __init__(
        self,
        cluster: Cluster,
        job: DeployedJob,
        notify: Callable[[str], None],
        tick: Callable[[], None],
    ) -> None:
        self._tick = tick
        self._cluster = cluster
        self._job = job
        self._transport = KafkaTransport(cluster, job.name, notify)

    def run(self, steps: Steps[Result]) -> Result:
        """Carry out a whole generator; returns what it returns.

        Raises:
            ClusterError: a record was refused, or a topic is gone.
        """
        reply: object = None
        while True:
            try:
                action = steps.send(reply)
            except StopIteration as finished:
                result: Result = finished.value
                return result
            self._tick()
            if isinstance(action, Append | Flush):
                self._transport.run(_done(action))
                reply = None
            else:
                reply = read_from(self._cluster, self._job, _asked(action))


class ClusterReplay:
    """A replay that has been deployed.

    Args:
        cluster: where.
        job: the replay, as deployed.
        source: what it replays.
        plan: which epochs.
        tell: is told how far it is.
    """

    def __init__(
        self,
        cluster: Cluster,
        job: DeployedJob,
        source: ReplaySource,
        plan: ReplayPlan,
        tell: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._job = job
        self._source = source
        self._plan = plan
        self._tell = tell
        self._progress = Progress(plan.last, tell)
        self._driver = ClusterDriver(cluster, job, tell, self._progress.waiting)
        self._writer = ReplayWriter(
            job,
            source,
            plan,
            identifiers=partial(secrets.token_bytes, IDENTIFIER_BYTES),
        )

    def run(self, speed: Speed, *, workers: bool) -> None:
        """Write the topics, and see the last epoch published.

        Args:
            speed: of the epochs.
            workers: run them; otherwise somebody else does, and nobody waits for them.

        Raises:
            ReplayError: what was to be read is gone.
            ProcessError: a worker has failed again and again.
            ClusterError: the cluster cannot be used.
        """
        self._driver.run(self._writer.begin())
        with Supervisor(self._tell) if workers else nullcontext() as supervisor:
            check = (lambda: None) if supervisor is None else supervisor.check
            if supervisor is not None:
                self._start_workers(supervisor)
            self._write(speed, check)
            if supervisor is not None:
                self._see_it_published(check)
        if workers:
            # Supervisors start no worker for it any more.
            set_phase(self._cluster, self._job, Phase.DRAINED, _now())

    def _start_workers(self, supervisor: Supervisor) -> None:
        for stage in _STAGES:
            command = ["run", stage, self._job.name, "--name", WORKER]
            supervisor.start(
                f"{stage} of {self._job.name}",
                python_module(
                    "pipeline.lifeline",
                    str(supervisor.lifeline),
                    *command,
                    *self._cluster.connection.arguments(),
                ),
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
        self._driver.run(self._writer.write(batch))
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


def _done(action: Action) -> Steps[None]:
    yield action


def _asked(action: Action) -> Steps[Any]:
    reply = yield action
    return reply


def _now() -> int:
    return time.time_ns() // 1_000_000
