"""Keeps one worker of a stage for every deployed job that needs one.

Everything happens in one loop. Other threads read the jobs topic, pass on what workers print and
answer scrapes; signals are only noted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, Queue

from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.jobs.key_files import NoiseKey, WrongKeyError
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.jobs_follower import Away, Follower
from dpstream.pipeline.kafka.workers.monitor import MonitorAddress, serve
from dpstream.pipeline.kafka.workers.watchdog import PULSE_SECONDS, pulse_of
from dpstream.pipeline.operations.forks import Forks
from dpstream.pipeline.operations.processes import Starter, how_it_ended, start_process
from dpstream.pipeline.operations.signals import Signals
from dpstream.pipeline.operations.supervisor.children import Children, Ended
from dpstream.pipeline.operations.supervisor.lines import Lines
from dpstream.pipeline.operations.supervisor.pulses import HUNG_SECONDS, Pulses
from dpstream.pipeline.operations.supervisor.rests import RestWatch, first_rest, noted_rest
from dpstream.pipeline.operations.supervisor.schedule import Kill, Schedule, Start, Terminate
from dpstream.pipeline.operations.supervisor.wanted import SHUFFLE, Task, Tasks, tasks_of
from dpstream.pipeline.operations.supervisor.watch import (
    View,
    Watched,
    liveness,
    readiness,
    registry_of,
)
from dpstream.pipeline.protocols.registry import OWN, module_of
from dpstream.pipeline.state import FolderLock, noise_key_file, supervisor_folder, worker_folder

_LOOK_SECONDS = 0.1
# Of workers that rest, so many are started within two seconds: all may be woken at once.
_AT_ONCE = 8
WORKER_MODULES = (
    "dpstream.pipeline.cli.run",
    "dpstream.pipeline.kafka.workers.worker",
    # What Faust imports when an application is made.
    "faust.app.router",
    "faust.assignor.partition_assignor",
    "faust.fixups.django",
    "faust.stores.memory",
    "faust.tables.manager",
    "faust.tables.sets",
    "faust.topics",
    # One of these: whose job it is, is not known yet.
    *sorted({f"dpstream.pipeline.protocols.{module_of(protocol)}" for protocol in OWN}),
)
"""What workers import."""
# What keeps a worker from being started is said again after so many seconds.
_SAY_AGAIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Woken:
    """There is something to do for a job whose worker rests."""

    job: str


@dataclass(frozen=True, slots=True)
class SupervisorSettings:
    """What to keep running.

    Attributes:
        stage: as in ``dpstream run STAGE``.
        name: of the workers, their own among the stage's on all machines.
        pattern: a shell pattern of job names.
        noise_keys: a folder with a file for each job; the default places without it.
        keys: the folder of sealing keys; the default one without it.
        as_json: whether lines are JSON.
        monitor: where metrics and health of all workers are served; nowhere by default.
        rest_after: seconds without anything to do after which a worker rests; never by default.
    """

    stage: str
    name: str
    pattern: str = "*"
    noise_keys: Path | None = None
    keys: Path | None = None
    as_json: bool = False
    monitor: MonitorAddress | None = None
    rest_after: float | None = None

    def noise_key(self, job: str) -> Path:
        """The file of a job's noise key."""
        return noise_key_file(job) if self.noise_keys is None else self.noise_keys / job

    def command(self, job: str, connection: Connection) -> Sequence[str]:
        """The dpstream command of a job's worker."""
        command = ["run", self.stage, job, "--name", self.name]
        command += ["--log-format", "json" if self.as_json else "text"]
        if self.stage == SHUFFLE and self.noise_keys is not None:
            command += ["--noise-key", str(self.noise_key(job))]
        if self.keys is not None:
            command += ["--keys", str(self.keys)]
        if self.rest_after is not None:
            command += ["--rest-after", str(self.rest_after)]
        return [*command, *connection.arguments()]


