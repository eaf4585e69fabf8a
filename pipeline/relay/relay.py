"""Runs a relay: an event loop that answers, and a thread that follows the deployed jobs.

It keeps nothing. What it has acknowledged is in Kafka; what it has not, gateways send again, and
the shuffle stage drops what came twice.
"""

from __future__ import annotations

import asyncio
import signal
import ssl
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from pipeline.collector.accepting import Listener, listen
from pipeline.collector.collector import LogWriter
from pipeline.collector.gathering import WriteError
from pipeline.collector.http_connections import Connections
from pipeline.collector.http_limits import HttpLimits
from pipeline.collector.kafka_writer import KafkaWriter
from pipeline.collector.loop_pulse import LoopPulse
from pipeline.collector.server_metrics import ServerSnapshot
from pipeline.errors import WRONG_INPUT, DpstreamError
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.jobs_topic import JobsTopic
from pipeline.kafka.broker_clock import BrokerClock
from pipeline.kafka.connection import Connection
from pipeline.kafka.workers.health import Health
from pipeline.kafka.workers.monitor import MonitorAddress
from pipeline.kafka.workers.monitor import serve as serve_monitor
from pipeline.operations.supervisor.wanted import Away, Follower
from pipeline.relay.bundling import Ready
from pipeline.relay.metrics import JobCounts, RelaySnapshot, registry_of
from pipeline.relay.service import Relayed, Service
from topics.frames import RECORD_CAP

CONNECTIONS: Final = 20_000
"""That may be open at once: ten thousand gateways have one each, and may be about to change it."""
GATHER_SECONDS: Final = 0.1
"""How long the first record of a bundle waits for others."""
_TICK_SECONDS: Final = 0.5
_AWAY_SECONDS: Final = 10.0
_ENDING_SECONDS: Final = 20.0
_RETRY_SECONDS: Final = 0.5
_SAID_SECONDS: Final = 10.0
_LAST_ANSWERS_SECONDS: Final = 0.25


