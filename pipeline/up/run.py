"""Runs a job from its deployment to its last estimate, in processes of their own."""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

import numpy as np
from kafka.errors import KafkaError
from numpy.typing import NDArray

from pipeline.cluster import ClusterError
from pipeline.connection import Connection, find_cluster
from pipeline.deployed_job import IDENTIFIER_BYTES, DeployedJob
from pipeline.input.item_log import ItemLog, load_value_log
from pipeline.jobs import Job, load_job
from pipeline.local_kafka import LocalKafkaError
from pipeline.produce import calendar_of
from pipeline.signals import Signals
from pipeline.smoothing import SmoothedHorizon
from pipeline.state import FolderInUse, FolderLock, producer_folder, state_home, worker_folder
from pipeline.subprocesses import python_module
from pipeline.up.keeper import KeptBroker, Message
from pipeline.up.observation import Seen, begin, look_back, observe
from pipeline.up.outcome import Outcome
from pipeline.up.processes import Child, Supervisor
from pipeline.up.progress import Progress
from pipeline.up.screen import Part, Screen, View

WORKER = "up"
"""The name of the producer, and of the worker of each stage."""

PRODUCER = "produce"
STAGES = ("shuffle", "aggregate", "publish")
_WAIT_SECONDS = 0.1
_SILENCE_SECONDS = 30.0
_LOOK_BACK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What is to be run, and where.

    Attributes:
        job_file: the job.
        input: the change log, a file.
        servers: of a cluster of one's own; without it and `kafka_config`, the local broker.
        kafka_config: a client.properties.
        keep_broker: leave the local broker running even if it was started for this run.
        rate: at most so many epochs per second.
        skip_bad_rows: go on without them.
    """

    job_file: Path
    input: Path
    servers: str | None = None
    kafka_config: Path | None = None
    keep_broker: bool = False
    rate: float | None = None
    skip_bad_rows: bool = False


def run_up(settings: Settings, screen: Screen) -> Outcome:
    """Run a job to its end. Whatever happens, no process is left when this returns or raises.

    Raises:
        JobError: the job file is wrong; nothing was started, as after the next two.
        InputError: the input is wrong.
        FolderInUse: another run uses the state folder.
        SignalledError: a signal has come.
        ProcessError: a process has failed again and again.
        LocalKafkaError: the local broker cannot be had.
        ClusterError: the cluster cannot be used.
    """
    job = load_job(settings.job_file)
    change_log = load_value_log(
        settings.input,
        domain=job.domain,
        calendar=calendar_of(job),
        last_epoch=job.last_epoch,
        to_last_row=job.epochs.renew,
        skip_bad_rows=settings.skip_bad_rows,
    )
    bad_rows = [str(change_log.bad_rows)] if change_log.bad_rows.total else []
    for notice in (*bad_rows, *change_log.notices):
        screen.say(notice)
    users = len(change_log.users)
    truth = change_log if isinstance(change_log, ItemLog) else change_log.truth(job.domain)
    del change_log
    with _only_run(job), Signals() as signals, screen:
        return _Run(settings, job, users, truth, screen, signals).run()


def _only_run(job: Job) -> FolderLock:
    """Two runs would share a broker that the first one to end stops."""
    try:
        return FolderLock(state_home() / "up", f"dpstream up of {job.name}")
    except FolderInUse as error:
        raise FolderInUse(f"{error} (DPSTREAM_HOME=FOLDER does)") from None


Event = Message | DeployedJob | list[Seen] | Exception
"""What other threads tell: about the broker, the job, its topics, and what failed."""


class _Run:
    """One run. Everything happens in `run`; other threads post events, signals are only noted."""

    def __init__(
        self,
        settings: Settings,
        job: Job,
        users: int,
        truth: NDArray[np.int64] | ItemLog,
        screen: Screen,
        signals: Signals,
    ) -> None:
        self._settings = settings
        self._job = job
        self._users = users
        self._truth = truth
        self._screen = screen
        self._signals = signals
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._over = threading.Event()
        self._observer: threading.Thread | None = None
        self._connection: Connection | None = None
        self._children: dict[str, Child] = {}
        self._progress: Progress | None = None
        self._title = job.name
        self._activity = "starting"
        self._noise_key = worker_folder(job.name, "shuffle", WORKER) / "noise-key"
        self._deployed_at = 0.0
        self._heard_at = time.monotonic()

    def run(self) -> Outcome:
        """Do it all."""
        self._forget_secrets()
        try:
            with ExitStack() as stack:
                broker = self._begin(stack)
                workers = stack.enter_context(
                    Supervisor(self._screen.say, hurry=self._signals.hurry)
                )
                stack.callback(self._stop_observing)
                while self._progress is None or not self._progress.complete:
                    self._signals.check()
                    if broker is not None:
                        broker.check()
                    workers.check()
                    self._take_events(workers)
                    self._notice_silence()
                    self._screen.show(self._view())
                job, rows = self._progress.job, self._progress.rows()
                outcome = Outcome(
                    job=job,
                    rows=rows,
                    users=self._users,
                    seconds=time.monotonic() - self._deployed_at,
                    reports=self._progress.reports,
                    smoothed=self._look_back(job, rows[-1].epoch),
                )
                self._activity = "stopping"
                self._screen.show(self._view())
        finally:
            self._forget_secrets()
        return outcome

    def _look_back(self, job: DeployedJob, last_epoch: int) -> dict[int, SmoothedHorizon]:
        """Nothing, if it takes too long: all is published, and no broker may spoil that now."""
        connection, found = self._connection, dict[int, SmoothedHorizon]()
        assert connection is not None

        def read() -> None:
            with suppress(ClusterError, KafkaError):
                found.update(look_back(connection, job, last_epoch))

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        thread.join(timeout=_LOOK_BACK_SECONDS)
        return dict(found)

    def _begin(self, stack: ExitStack) -> KeptBroker | None:
        """Begin to connect to the cluster; returns the broker if it is the local one."""
        settings = self._settings
        if settings.servers or settings.kafka_config:
            self._connect(find_cluster(settings.servers, settings.kafka_config))
            return None
        return stack.enter_context(
            KeptBroker(self._events.put, keep=settings.keep_broker, hurry=self._signals.hurry)
        )

    def _connect(self, connection: Connection) -> None:
        for notice in connection.notices:
            self._screen.say(notice)
        self._connection = connection
        self._activity = "deploying the job"
        self._observer = threading.Thread(target=self._observe, args=(connection,), daemon=True)
        self._observer.start()

    def _observe(self, connection: Connection) -> None:
        """Deploy the job and read its topics, in a thread of its own."""
        try:
            deployed = begin(
                connection, self._job, secrets.token_bytes(IDENTIFIER_BYTES), self._noise_key
            )
            self._events.put(deployed)
            with closing(observe(connection, deployed)) as observation:
                for seen in observation:
                    if self._over.is_set():
                        return
                    self._events.put(seen)
        except Exception as error:
            self._events.put(error)

    def _stop_observing(self) -> None:
        self._over.set()
        if self._observer is not None:
            self._observer.join(timeout=1.0)

    def _take_events(self, workers: Supervisor) -> None:
        """Wait a moment for an event, and take in all there are."""
        timeout = _WAIT_SECONDS
        while True:
            try:
                event = self._events.get(timeout=timeout)
            except Empty:
                return
            timeout = 0.0
            match event:
                case Exception():
                    raise event
                case DeployedJob():
                    self._start_children(event, workers)
                case list():
                    self._take_in(event)
                case _:
                    self._hear(event)

    def _hear(self, message: Message) -> None:
        """Take in a word of the broker's keeper."""
        match message["kind"]:
            case "failed":
                raise LocalKafkaError(message["text"])
            case "ready" if self._connection is None:
                self._connect(Connection((message["text"],)))
            case "progress" if self._connection is None:
                self._activity = message["text"]
            case "progress":
                self._screen.say(message["text"])

    def _take_in(self, records: list[Seen]) -> None:
        if self._progress is None:
            return
        before = len(self._progress.records)
        for record in records:
            self._progress.apply(record.role, record.value)
        if len(self._progress.records) > before:
            self._activity = ""
            self._heard_at = time.monotonic()

    def _notice_silence(self) -> None:
        """Say where to look if nothing has come for long."""
        if self._progress is None or time.monotonic() < self._heard_at + _SILENCE_SECONDS:
            return
        self._heard_at = time.monotonic()
        logs = worker_folder(self._job.name, "STAGE", WORKER) / "log"
        self._screen.say(
            f"no estimate for {_SILENCE_SECONDS:.0f} s; what the stages say is in {logs}"
        )

    def _start_children(self, job: DeployedJob, workers: Supervisor) -> None:
        assert self._connection is not None
        settings = self._settings
        self._progress = Progress(job, self._truth)
        self._title = f"{job.name}  {str(job.guarantee()).partition(';')[0]}"
        self._deployed_at = self._heard_at = time.monotonic()
        self._activity = "starting the producer and a worker for each stage"
        produce = [job.name, "--input", str(settings.input), "--name", WORKER]
        if settings.rate is not None:
            produce += ["--rate", str(settings.rate)]
        if settings.skip_bad_rows:
            produce.append("--skip-bad-rows")
        commands = {stage: ["run", stage, job.name, "--name", WORKER] for stage in STAGES}
        if job.needs_noise_key:
            commands["shuffle"] += ["--noise-key", str(self._noise_key)]
        for name, command in {**commands, PRODUCER: [PRODUCER, *produce]}.items():
            self._children[name] = workers.start(
                name,
                python_module(
                    "pipeline.lifeline",
                    str(workers.lifeline),
                    *command,
                    *self._connection.arguments(),
                ),
                worker_folder(job.name, name, WORKER) / "log",
                endless=name in STAGES,
            )

    def _view(self) -> View:
        kafka = Part("kafka", "starting")
        if self._connection is not None:
            kafka = Part("kafka", "running", self._connection.bootstrap_servers[0])
        return View(
            title=self._title,
            activity=self._activity,
            parts=(kafka, *map(self._part, self._children)),
            population=self._users,
            progress=self._progress,
        )

    def _part(self, name: str) -> Part:
        state = self._children[name].state
        heartbeat = self._progress.heartbeats.get(name) if self._progress else None
        if name in STAGES and state == "running" and heartbeat is None:
            state = "starting"
        lag = 0 if heartbeat is None else heartbeat.get("lag", 0)
        return Part(name, state, f"{lag:,} records behind" if lag else "")

    def _forget_secrets(self) -> None:
        """What devices of an earlier deployment have drawn is of no use and private, as its key."""
        shutil.rmtree(producer_folder(self._job.name, WORKER), ignore_errors=True)
        self._noise_key.unlink(missing_ok=True)