def supervise(connection: Connection, settings: SupervisorSettings) -> int:
    """Keep workers running until told to stop (SIGTERM, Ctrl-C); returns the exit code, 0.

    Raises:
        FolderInUse: there is another supervisor of this stage and name on this machine.
        WorkerError: metrics cannot be served.
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
        self._schedule = Schedule(at_once=None if settings.rest_after is None else _AT_ONCE)
        self._events: Queue[Tasks | Woken | Away | Exception | None] = Queue()
        self._rests: RestWatch | None = None
        self._tasks = Tasks({}, frozenset())
        self._started_at: dict[str, float] = {}
        self._awake: set[str] = set()
        self._pulses = Pulses()
        self._felt_at = 0.0
        self._restarts: Counter[str] = Counter()
        self._said_at: dict[str, float] = {}
        self._informed = False
        self._broker_answers = True
        self._stopping = False
        self._view = View(time.monotonic(), settings.stage)
        self._stack = ExitStack()

    def run(self) -> int:
        if self._settings.monitor is not None:
            serve(
                self._settings.monitor,
                registry_of(lambda: self._view),
                alive=lambda: liveness(self._view, time.monotonic()),
                ready=lambda: readiness(self._view, time.monotonic()),
            )
        pattern = self._settings.pattern
        self._lines.info(None, f"supervising {'all jobs' if pattern == '*' else f'jobs {pattern}'}")
        follower = Follower(self._connection, partial(tasks_of, pattern=pattern), self._events.put)
        with self._stack, closing(follower):
            self._children = self._make_children()
            while not self._stopping or self._schedule.jobs:
                self._take_events()
                self._obey_signals()
                for ended in self._children.ended():
                    self._take_note(ended)
                self._work()
                self._end_what_hangs()
                self._look()
        self._lines.info(None, "stopped")
        return 0

    def _make_children(self) -> Children:
        """Workers, and where they may rest what that takes: closed with `_stack`."""
        settings, connection = self._settings, self._connection
        start: Starter = start_process
        if settings.rest_after is not None:
            # They come and go: none is to import everything anew.
            log = supervisor_folder(settings.stage, settings.name) / "forker.log"
            start = self._stack.enter_context(Forks(WORKER_MODULES, log)).start
            self._rests = self._stack.enter_context(
                closing(RestWatch(connection, settings.stage, settings.name, self._note_woken))
            )
        return self._stack.enter_context(
            Children(
                lambda job: settings.command(job, connection),
                self._lines.relay,
                monitored=settings.monitor is not None,
                start=start,
            )
        )

    def _note_woken(self, job: str) -> None:
        self._events.put(Woken(job))

    def _take_events(self) -> None:
        try:
            event = self._events.get(timeout=_LOOK_SECONDS)
        except Empty:
            return
        match event:
            case Exception():
                raise event
            case Away(reason):
                self._broker_answers = False
                if event.refused:
                    self._lines.warning(None, f"{reason}; waiting for that")
                else:
                    self._lines.warning(None, f"Kafka does not answer ({reason}); waiting for it")
            case None:
                self._broker_answers = True
                self._lines.info(None, "Kafka is back")
            case Woken(job):
                self._schedule.woken(job)
                self._awake.add(job)
            case Tasks():
                self._informed = True
                for job in sorted(event.unreadable - self._tasks.unreadable):
                    self._lines.warning(job, "not run: deployed by another version of dpstream")
                for job in self._schedule.resting:
                    before, after = (each.tasks.get(job) for each in (self._tasks, event))
                    if before and after and before.phase is not after.phase:
                        # Who drains a job wants its workers.
                        self._schedule.woken(job)
                self._tasks = event
        if not self._stopping:
            stage = self._settings.stage
            self._schedule.wanted(
                {job: task.version for job, task in self._tasks.tasks.items() if task.is_for(stage)}
            )

    def _obey_signals(self) -> None:
        if self._signals.received and not self._stopping:
            self._stopping = True
            self._schedule.wanted({})
        if self._signals.hurry():
            self._schedule.hurry()

    def _work(self) -> None:
        now = time.monotonic()
        for step in list(self._schedule.steps(now)):
            match step:
                case Start(job):
                    self._start(job, now)
                case Terminate(job):
                    self._lines.info(job, f"ending the worker: {self._why_it_ends(job)}")
                    self._children.terminate(job)
                case Kill(job):
                    self._lines.warning(job, "the worker does not end: ending it by force")
                    self._children.kill(job)
        if self._rests is not None:
            self._rests.keep(self._schedule.resting)
        for job in self._started_at.keys() - self._schedule.jobs:
            self._children.forget(job)
            for held in (self._started_at, self._restarts, self._said_at):
                held.pop(job, None)
            self._awake.discard(job)

    def _end_what_hangs(self) -> None:
        """End workers that do nothing any more, not even end themselves."""
        now, settings = time.monotonic(), self._settings
        if now < self._felt_at + PULSE_SECONDS:
            return
        self._felt_at = now
        for job in self._children.running:
            stamp = pulse_of(worker_folder(job, settings.stage, settings.name))
            silent = self._pulses.silent(job, (self._started_at[job], stamp), now)
            if silent > HUNG_SECONDS:
                self._lines.warning(job, f"the worker hangs, silent for {silent:.0f} s: ending it")
                self._children.kill(job)
        self._pulses.keep(self._children.running)

    def _start(self, job: str, now: float) -> None:
        self._started_at[job] = now
        if self._lay_to_rest(job):
            return
        try:
            self._check_noise_key(self._tasks.tasks[job])
            pid = self._children.start(job)
        except (WrongKeyError, OSError) as error:
            self._schedule.ended(job, now)
            if now >= self._said_at.get(job, now - _SAY_AGAIN_SECONDS) + _SAY_AGAIN_SECONDS:
                self._said_at[job] = now
                self._lines.warning(job, f"no worker: {error}")
        else:
            self._said_at.pop(job, None)
            self._lines.info(job, f"starting a worker, process {pid}")

    def _lay_to_rest(self, job: str, *, ended: bool = False) -> bool:
        """Have a job's worker rest if there is nothing to do for it; `ended`: it has just said so.

        Who drains a job wants its workers, and what was woken is not laid to rest unasked.
        """
        task = self._tasks.tasks.get(job)
        if self._rests is None or task is None:
            return False
        settings, deployed = self._settings, task.deployed
        if not ended and (job in self._awake or task.phase is not Phase.RUNNING):
            return False
        rest = noted_rest(deployed, task.version, settings.stage, settings.name)
        if rest is None and not ended:
            rest = first_rest(deployed, settings.stage, settings.name)
        if rest is None:
            self._awake.add(job)
            return False
        self._awake.discard(job)
        self._schedule.rests(job)
        self._rests.add(rest, said=ended)
        return True

    def _check_noise_key(self, task: Task) -> None:
        if task.needs_noise_key and self._settings.stage == SHUFFLE:
            NoiseKey.read(self._settings.noise_key(task.job))

    def _take_note(self, ended: Ended) -> None:
        job, how = ended.job, how_it_ended(ended.code)
        if ended.code == 0 and self._lay_to_rest(job, ended=True):
            return
        wait = self._schedule.ended(job, time.monotonic())
        if wait is None:
            self._lines.info(job, f"the worker has ended {how}")
            return
        self._restarts[job] += 1
        # Further lines say where to look it up.
        reason = ended.reason.partition("\n")[0]
        because = f" ({reason})" if reason else ""
        self._lines.warning(
            job, f"the worker has ended {how}{because}, starting it again in {wait:g} s"
        )

    def _why_it_ends(self, job: str) -> str:
        if self._stopping:
            return "the supervisor is stopped"
        task = self._tasks.tasks.get(job)
        if task is None:
            return "the job is not deployed any more"
        return "its record has changed" if task.phase.works else f"the job is {task.phase}"

    def _look(self) -> None:
        resting = self._schedule.resting
        told = {} if self._rests is None else self._rests.metrics()
        self._view = View(
            at=time.monotonic(),
            stage=self._settings.stage,
            workers=tuple(
                Watched(
                    job,
                    self._children.port(job),
                    self._started_at.get(job, 0.0),
                    told.get(job, "") if job in resting else None,
                )
                for job in sorted(self._schedule.jobs)
            ),
            restarts=dict(self._restarts),
            informed=self._informed,
            broker_answers=self._broker_answers,
        )
