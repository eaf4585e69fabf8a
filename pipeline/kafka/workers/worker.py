"""Run one stage as one process.

`run_worker` blocks until the process gets SIGTERM or SIGINT, and then returns 0; nothing is lost.
If the worker cannot continue, it returns 1, and a line on standard error states the reason.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import signal
import threading
import time
import traceback
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import faust
from aiokafka.errors import KafkaConnectionError, KafkaError
from faust.types import AppT

from dpstream.pipeline.actions import Append
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.broker_clock import BrokerClock, own_milliseconds
from dpstream.pipeline.kafka.cluster_errors import (
    AccessError,
    RecordTooLargeError,
    WorkerError,
    access_problem,
    rejected_kind,
)
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.silent_peers import close_silent_connections
from dpstream.pipeline.kafka.workers import floor_of, group_name
from dpstream.pipeline.kafka.workers.app import build_app
from dpstream.pipeline.kafka.workers.broker_outage import Outage
from dpstream.pipeline.kafka.workers.execution import Execution
from dpstream.pipeline.kafka.workers.idle_note import IdleNote, IdleSettings, Quiet, idle_heartbeat
from dpstream.pipeline.kafka.workers.internals import rejection_of
from dpstream.pipeline.kafka.workers.kafka_log import KafkaLog
from dpstream.pipeline.kafka.workers.log_lines import LogLines
from dpstream.pipeline.kafka.workers.metrics import WorkerSnapshot, metrics_text, registry_of
from dpstream.pipeline.kafka.workers.monitor import MonitorAddress, serve
from dpstream.pipeline.kafka.workers.observer import Observer, WindowCounters
from dpstream.pipeline.kafka.workers.timings import Timings
from dpstream.pipeline.kafka.workers.topic_watch import GroupWatch, TopicWatch, UnassignedError
from dpstream.pipeline.kafka.workers.watchdog import (
    EventLoopHeartbeat,
    HeartbeatFile,
    Watchdog,
    guard,
    liveness,
    readiness,
)
from dpstream.pipeline.kafka.workers.worker_facts import heartbeat
from dpstream.pipeline.stages.idle_condition import IdleCondition
from dpstream.pipeline.stages.stage import Stage
from dpstream.pipeline.state import FolderInUse, FolderLock
from dpstream.pipeline.whole_files import naming
from dpstream.topics.names import Role
from dpstream.topics.topic_checks import clock_problem, wrong_clock

_LIBRARIES = ("aiokafka", "faust", "mode", "asyncio")
_STOP_SECONDS = 3.0
_GOODBYE_SECONDS = 1.0


def run_worker(
    stage: Stage,
    job: DeployedJob,
    connection: Connection,
    *,
    stage_name: str,
    worker: str,
    directory: Path,
    timings: Timings | None = None,
    lines: LogLines | None = None,
    windows: WindowCounters | None = None,
    monitor: MonitorAddress | None = None,
    clock: BrokerClock | None = None,
    used: Collection[Role] = (),
    idle_settings: IdleSettings | None = None,
) -> int:
    """Run a stage until this process is stopped; return the exit code.

    The process exits a few seconds after this function returns, even if a thread of Faust hangs.

    `stage` must be new and built for `job`; it reports its windows to `windows`, for metrics.
    `directory` is the worker's own folder, which it locks. A worker that is restarted in this
    folder gets its partitions back without disturbing other workers. `used` are the stage's topics
    to check for changes, including the one it reads. With `idle_settings`, the worker exits for
    lack of work, and leaves a note in `directory`.
    """
    lines = lines or LogLines(job.name, stage_name, worker)
    for library in _LIBRARIES:
        # These libraries log a hundred lines a second during an outage; the worker logs one.
        logging.getLogger(library).setLevel(logging.CRITICAL + 1)
    close_silent_connections()
    process = _Process(
        stage,
        job,
        connection,
        stage_name,
        worker,
        directory,
        timings or Timings(),
        lines,
        clock or BrokerClock(),
        used=used,
        idle_settings=idle_settings,
    )
    if monitor is not None:
        process.watch(monitor, windows or WindowCounters())
    try:
        with FolderLock(directory, f"worker {worker} of {job.name}"):
            return asyncio.run(process.run())
    except FolderInUse as error:
        lines.error(str(error))
        return 1


class _FaustWorker(faust.Worker):
    """Faust's process without its signal handlers, and without its spinner on standard error."""

    def __init__(self, app: AppT) -> None:
        super().__init__(app, quiet=True, override_logging=False, redirect_stdouts=False)
        self.spinner = None

    def install_signal_handlers(self) -> None:
        pass