class RelayError(DpstreamError):
    """A relay cannot be run as it should be; the message says what to do."""

    exit_code = WRONG_INPUT


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Where a relay answers, and for whom.

    Attributes:
        host: of the interface.
        port: 0 for any that is free.
        jobs: names of those it is for; none: all that take bundles.
        tokens: see `pipeline.relay.service.digests_of`; None: whoever reaches it may send.
        tls: None: it speaks HTTP without.
        limits: of what gateways may use.
        monitor: where metrics are served; None: nowhere.
    """

    host: str = "127.0.0.1"
    port: int = 8400
    jobs: tuple[str, ...] = ()
    tokens: tuple[bytes, ...] | None = None
    tls: ssl.SSLContext | None = None
    limits: HttpLimits = field(
        default_factory=lambda: replace(
            HttpLimits(), connections=CONNECTIONS, body_bytes=RECORD_CAP
        )
    )
    monitor: MonitorAddress | None = None


@dataclass(frozen=True, slots=True)
class RelayableJobs:
    """What the topic of jobs says at one moment.

    Attributes:
        jobs: that take bundles, of those that are wanted.
        refused: names of others that were named, and why.
    """

    jobs: tuple[DeployedJob, ...]
    refused: tuple[tuple[str, str], ...]


def relayable_jobs(topic: JobsTopic, names: Collection[str] = ()) -> RelayableJobs:
    """What the state of the topic means for a relay.

    Args:
        topic: as far as it was read.
        names: of the jobs that it is for; none: of all that take bundles.
    """
    jobs, others = [], []
    for name, job in sorted(topic.jobs.items()):
        if names and name not in names:
            continue
        if job.bundles and job.replay_of is None:
            jobs.append(job)
        elif names:
            others.append((name, "it was not deployed to wait for a hundred producers or more"))
    missing = sorted(set(names) - topic.jobs.keys())
    others += [(name, "it is not deployed; its records are taken then") for name in missing]
    return RelayableJobs(tuple(jobs), tuple(others))


class Relay:
    """A relay, to be made and run in one event loop.

    Args:
        settings: where and for whom.
        writer: to Kafka.
        tell: is told what people should know, in sentences.
    """

    def __init__(
        self, settings: RelaySettings, writer: LogWriter, tell: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._writer = writer
        self._tell = tell
        self._answered = float("-inf")
        self._pulse = LoopPulse()
        self._said = float("-inf")
        self._refused: dict[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._writes: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._listener: Listener | None = None
        self.service = Service(self, settings.tokens, ready=self._kafka_answers)
        self.connections = Connections(
            self.service.handle,
            self.service.look,
            lambda request: (),
            settings.limits,
            lambda error: self._complain(f"something failed: {type(error).__name__}"),
        )

    def snapshot(self) -> RelaySnapshot:
        """What it tells Prometheus; any thread may call it."""
        service, answers = self.service, self._kafka_answers()
        jobs = service.jobs
        counts = {}
        for name, each in (jobs or {}).items():
            told = JobCounts(each.received, each.acknowledged, dict(each.refused))
            if not each.job.counts_devices:
                told = replace(told, records=each.records, bundles=each.bundles)
            counts[name] = told
        return ServerSnapshot(
            answers and jobs is not None and not service.stopping and self.liveness().good,
            answers,
            len(self.connections.open),
            service.waiting,
            dict(service.refused),
            counts,
        )

    def liveness(self) -> Health:
        """Whether the event loop ticks."""
        return self._pulse.liveness()

    def readiness(self) -> Health:
        """Whether records are taken."""
        ready = self.snapshot().ready
        return Health(ready, "ready" if ready else "takes no records at present")

    async def start(self) -> str:
        """Begin to answer; returns the address.

        Raises:
            RelayError: the port is taken, or the address is not this machine's.
        """
        loop, settings = asyncio.get_running_loop(), self._settings
        self.connections.tick(loop.time())
        try:
            sockets = listen(settings.host, settings.port)
        except OSError as error:
            raise RelayError(
                f"cannot answer at {settings.host}, port {settings.port}: {error.strerror}; give "
                "another --bind, or port 0 for one that is free"
            ) from None
        self._listener = Listener(self.connections, sockets, settings.tls)
        self._tasks = [loop.create_task(self._connect()), loop.create_task(self._tick())]
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        return f"{'http' if settings.tls is None else 'https'}://{host}:{self._listener.port}"

    def take(self, news: RelayableJobs | Away | Exception | None) -> None:
        """What was found out about jobs; in the event loop."""
        match news:
            case RelayableJobs(jobs, others):
                self._set_jobs(jobs)
                for name, why in others:
                    if self._refused.get(name) != why:
                        self._refused[name] = why
                        self._tell(f"job {name}: nothing is taken: {why}")
            case Away(reason):
                self._tell(reason if news.refused else f"Kafka does not answer: {reason}")
            case Exception():
                self._complain(f"jobs are not followed any more: {type(news).__name__}")
            case None:
                self._tell("Kafka answers again")

    def write(self, job: str, ready: Sequence[Ready]) -> None:
        """As of `pipeline.relay.service.Scheduler`."""
        for each in ready:
            task = asyncio.get_running_loop().create_task(self._write(each))
            self._writes.add(task)
            task.add_done_callback(self._writes.discard)

    def begin(self) -> None:
        """As of `pipeline.relay.service.Scheduler`."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_SECONDS, self._flush)

    async def stop(self) -> None:
        """Take no more, write what was taken, and leave."""
        self.service.stopping = True
        self.connections.close_idle()
        self._flush()
        with suppress(TimeoutError):
            async with asyncio.timeout(_ENDING_SECONDS):
                await asyncio.gather(*self._writes)
        await asyncio.sleep(_LAST_ANSWERS_SECONDS)
        if self._listener is not None:
            await self._listener.close()
        self.connections.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._writer.stop()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.service.flush()

    def _set_jobs(self, jobs: Sequence[DeployedJob]) -> None:
        # What waits of a job that was deployed anew goes to where it was meant for.
        self._flush()
        known = self.service.jobs or {}
        kept = {}
        for job in jobs:
            relayed = known.get(job.name)
            if relayed is None or relayed.job != job:
                relayed = Relayed(job)
                self._tell(f"job {job.name}: taking records of its producers")
            kept[job.name] = relayed
        for name in known.keys() - kept.keys():
            self._tell(f"job {name}: ended, nothing more is taken")
        self.service.jobs = kept

    async def _write(self, ready: Ready) -> None:
        try:
            await self._writer.write(ready.place.topic, ready.place.partition, ready.value)
        except WriteError as error:
            self._complain(f"Kafka does not take records: {error}")
            self.service.settle(ready, acknowledged=False)
        except BaseException:
            self.service.settle(ready, acknowledged=False)
            raise
        else:
            self._answered = time.monotonic()
            self.service.settle(ready, acknowledged=True)

    async def _connect(self) -> None:
        while True:
            try:
                await self._writer.start()
            except WriteError as error:
                self._complain(f"Kafka does not answer: {error}")
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                self._answered = time.monotonic()
                return

    async def _tick(self) -> None:
        while True:
            self._pulse.tick()
            self.connections.tick(asyncio.get_running_loop().time())
            await asyncio.sleep(_TICK_SECONDS)

    def _kafka_answers(self) -> bool:
        """Whether it did lately, or was not asked anything that it has not answered."""
        return not self._writes or time.monotonic() - self._answered < _AWAY_SECONDS

    def _complain(self, sentence: str) -> None:
        now = time.monotonic()
        if now - self._said >= _SAID_SECONDS:
            self._said = now
            self._tell(sentence)


async def relay(
    settings: RelaySettings,
    connection: Connection,
    ready: Callable[[str], None],
    tell: Callable[[str], None],
) -> None:
    """Run a relay until the process is told to end.

    Args:
        settings: where and for whom.
        connection: the cluster.
        ready: is told the address.
        tell: is told what people should know.

    Raises:
        RelayError: it cannot answer there.
        WorkerError: metrics cannot be served where they should be.
    """
    running = Relay(settings, KafkaWriter(connection, BrokerClock()), tell)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)

    def post(news: RelayableJobs | Away | Exception | None) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(running.take, news)

    address = await running.start()
    if settings.monitor is not None:
        serve_monitor(
            settings.monitor,
            registry_of(running.snapshot),
            alive=running.liveness,
            ready=running.readiness,
        )
    follower = Follower(connection, partial(relayable_jobs, names=settings.jobs), post)
    ready(address)
    await ended.wait()
    await running.stop()
    follower.close()
