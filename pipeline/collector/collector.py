"""Run a collector, which stores nothing: devices resend reports that are not acknowledged."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import ssl
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from dpstream.pipeline.collector.accepting import Listener, listen
from dpstream.pipeline.collector.batch_writer import (
    BatchWriter,
    IntakeCapacity,
    Watermarks,
    WriteError,
)
from dpstream.pipeline.collector.collector_metrics import CollectorSnapshot, JobCounts, registry_of
from dpstream.pipeline.collector.http_connections import HttpConnections
from dpstream.pipeline.collector.http_limits import HttpLimits, Rates
from dpstream.pipeline.collector.intake import Intake, SelectedJobs, selected_jobs
from dpstream.pipeline.collector.kafka_writer import KafkaWriter
from dpstream.pipeline.collector.service import Access, Served, Service
from dpstream.pipeline.collector.tokens import TokenCheck
from dpstream.pipeline.errors import WRONG_INPUT, DpstreamError
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_files import CollectorKey, WrongKeyError
from dpstream.pipeline.kafka.broker_clock import BrokerClock, own_milliseconds
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.jobs_follower import Away, Follower
from dpstream.pipeline.kafka.stored_state import recreated
from dpstream.pipeline.kafka.workers.log_lines import LogLines
from dpstream.pipeline.kafka.workers.monitor import MonitorAddress
from dpstream.pipeline.kafka.workers.monitor import serve as serve_monitor
from dpstream.pipeline.kafka.workers.watchdog import Health
from dpstream.pipeline.open_files import room_for_files
from dpstream.pipeline.state import collector_key_file
from dpstream.topics.loose_batches import Watermark, encode_watermark
from dpstream.topics.names import Role

STAGE: Final = "collect"
ID_BYTES: Final = 16
_FILES_BESIDES: Final = 100
_STATUS_SECONDS: Final = 1.0
_WATERMARK_SECONDS: Final = 0.1
_TICK_SECONDS: Final = 0.5
_TOPICS_SECONDS: Final = 5.0
_WRITTEN: Final = frozenset({Role.REPORTS, Role.DEVICES})
_SAID_SECONDS: Final = 10.0
_AWAY_SECONDS: Final = 10.0
_ENDING_SECONDS: Final = 20.0
_RETRY_SECONDS: Final = 0.5
# Time to send the last answers on open connections.
_LAST_ANSWERS_SECONDS: Final = 0.25


class CollectorError(DpstreamError):
    exit_code = WRONG_INPUT


class LogWriter(Protocol):
    async def start(self) -> None: ...

    async def write(
        self, topic: str, partition: int, value: bytes, key: bytes | None = None
    ) -> int | None: ...

    async def topic_ids(self, topics: Collection[str]) -> dict[str, str]: ...

    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class CollectorSettings:
    """A collector's address, jobs and limits for clients.

    Port 0 means any free port. Without `jobs`, it serves all jobs with a ``devices`` section.
    `key_file` has the collectors' shared key; None means each job's default file. `rate` is the
    maximum of requests per second from one address.
    """

    host: str = "127.0.0.1"
    port: int = 8300
    jobs: tuple[str, ...] = ()
    key_file: Path | None = None
    tls: ssl.SSLContext | None = None
    access: Access = field(default_factory=Access)
    rate: float | None = None
    limits: HttpLimits = field(default_factory=HttpLimits)
    as_json: bool = False
    monitor: MonitorAddress | None = None


@dataclass(eq=False)
class _Running:
    served: Served
    watermarks: Watermarks | None = None
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class Collector:
    def __init__(
        self,
        settings: CollectorSettings,
        writer: LogWriter,
        clock: BrokerClock,
        lines: Callable[[str | None], LogLines],
        identity: bytes | None = None,
    ) -> None:
        self.identity = secrets.token_bytes(ID_BYTES) if identity is None else identity
        self.settings = settings
        self.rejected: Counter[str] = Counter()
        self._writer = writer
        self._clock = clock
        self._lines = lines
        self._capacity = IntakeCapacity()
        self._running: dict[str, _Running] = {}
        self._lost: dict[bytes, str] = {}
        self._selected = SelectedJobs({}, {})
        self._logged: dict[str, str] = {}
        self._answered = float("-inf")
        self._ticked = time.monotonic()
        self._said_error = float("-inf")
        self._tasks: list[asyncio.Task[None]] = []
        self._changes: asyncio.Task[None] | None = None
        self._listener: Listener | None = None
        rates = None if settings.rate is None else Rates(settings.rate, time.monotonic)
        self.service = Service(
            clock,
            settings.access,
            rates,
            kafka_answers=self.kafka_answers,
            rejected=self._count_rejection,
        )
        self.connections = HttpConnections(
            self.service.handle,
            self.service.look,
            self.service.allowed,
            settings.limits,
            self._failed,
            settings.access.is_proxy,
        )

    @property
    def waiting(self) -> int:
        return self._capacity.waiting

    @property
    def served(self) -> list[Served]:
        return [running.served for running in self._running.values()]

    def snapshot(self) -> CollectorSnapshot:
        """Return the data for metrics; safe to call from any thread."""
        jobs = {}
        for served in list(self.service.jobs.values()):
            counters = served.batch_writer.counters
            jobs[served.job.name] = JobCounts(
                counters.received, counters.acknowledged, counters.records, dict(counters.rejected)
            )
        answers = self.kafka_answers()
        return CollectorSnapshot(
            answers
            and self.service.informed
            and not self.service.stopping
            and self.liveness().good,
            answers,
            len(self.connections.open),
            self.waiting,
            dict(self.rejected),
            jobs,
        )

    def liveness(self) -> Health:
        if time.monotonic() - self._ticked > _AWAY_SECONDS:
            return Health(False, "the event loop is blocked")
        return Health(True, "alive")

    def readiness(self) -> Health:
        ready = self.snapshot().ready
        return Health(ready, "ready" if ready else "receives no reports now")

    def kafka_answers(self) -> bool:
        return time.monotonic() - self._answered < _AWAY_SECONDS

    async def start(self) -> str:
        """Start the server and return its address; raise CollectorError if that is unavailable."""
        loop = asyncio.get_running_loop()
        self.connections.tick(loop.time())
        settings = self.settings
        try:
            sockets = listen(settings.host, settings.port)
        except OSError as error:
            raise CollectorError(
                f"cannot listen on {settings.host}, port {settings.port}: {error.strerror}. "
                "Use another --bind, or port 0 for any free port"
            ) from None
        self._listener = Listener(self.connections, sockets, settings.tls)
        self._tasks = [
            loop.create_task(self._connect()),
            loop.create_task(self._tick()),
        ]
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        return f"{'http' if settings.tls is None else 'https'}://{host}:{self._listener.port}"

    def take(self, news: SelectedJobs | Away | Exception | None) -> None:
        match news:
            case SelectedJobs():
                self._set_jobs(news)
            case Away(reason):
                away = reason if news.rejected else f"Kafka does not answer: {reason}"
                self._lines(None).warning(away)
            case Exception():
                self._failed(news)
            case None:
                self._lines(None).info("Kafka answers again")

    async def stop(self) -> None:
        self.service.stopping = True
        self.connections.close_idle()
        with suppress(TimeoutError):
            async with asyncio.timeout(_ENDING_SECONDS):
                await asyncio.gather(
                    *(each.batch_writer.finish() for each in self.served),
                )
                await asyncio.gather(*(self._end_job(run) for run in self._running.values()))
        await asyncio.sleep(_LAST_ANSWERS_SECONDS)
        if self._listener is not None:
            await self._listener.close()
        self.connections.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._writer.stop()

    def _set_jobs(self, selected: SelectedJobs) -> None:
        self._selected = selected
        for name, why in selected.rejected.items():
            self._log_once(name, why)
        for name, running in list(self._running.items()):
            new = selected.jobs.get(name)
            if new is None or new.job.deployment != running.served.job.deployment:
                del self._running[name]
                self._leave(running)
        for name, new in selected.jobs.items():
            known = self._running.get(name)
            if known is not None and known.served.job == new.job:
                known.served.phase = new.phase
                continue
            checks = self._checks(new.job)
            if checks is None:
                if known is not None:
                    del self._running[name]
                    self._leave(known)
                continue
            intake, tokens = checks
            if known is None:
                batch_writer = BatchWriter(
                    intake, self._writer, self._capacity, self._failed, self._clock.now
                )
                self._run(name, Served(new.job, batch_writer, tokens, new.phase))
                continue
            # Apply the operator's changes; reports in flight continue.
            batch_writer = known.served.batch_writer
            batch_writer.intake = intake
            known.served = Served(new.job, batch_writer, tokens, new.phase)
            if known.watermarks is not None:
                known.watermarks.intake = intake
        self.service.jobs = {name: each.served for name, each in self._running.items()}
        self.service.unserved = frozenset(selected.jobs.keys() - self._running.keys())
        self.service.informed = True

    def _checks(self, job: DeployedJob) -> tuple[Intake, TokenCheck | None] | None:
        assert job.devices is not None
        said = job.devices.tokens
        if job.deployment in self._lost:
            self._log_once(job.name, self._lost[job.deployment])
            return None
        try:
            key = CollectorKey.read(self.settings.key_file or collector_key_file(job.name))
            tokens = None if said is None else TokenCheck(said, job.name, self._clock.milliseconds)
            checks = Intake(job, key), tokens
        except (WrongKeyError, ValueError) as error:
            self._log_once(job.name, str(error))
            return None
        self._logged.pop(job.name, None)
        return checks

    def _run(self, name: str, served: Served) -> None:
        running = _Running(served)
        self._running[name] = running
        self._start_watermarks(running)
        loop = asyncio.get_running_loop()
        running.tasks = [
            loop.create_task(self._tell_status(running)),
            loop.create_task(self._send_watermarks(running)),
            loop.create_task(self._watch_topics(running)),
        ]
        self._lines(name).info("receiving reports")

    def _leave(self, running: _Running) -> None:
        for task in running.tasks:
            task.cancel()
        task = asyncio.get_running_loop().create_task(running.served.batch_writer.finish())
        self._tasks.append(task)
        if running.served.job.deployment not in self._lost:
            self._lines(running.served.job.name).info(
                "undeployed or replaced: no longer receiving reports"
            )

    async def _end_job(self, running: _Running) -> None:
        for task in running.tasks:
            task.cancel()
        await asyncio.gather(*running.tasks, return_exceptions=True)
        with suppress(WriteError):
            await self._write_watermarks(running)
            await self._send_heartbeat(running.served, {"stopped": True})

    async def _connect(self) -> None:
        while True:
            try:
                await self._writer.start()
                return
            except WriteError as error:
                self._complain(f"Kafka does not answer: {error}")
                await asyncio.sleep(_RETRY_SECONDS)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._ticked = time.monotonic()
            self.connections.tick(loop.time())
            self._tasks = [task for task in self._tasks if not task.done()]
            await asyncio.sleep(_TICK_SECONDS)

    async def _tell_status(self, running: _Running) -> None:
        while True:
            served = running.served
            try:
                await self._send_heartbeat(served, self._words(served))
                self._start_watermarks(running)
            except WriteError as error:
                self._complain(f"Kafka does not accept the status of this collector: {error}")
            await asyncio.sleep(_STATUS_SECONDS)

    async def _watch_topics(self, running: _Running) -> None:
        """Stop accepting reports for a job whose topics were deleted and recreated."""
        while True:
            job = running.served.job
            names = {
                job.topic(role): job.topic_ids[role] for role in _WRITTEN & job.topic_ids.keys()
            }
            with suppress(WriteError):
                for name, found in (await self._writer.topic_ids(names)).items():
                    if found != names[name]:
                        self._lost[job.deployment] = recreated(job.name, name)
            if job.deployment in self._lost:
                self._leave(self._running.pop(job.name))
                self._set_jobs(self._selected)
            await asyncio.sleep(_TOPICS_SECONDS)

    def _words(self, served: Served) -> dict[str, object]:
        counters = served.batch_writer.counters
        return {
            "partitions": [],
            "busy": self._capacity.waiting > 0,
            "counts": {
                "received": counters.received,
                "reports": counters.acknowledged,
                **{
                    f"rejected {reason}": count
                    for reason, count in sorted(counters.rejected.items())
                },
            },
            "waiting": self._capacity.waiting,
        }

    async def _send_heartbeat(self, served: Served, words: Mapping[str, object]) -> None:
        job, name = served.job, self.identity.hex()
        ahead = self._clock.ahead()
        said = {
            **words,
            "deployment": job.deployment.hex(),
            "stage": STAGE,
            "worker": name,
            "time": own_milliseconds(),
            "clock_ahead": None if ahead is None else round(ahead, 1),
        }
        value = json.dumps(said, allow_nan=False, separators=(",", ":")).encode()
        await self._writer.write(job.topic(Role.STATUS), 0, value, f"{STAGE}/{name}".encode())
        self._answered = time.monotonic()

    def _start_watermarks(self, running: _Running) -> None:
        """Start watermarks at the epochs that are open, once the broker's time is known."""
        now = self._clock.now()
        if running.watermarks is None and now is not None:
            running.watermarks = Watermarks(running.served.batch_writer.intake, now)

    async def _send_watermarks(self, running: _Running) -> None:
        while True:
            await asyncio.sleep(_WATERMARK_SECONDS)
            self._start_watermarks(running)
            try:
                await self._write_watermarks(running)
            except WriteError as error:
                self._complain(f"Kafka does not accept watermarks: {error}")

    async def _write_watermarks(self, running: _Running) -> None:
        now, batch_writer = self._clock.now(), running.served.batch_writer
        if now is None or running.watermarks is None:
            return
        job = running.served.job
        for epoch in running.watermarks.due(now):
            batch_writer.close(epoch)
            if batch_writer.is_open(epoch):
                return
            record = encode_watermark(
                Watermark(job.fingerprint, job.deployment, self.identity, epoch)
            )
            await self._writer.write(
                job.topic(Role.REPORTS), job.topics.partition_of(epoch), record
            )
            running.watermarks.mark_sent(epoch)
            reports = batch_writer.counters.epochs.pop(epoch, 0)
            counted = f"{reports:,} report{'' if reports == 1 else 's'}"
            self._lines(job.name).info(f"epoch {epoch} has ended: received {counted}")

    def _count_rejection(self, reason: str) -> None:
        self.rejected[reason] += 1

    def _log_once(self, name: str, why: str) -> None:
        if self._logged.get(name) != why:
            self._logged[name] = why
            self._lines(name).warning(f"no reports of this job are accepted: {why}")

    def _complain(self, sentence: str) -> None:
        now = time.monotonic()
        if now - self._said_error >= _SAID_SECONDS:
            self._said_error = now
            self._lines(None).warning(sentence)

    def _failed(self, error: Exception) -> None:
        # Log only the class: the message can contain a client's data.
        self._complain(f"a request failed with status 500: {type(error).__name__}")


async def collect(
    settings: CollectorSettings,
    connection: Connection,
    ready: Callable[[str], None],
) -> None:
    """Run a collector until the process is stopped; `ready` is called with the address."""
    clock = BrokerClock()
    identity = secrets.token_bytes(ID_BYTES)
    lines = partial(LogLines, stage=STAGE, worker=identity.hex()[:8], as_json=settings.as_json)
    collector = Collector(settings, KafkaWriter(connection, clock), clock, lines, identity)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)

    def tell(news: SelectedJobs | Away | Exception | None) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(collector.take, news)

    address = await collector.start()
    if settings.monitor is not None:
        serve_monitor(
            settings.monitor,
            registry_of(collector.snapshot),
            alive=collector.liveness,
            ready=collector.readiness,
        )
    follower = Follower(connection, partial(selected_jobs, names=settings.jobs), tell)
    ready(address)
    await ended.wait()
    await collector.stop()
    follower.close()


def raise_file_limit(connections: int) -> int:
    """Raise the open-file limit for `connections`; return how many connections are possible."""
    return room_for_files(connections + _FILES_BESIDES) - _FILES_BESIDES
