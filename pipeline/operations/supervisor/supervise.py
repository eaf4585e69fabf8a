"""Keep one worker of a stage running for every deployed job that needs a worker.

One loop makes all decisions. Other threads read the jobs topic, relay workers' output and answer
scrapes; signal handlers only record signals.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from typing import TextIO

from dpstream.pipeline.errors import one_line
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.jobs.key_files import NoiseKey, WrongKeyError
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.jobs_follower import Away, Follower
from dpstream.pipeline.kafka.workers.log_lines import LogLines
from dpstream.pipeline.kafka.workers.monitor import MonitorAddress, serve
from dpstream.pipeline.kafka.workers.watchdog import HEARTBEAT_SECONDS, heartbeat_of
from dpstream.pipeline.operations.forks import Forks
from dpstream.pipeline.operations.processes import Starter, end_all, how_it_ended, start_process
from dpstream.pipeline.operations.signals import Signals
from dpstream.pipeline.operations.supervisor.children import HUNG_SECONDS, Worker
from dpstream.pipeline.operations.supervisor.idle_monitor import (
    IdleMonitor,
    initial_idle_job,
    noted_idle_job,
)
from dpstream.pipeline.operations.supervisor.schedule import Kill, Schedule, Start, Terminate
from dpstream.pipeline.operations.supervisor.target_tasks import Tasks, tasks_of
from dpstream.pipeline.operations.supervisor.watch import (
    View,
    Watched,
    liveness,
    readiness,
    registry_of,
)
from dpstream.pipeline.protocols.registry import OWN, module_of
from dpstream.pipeline.state import FolderLock, noise_key_file, supervisor_folder, worker_folder

SHUFFLE = "shuffle"
_LOOK_SECONDS = 0.1
# Maximum number of workers to start within two seconds: all can be woken at the same time.
_AT_ONCE = 8
WORKER_MODULES = (
    "dpstream.pipeline.cli.run",
    "dpstream.pipeline.kafka.workers.worker",
    # Imported by Faust when an application is created.
    "faust.app.router",
    "faust.assignor.partition_assignor",
    "faust.fixups.django",
    "faust.stores.memory",
    "faust.tables.manager",
    "faust.tables.sets",
    "faust.topics",
    # A worker needs one of these modules, depending on its job.
    *sorted({f"dpstream.pipeline.protocols.{module_of(protocol)}" for protocol in OWN}),
)
# Seconds until the reason why a worker cannot be started is logged again.
_SAY_AGAIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class SupervisorSettings:
    """Settings of a supervisor.

    `name` names the workers, unique within the stage across all machines. `pattern` is a shell
    pattern that selects job names. `noise_keys` is a folder with one noise key file per job.
    Workers without work become idle after `idle_timeout` seconds, or never if it is None.
    """

    stage: str
    name: str
    pattern: str = "*"
    noise_keys: Path | None = None
    keys: Path | None = None
    as_json: bool = False
    monitor: MonitorAddress | None = None
    idle_timeout: float | None = None

    def noise_key(self, job: str) -> Path:
        return noise_key_file(job) if self.noise_keys is None else self.noise_keys / job

    def command(self, job: str, connection: Connection) -> Sequence[str]:
        command = ["run", self.stage, job, "--name", self.name]
        command += ["--log-format", "json" if self.as_json else "text"]
        if self.stage == SHUFFLE and self.noise_keys is not None:
            command += ["--noise-key", str(self.noise_key(job))]
        if self.keys is not None:
            command += ["--keys", str(self.keys)]
        if self.idle_timeout is not None:
            command += ["--idle-timeout", str(self.idle_timeout)]
        return [*command, *connection.arguments()]


def supervise(connection: Connection, settings: SupervisorSettings) -> int:
    """Keep workers running until SIGTERM or Ctrl-C; return the exit code 0.

    Raises FolderInUse if another supervisor with this stage and name runs on this machine, and
    WorkerError if the metrics address is unavailable.
    """
    folder = supervisor_folder(settings.stage, settings.name)
    with (
        FolderLock(folder, f"supervisor {settings.name} of {settings.stage}"),
        Signals() as signals,
    ):
        return _Supervisor(connection, settings, signals).run()


class _Supervisor:
    def __init__(
        self, connection: Connection, settings: SupervisorSettings, signals: Signals
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._signals = signals
        self._lines = Lines(settings.stage, settings.name, settings.as_json)
        self._schedule = Schedule(at_once=None if settings.idle_timeout is None else _AT_ONCE)
        self._workers: dict[str, Worker] = {}
        # A string is the name of a job whose worker is to be woken.
        self._events: Queue[Tasks | str | Away | Exception | None] = Queue()
        self._idle_monitor = IdleMonitor(settings.stage, settings.name, self._events.put)
        self._tasks = Tasks({}, frozenset())
        self._felt_at = 0.0
        self._informed = False
        self._broker_answers = True
        self._stopping = False
        self._view = View(time.monotonic(), settings.stage)
        self._start_process: Starter = start_process

    def run(self) -> int:
        settings = self._settings
        if settings.monitor is not None:
            serve(
                settings.monitor,
                registry_of(lambda: self._view),
                alive=lambda: liveness(self._view, time.monotonic()),
                ready=lambda: readiness(self._view, time.monotonic()),
            )
        which = "all jobs" if settings.pattern == "*" else f"jobs {settings.pattern}"
        self._lines.info(None, f"supervising {which}")
        meaning = partial(tasks_of, pattern=settings.pattern)
        look = [] if settings.idle_timeout is None else [self._idle_monitor.look]
        with ExitStack() as stack:
            if settings.idle_timeout is not None:
                # Workers start often and should not repeat all imports.
                log = supervisor_folder(settings.stage, settings.name) / "forker.log"
                self._start_process = stack.enter_context(Forks(WORKER_MODULES, log)).start
            stack.callback(self._end_all)
            follower = Follower(self._connection, meaning, self._events.put, *look)
            stack.enter_context(closing(follower))
            while not self._stopping or self._schedule.jobs:
                self._take_event()
                self._obey_signals()
                for worker in list(self._workers.values()):
                    if (ended := worker.ended()) is not None:
                        self._handle_exit(worker, *ended)
                self._work()
                self._kill_hung_workers()
                self._look()
        self._lines.info(None, "stopped")
        return 0

    def _end_all(self) -> None:
        end_all((each.process for each in self._workers.values() if each.process), timeout=0.0)
        for worker in self._workers.values():
            worker.close()

    def _take_event(self) -> None:
        try:
            event = self._events.get(timeout=_LOOK_SECONDS)
        except Empty:
            return
        match event:
            case Exception():
                raise event
            case Away(reason):
                self._broker_answers = False
                away = reason if event.rejected else f"Kafka does not answer ({reason})"
                waiting = "waiting for this permission" if event.rejected else "waiting"
                self._lines.warning(None, f"{away}; {waiting}")
            case None:
                self._broker_answers = True
                self._lines.info(None, "Kafka is back")
            case str():
                self._schedule.woken(event)
                if event in self._workers:
                    self._workers[event].awake = True
            case Tasks():
                self._take_tasks(event)

    def _take_tasks(self, tasks: Tasks) -> None:
        self._informed = True
        for job in sorted(tasks.unreadable - self._tasks.unreadable):
            self._lines.warning(job, "not run: deployed by an incompatible version of dpstream")
        for job in self._schedule.idle:
            before, after = (each.tasks.get(job) for each in (self._tasks, tasks))
            if before and after and before.phase is not after.phase:
                # Draining a job needs its workers.
                self._schedule.woken(job)
        self._tasks = tasks
        if not self._stopping:
            stage = self._settings.stage
            self._schedule.target(
                {job: task.version for job, task in tasks.tasks.items() if task.is_for(stage)}
            )

    def _obey_signals(self) -> None:
        if self._signals.received and not self._stopping:
            self._stopping = True
            self._schedule.target({})
        if self._signals.hurry():
            self._schedule.hurry()

    def _work(self) -> None:
        now = time.monotonic()
        for step in list(self._schedule.steps(now)):
            worker = self._workers.setdefault(step.job, Worker(step.job))
            match step:
                case Start():
                    self._start(worker, now)
                case Terminate(job) if worker.process:
                    self._lines.info(job, f"stopping the worker: {self._stop_reason(job)}")
                    worker.process.terminate()
                case Kill(job) if worker.process:
                    self._lines.warning(job, "the worker does not stop: killing it")
                    worker.process.kill()
        self._idle_monitor.keep(self._schedule.idle)
        for job in self._workers.keys() - self._schedule.jobs:
            self._workers.pop(job).close()

    def _kill_hung_workers(self) -> None:
        """Kill workers whose heartbeat has stopped, because they cannot exit themselves."""
        now, settings = time.monotonic(), self._settings
        if now < self._felt_at + HEARTBEAT_SECONDS:
            return
        self._felt_at = now
        for job, worker in self._workers.items():
            if worker.process is None:
                continue
            heartbeat = heartbeat_of(worker_folder(job, settings.stage, settings.name))
            stalled = worker.stalled(heartbeat, now)
            if stalled > HUNG_SECONDS:
                self._lines.warning(
                    job, f"no heartbeat from the worker for {stalled:.0f} s: killing it"
                )
                worker.process.kill()

    def _start(self, worker: Worker, now: float) -> None:
        settings, job = self._settings, worker.job
        worker.started_at = now
        if self._mark_idle(worker):
            return
        try:
            if settings.stage == SHUFFLE and self._tasks.tasks[job].deployed.needs_noise_key:
                NoiseKey.read(settings.noise_key(job))
            if settings.monitor is not None and worker.listening is None:
                worker.listening = socket.create_server(("127.0.0.1", 0))
            command = settings.command(job, self._connection)
            relay = partial(self._lines.relay, job)
            process = worker.start(command, relay, self._start_process)
        except (WrongKeyError, OSError) as error:
            self._schedule.ended(job, now)
            if now >= worker.warned_at + _SAY_AGAIN_SECONDS:
                worker.warned_at = now
                self._lines.warning(job, f"cannot start a worker: {error}")
        else:
            worker.warned_at = float("-inf")
            self._lines.info(job, f"starting a worker, process {process.pid}")

    def _mark_idle(self, worker: Worker, *, ended: bool = False) -> bool:
        """Mark a worker as idle if it has no work; return whether it is idle.

        `ended` means that the worker has just exited with code 0. A draining job keeps its workers,
        and a woken worker becomes idle only by its own decision.
        """
        settings, task = self._settings, self._tasks.tasks.get(worker.job)
        if settings.idle_timeout is None or task is None:
            return False
        if not ended and (worker.awake or task.phase is not Phase.RUNNING):
            return False
        idle_job = noted_idle_job(task.deployed, task.version, settings.stage, settings.name)
        if idle_job is None and not ended:
            idle_job = initial_idle_job(task.deployed, settings.stage, settings.name)
        worker.awake = idle_job is None
        if idle_job is None:
            return False
        self._schedule.idled(worker.job)
        self._idle_monitor.add(idle_job, reported=ended)
        return True

    def _handle_exit(self, worker: Worker, code: int, reason: str) -> None:
        job, how = worker.job, how_it_ended(code)
        if code == 0 and self._mark_idle(worker, ended=True):
            return
        wait = self._schedule.ended(job, time.monotonic())
        if wait is None:
            self._lines.info(job, f"the worker {how}")
            return
        worker.restarts += 1
        # All further lines only refer to the documentation.
        first = reason.partition("\n")[0]
        because = f" ({first})" if first else ""
        self._lines.warning(job, f"the worker {how}{because}; restarting in {wait:g} s")

    def _stop_reason(self, job: str) -> str:
        if self._stopping:
            return "the supervisor is stopping"
        task = self._tasks.tasks.get(job)
        if task is None:
            return "the job is no longer deployed"
        return "the job's record has changed" if task.phase.works else f"the job is {task.phase}"

    def _look(self) -> None:
        idle, idle_metrics = self._schedule.idle, self._idle_monitor.metrics()
        workers = (self._workers.get(job, Worker(job)) for job in sorted(self._schedule.jobs))
        self._view = View(
            at=time.monotonic(),
            stage=self._settings.stage,
            workers=tuple(
                Watched(
                    each.job,
                    each.port,
                    each.started_at,
                    idle_metrics.get(each.job, "") if each.job in idle else None,
                    each.restarts,
                )
                for each in workers
            ),
            informed=self._informed,
            broker_answers=self._broker_answers,
        )


_TEXT = re.compile(r"\d\d:\d\d:\d\d [^:]*: .*")


@dataclass(frozen=True, slots=True)
class Lines:
    stage: str
    worker: str
    as_json: bool = False
    stream: TextIO | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def info(self, job: str | None, message: str) -> None:
        with self.lock:
            self._about(job).info(message)

    def warning(self, job: str | None, message: str) -> None:
        with self.lock:
            self._about(job).warning(message)

    def relay(self, job: str, line: str) -> None:
        """Pass on a worker's log line; turn any other output into a log line for errors."""
        if line.startswith("{") if self.as_json else _TEXT.fullmatch(line):
            with self.lock:
                print(one_line(line), file=self._about(job).output, flush=True)
        elif line:
            with self.lock:
                self._about(job).error(line.removeprefix("error: "))

    def _about(self, job: str | None) -> LogLines:
        return LogLines(job, self.stage, self.worker, self.as_json, self.stream)