@dataclass(slots=True)
class _Process:
    stage: Stage
    job: DeployedJob
    connection: Connection
    stage_name: str
    worker: str
    directory: Path
    timings: Timings
    lines: LogLines
    clock: BrokerClock
    used: Collection[Role] = ()
    idle_settings: IdleSettings | None = None
    idle_condition: IdleCondition | None = None
    ends: dict[int, int] = field(default_factory=dict)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    faust: _FaustWorker | None = None
    rejected: Callable[[], KafkaError | None] | None = None
    monitor: MonitorAddress | None = None
    observer: Observer | None = None
    log: KafkaLog = field(init=False)
    execution: Execution = field(init=False)
    outage: Outage = field(init=False)
    watchdog: Watchdog = field(init=False)
    topics: TopicWatch = field(init=False)
    stopping: bool = False
    clock_is_off: bool = False
    ended: asyncio.Future[None] = field(init=False)

    def watch(self, monitor: MonitorAddress, windows: WindowCounters) -> None:
        self.monitor = monitor
        blank = WorkerSnapshot(
            self.job.name,
            self.stage_name,
            group_name(self.job, self.stage_name),
            self.job.topic(self.stage.role),
            monitor.hides_messages,
            facts=monitor.facts,
        )
        self.observer = Observer(blank, windows, monitor.estimates)

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        self.ended = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, None)
        self.outage = Outage(",".join(self.connection.bootstrap_servers), self.lines.warning)
        options = {"client_id": self._client, **self.connection.aiokafka()}
        self.log = KafkaLog(
            options,
            self.job.topic,
            self.clock,
            self.connection.principal,
            look_seconds=self.timings.look,
        )
        self.topics = TopicWatch(self.job, self.stage.role, self.used)
        self.execution = Execution(
            self.stage,
            self.log,
            self.job.topic,
            starts=self.job.start_offsets[self.stage.role],
            pause=self.timings.pause,
            report=self.lines.info,
            fail=self._end,
        )
        self.watchdog = Watchdog(self.timings)
        guard(self.watchdog, self.lines.error)
        threading.excepthook = _report_thread_failure
        self._start(self._beat())
        self._start(self._serve())
        self._start(self._work())
        code = 0
        try:
            await self.ended
        except Exception as error:
            if isinstance(error, UnassignedError):
                _identity_file(self.directory).unlink(missing_ok=True)
            self.lines.error(self._describe(error))
            code = 1
        _exit_after(_STOP_SECONDS, code)
        # Without a broker, Faust's threads stop with an error, which does not matter.
        threading.excepthook = lambda failure: None
        if code == 0:
            await self._send_stopped()
        await self._stop()
        if code == 0:
            self.lines.info("stopped" if self.idle_condition is None else "idle: no work left")
        return code

    @property
    def _client(self) -> str:
        return f"dpstream-{self.stage_name}"

    def _end(self, error: BaseException | None) -> None:
        if not self.ended.done():
            if error is None:
                self.ended.set_result(None)
            else:
                self.ended.set_exception(error)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        def finished(task: asyncio.Task[None]) -> None:
            self.tasks.discard(task)
            if not task.cancelled() and task.exception() is not None:
                self._end(task.exception())

        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(finished)

    async def _stop(self) -> None:
        self.execution.revoked()
        for task in self.tasks:
            task.cancel()
        with suppress(Exception):
            if self.faust is not None:
                await self.faust.stop()
        await self.log.stop()

    async def _work(self) -> None:
        await self._connect()
        role = self.stage.role
        if not await self.log.partitions(role):
            await self.log.check_visible([role])
            raise WorkerError(f"topic {self.job.topic(role)} does not exist: deploy the job first")
        self._start(self._probe())
        self._start(self._watch_topics())
        self._start(self._tick())
        self._start(self._send_heartbeats())
        self._start(self._exit_when_idle())
        app = build_app(
            self.execution,
            self.connection,
            topic=self.job.topic(role),
            group=group_name(self.job, self.stage_name),
            client=self._client,
            instance=f"{self.worker}-{_identity(self.directory)}",
            directory=self.directory,
            timings=self.timings,
        )
        self.faust = _FaustWorker(app)
        self.rejected = partial(rejection_of, app)
        await self.faust.start()
        raise self.faust.crash_reason or WorkerError("Faust has stopped")

    async def _connect(self) -> None:
        while True:
            try:
                await self.log.start()
            except KafkaConnectionError:
                self.outage.note(answered=False)
                await asyncio.sleep(1.0)
            else:
                self.outage.note(answered=True)
                return

    async def _beat(self) -> None:
        execution, heartbeat_file = self.execution, HeartbeatFile(self.directory)
        while True:
            execution.beat()
            heartbeat_file.beat(time.monotonic())
            self.watchdog.beat(
                EventLoopHeartbeat(
                    restored=execution.restored,
                    broker_answers=self.outage.over,
                    work=execution.actions,
                    positions=dict(execution.positions),
                    ends=self.ends,
                )
            )
            await asyncio.sleep(self.timings.tick)

    async def _serve(self) -> None:
        monitor, observer = self.monitor, self.observer
        if monitor is None or observer is None:
            return
        serve(
            monitor,
            registry_of(lambda: observer.snapshot),
            alive=lambda: liveness(self.watchdog),
            ready=lambda: readiness(self.watchdog),
            look_seconds=max(0.5, self.timings.look),
        )
        while True:
            observer.observe(
                time.monotonic(),
                self.execution,
                self.stage,
                self.ends,
                broker_answers=self.outage.over,
                clock_ahead=self.clock.ahead(),
            )
            await asyncio.sleep(self.timings.status)

    async def _exit_when_idle(self) -> None:
        if self.idle_settings is None:
            return
        IdleNote.delete(self.directory)
        quiet = Quiet(self.idle_settings)
        while self.idle_condition is None:
            await asyncio.sleep(self.timings.tick)
            idle = self.execution.restored and self._has_read(self.ends)
            idle = idle and self.stage.idle_seconds() is not None
            if quiet.lasts(time.monotonic(), self.execution.done, idle=idle):
                self.idle_condition = await self._find_idle_condition(self.idle_settings.roles)
                quiet.restart()
        self._end(None)

    def _has_read(self, ends: Mapping[int, int]) -> bool:
        positions = self.execution.positions
        return bool(positions) and all(ends.get(each) == at for each, at in positions.items())

    async def _find_idle_condition(self, roles: Collection[Role]) -> IdleCondition | None:
        starts, role = self.job.start_offsets, self.stage.role
        try:
            async with asyncio.timeout(self.timings.probe):
                ends = {
                    each: await self.log.end_offsets(each, range(len(starts[each])))
                    for each in roles
                }
        except (KafkaError, TimeoutError):
            return None
        # Process all records up to these end offsets.
        await self.execution.tick()
        for partition, end in ends[role].items():
            committed = await self.execution.membership.committed(partition)
            if max(floor_of(committed), starts[role][partition]) != end:
                return None
        seconds = self.stage.idle_seconds()
        if seconds is None or not self.execution.restored or not self._has_read(ends[role]):
            return None
        # Order the offsets by partition.
        end_offsets = {each: tuple(end for _, end in sorted(ends[each].items())) for each in roles}
        return IdleCondition(end_offsets, seconds)

    async def _tick(self) -> None:
        while True:
            await self.execution.tick()
            await asyncio.sleep(self.timings.tick)

    async def _probe(self) -> None:
        partitions = range(self.topics.partitions)
        while True:
            reached = dict(self.execution.reached)
            try:
                async with asyncio.timeout(self.timings.probe):
                    self.ends = await self.log.end_offsets(self.stage.role, partitions)
            except (KafkaError, TimeoutError):
                if not await self._see_topics():
                    self.outage.note(answered=False)
            else:
                self.outage.note(answered=True)
                self.topics.see_ends(self.ends, reached)
            if self.rejected is not None and (rejection := self.rejected()) is not None:
                raise rejection
            await asyncio.sleep(self.timings.ends)

    async def _watch_topics(self) -> None:
        logged: tuple[str, ...] = ()
        group = GroupWatch(self.topics.partitions, self.timings.session)
        while True:
            await asyncio.sleep(self.timings.topics)
            await self._see_topics()
            group.see(await self._assigned(), time.monotonic())
            wrong = await self._topics_of_other_clocks()
            if wrong and wrong != logged:
                self.lines.warning(clock_problem(self.job.name, wrong))
            logged = wrong

    async def _assigned(self) -> Collection[int] | None:
        if len(self.execution.positions) == self.topics.partitions:
            return self.execution.positions
        try:
            async with asyncio.timeout(self.timings.probe):
                group = group_name(self.job, self.stage_name)
                return await self.log.assigned(group, self.stage.role)
        except (KafkaError, TimeoutError):
            return None

    async def _topics_of_other_clocks(self) -> tuple[str, ...]:
        try:
            async with asyncio.timeout(self.timings.probe):
                settings = await self.log.settings(self.topics.used)
        except (KafkaError, TimeoutError):
            # This worker might lack access; `dpstream status` also reports it.
            return ()
        return tuple(name for name, configs in settings.items() if wrong_clock(configs))

    async def _see_topics(self) -> bool:
        """Check the topics for changes; return whether the broker answers."""
        try:
            async with asyncio.timeout(self.timings.probe):
                counts = await self.log.partition_counts(self.topics.used)
                gone = [role for role in self.topics.used if not counts[role]]
                if gone:
                    await self.log.check_visible(gone)
                ids = await self.log.topic_ids(self.topics.used)
        except (KafkaError, TimeoutError):
            return False
        self.topics.see_ids(ids)
        for message in self.topics.see_partitions(counts):
            self.lines.warning(message)
        return True

    async def _send_heartbeats(self) -> None:
        execution = self.execution
        # Write the first heartbeat immediately: its acknowledgement contains the broker's time.
        before, records = time.monotonic() - self.timings.status, 0
        while True:
            if self.stopping:
                # No heartbeat must follow the final one.
                return
            now = time.monotonic()
            words = heartbeat(
                self.stage.heartbeat(),
                execution.positions,
                self.ends,
                execution.records - records,
                now - before,
            )
            before, records = now, execution.records
            await self._send_heartbeat(words)
            self._check_clock()
            await asyncio.sleep(self.timings.status)

    def _check_clock(self) -> None:
        problem = self.clock.problem()
        if problem is not None and not self.clock_is_off:
            self.lines.warning(f"{problem}: correct it; this worker uses the broker's clock")
        if problem is None and self.clock_is_off:
            self.lines.info("this machine's clock is correct again")
        self.clock_is_off = problem is not None

    def _describe(self, error: BaseException) -> str:
        text = " ".join(str(error).split())
        if isinstance(error, AccessError):
            return error.asking_for(self.stage_name)
        if isinstance(error, WorkerError | RecordTooLargeError):
            return text
        if rejected_kind(error) == "group":
            group = group_name(self.job, self.stage_name)
            return access_problem(
                self.connection.principal, "join", "group", group, self.stage_name
            )
        if rejected_kind(error) == "cluster":
            # Kafka's answer to an idempotent producer without write access to any topic.
            topic = self.job.topic(Role.STATUS)
            return access_problem(
                self.connection.principal, "write", "topic", topic, self.stage_name
            )
        if isinstance(error, KafkaConnectionError):
            return f"Kafka is unreachable: {text}"
        if isinstance(error, KafkaError):
            return (
                f"Kafka rejected a request: {text}. 'dpstream status {self.job.name}' prints "
                "changed settings"
            )
        return _unexpected(error)

    async def _send_stopped(self) -> None:
        self.stopping = True
        with suppress(Exception):
            # Keep the count of finalized windows, which must survive the worker.
            finalized = {
                key: entry for key, entry in self.stage.heartbeat().items() if key == "finalized"
            }
            words = (
                {"stopped": True, **finalized}
                if self.idle_condition is None
                else idle_heartbeat(**finalized)
            )
            async with asyncio.timeout(_GOODBYE_SECONDS):
                await self._send_heartbeat(words)
                if self.idle_condition is not None and self.idle_settings is not None:
                    # Write the note only after the heartbeat, which the note's reader repeats.
                    IdleNote(
                        self.idle_condition, self.idle_settings.version, self._word(words)
                    ).write(self.directory, self._metrics())

    def _metrics(self) -> str:
        observer = self.observer
        return "" if observer is None else metrics_text(observer.snapshot)

    async def _send_heartbeat(self, words: Mapping[str, object]) -> None:
        value = json.dumps(self._word(words), allow_nan=False, separators=(",", ":")).encode()
        key = f"{self.stage_name}/{self.worker}".encode()
        await self.log.write(Append(Role.STATUS, 0, value, key=key))

    def _word(self, words: Mapping[str, object]) -> dict[str, object]:
        return {
            **words,
            "deployment": self.job.deployment.hex(),
            "stage": self.stage_name,
            "worker": self.worker,
            "time": own_milliseconds(),
            "clock_ahead": None if (ahead := self.clock.ahead()) is None else round(ahead, 1),
        }


def _unexpected(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"unexpected {type(error).__name__}: {' '.join(str(error).split())}{where}"


def _identity(directory: Path) -> str:
    """Return the part of the group instance ID that names the worker; the first call creates it.

    Two live workers with the same ID would evict each other forever. The ID is stored in the
    worker's folder, which only one process can lock.
    """
    path = _identity_file(directory)
    if not path.exists():
        fresh = path.with_suffix(".new")
        with naming(path):
            fresh.write_text(secrets.token_hex(8))
        fresh.replace(path)
    return path.read_text()


def _report_thread_failure(failure: threading.ExceptHookArgs) -> None:
    """Print where a thread failed, except for a Kafka error, which ends the worker anyway."""
    if failure.exc_type is None or not issubclass(failure.exc_type, KafkaError):
        threading.__excepthook__(failure)


def _identity_file(directory: Path) -> Path:
    return directory / "identity"


def _exit_after(seconds: float, code: int) -> None:
    """Exit this process after `seconds`, even if something fails to stop; nothing is lost."""

    def exit_now() -> None:
        time.sleep(seconds)
        os._exit(code)

    threading.Thread(target=exit_now, name="exit", daemon=True).start()
