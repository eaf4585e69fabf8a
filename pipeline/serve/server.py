"""Run the live page: threads that collect data, and an event loop that answers requests."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from aiohttp import web

from dpstream.pipeline.devices.item_log import ValueLog
from dpstream.pipeline.errors import WRONG_INPUT, DpstreamError, error_line
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.open_files import room_for_files
from dpstream.pipeline.results.follow import EstimateReader
from dpstream.pipeline.results.smoothing import SmoothedHorizon
from dpstream.pipeline.serve.access import AccessSettings
from dpstream.pipeline.serve.api import Api
from dpstream.pipeline.serve.assets import load_login_page
from dpstream.pipeline.serve.background import Background, Shown
from dpstream.pipeline.serve.connections import Connections, Limits
from dpstream.pipeline.serve.follower import (
    BrokerAvailability,
    JobFollower,
    KafkaSource,
    NewlyPublished,
    News,
    Reader,
    Rejected,
)
from dpstream.pipeline.serve.job_store import Jobs, JobStore
from dpstream.pipeline.serve.login import LoginHandler
from dpstream.pipeline.serve.security import Gatekeeper
from dpstream.pipeline.serve.sockets import Sockets
from dpstream.pipeline.stages.estimate_records import EstimateRecord

_FILES_BESIDES = 100
_BACKLOG = 1_024
_SHUTDOWN_SECONDS = 2.0
# Seconds to keep reading a rejected body, so that its sender receives the reason.
_LINGERING_SECONDS = 0.2

Result = TypeVar("Result")
Load = Callable[[DeployedJob, Path], ValueLog]
"""Function that reads the input file of a job."""


class NoPortError(DpstreamError):
    exit_code = WRONG_INPUT


@dataclass(frozen=True, slots=True)
class SiteSettings:
    """Address, content and access rules of the live page.

    Attributes:
        port: Port to listen on; 0 means any free port.
        jobs: Names of the shown jobs; empty means all jobs.
        ground_truths: Input files that contain the ground truth, by job name.
    """

    address: str = "127.0.0.1"
    port: int = 0
    jobs: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    ground_truths: Mapping[str, Path] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None
    access: AccessSettings = field(default_factory=AccessSettings)
    frame_ancestors: tuple[str, ...] = ()


class Site:
    """The job store, which threads update, and the application that answers from the job store.

    Create the site, and call `take`, within a running event loop. `open_cluster` opens a cluster
    for one thread; `notify` receives messages for the operator.
    """

    def __init__(
        self,
        settings: SiteSettings,
        open_cluster: Callable[[], Cluster],
        load: Load,
        notify: Callable[[str], None],
        limits: Limits,
    ) -> None:
        self.job_store = JobStore()
        self._settings = settings
        self._open_cluster = open_cluster
        self._load = load
        self._notify = notify
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._loading: set[asyncio.Task[None]] = set()
        self._loaded_ground_truths: set[bytes] = set()
        self._logged_missing = False
        self._rejections: set[str] = set()
        self._shown: tuple[Shown, ...] = ()
        self.sockets = Sockets(self.job_store, limits)
        gatekeeper = Gatekeeper.of(settings.hosts)
        secure = settings.tls is not None
        login_handler = LoginHandler(settings.access, load_login_page(), secure=secure)
        api = Api(
            *(
                self.job_store,
                self._published,
                gatekeeper,
                self.sockets,
                limits.downloads,
                login_handler,
            ),
            frame_ancestors=settings.frame_ancestors,
        )
        self._runner = web.AppRunner(
            api.application(),
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=_SHUTDOWN_SECONDS,
            lingering_time=_LINGERING_SECONDS,
        )
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        """Start to answer requests; return the address, or raise `NoPortError` if it is taken."""
        await self._runner.setup()
        make = self._runner.server
        assert make is not None
        self.connections = Connections(make, self._limits)
        # Failures in callbacks would go to a muted log.
        self._loop.set_exception_handler(self._failed)
        address, port, tls = self._settings.address, self._settings.port, self._settings.tls
        try:
            # A name may resolve to several addresses, each of which would get its own port.
            bound = address if port else await self._first_address(address)
            self._server = await self._loop.create_server(
                self.connections,
                bound,
                port,
                backlog=_BACKLOG,
                reuse_address=True,
                ssl=tls,
                # A hanging handshake holds a descriptor and is not counted in `Connections`.
                ssl_handshake_timeout=None if tls is None else self._limits.head_seconds,
                ssl_shutdown_timeout=None if tls is None else self._limits.head_seconds,
            )
        except OSError as error:
            raise NoPortError(
                f"cannot serve at {address}, port {port}: {error.strerror}. Choose another --port, "
                "or 0 for a free one"
            ) from None
        port = self._server.sockets[0].getsockname()[1]
        host = f"[{address}]" if ":" in address else address
        return f"{'http' if self._settings.tls is None else 'https'}://{host}:{port}/"

    async def _first_address(self, name: str) -> str:
        addresses = await self._loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        families = sorted(addresses, key=lambda each: each[0] != socket.AF_INET)
        return str(families[0][4][0])

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        # Broken connections are normal.
        if not isinstance(error, ConnectionError | TimeoutError):
            reason = error_line(error) if isinstance(error, Exception) else context["message"]
            self._notify(f"ignored an error: {reason}")

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        await self.sockets.close()
        await self._runner.cleanup()

    def tell(self, news: News) -> None:
        """Process news; callable from any thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.take, news)

    def shown(self) -> tuple[Shown, ...]:
        """Return the jobs to read; callable from any thread."""
        return self._shown

    def pipeline(
        self, job: DeployedJob, body: dict[str, Any], issues: tuple[str, ...], lag_seconds: float
    ) -> None:
        self._call(self.job_store.set_pipeline, job.name, job.deployment, body, issues, lag_seconds)

    def smoothed(self, job: DeployedJob, number: int, horizon: SmoothedHorizon) -> None:
        self._call(self.job_store.set_smoothed, job.name, job.deployment, number, horizon)

    def look_who_watches(self) -> None:
        opened = set(self.job_store.watched)
        in_use = self.job_store.viewers > 0 or self.job_store.requested_recently
        self._shown = (
            tuple(
                Shown(state.job, state.phase, name in opened, state.smooths)
                for name, state in self.job_store.jobs.items()
            )
            if in_use
            else ()
        )

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function, *arguments)

    def take(self, news: News) -> None:
        match news:
            case Jobs():
                self.job_store.set_jobs(news)
                self._load_ground_truths()
                self._tell_who_is_missing()
            case NewlyPublished():
                self.job_store.add_points(news.job, news.deployment, news.points, news.first_epoch)
            case Rejected(message):
                self.rejected(message)
            case BrokerAvailability():
                self.job_store.set_answers(news.answers)
                if not news.answers:
                    self._notify("Kafka does not respond; the page shows this and retries")

    def rejected(self, message: str) -> None:
        """Notify the operator of a message, once per text."""
        if message not in self._rejections:
            self._rejections.add(message)
            self._call(self._notify, message)

    def _tell_who_is_missing(self) -> None:
        missing = set(self._settings.jobs) - self.job_store.jobs.keys()
        if missing and not self._logged_missing:
            self._logged_missing = True
            self._notify(
                f"not deployed yet: {', '.join(sorted(missing))}; the page updates automatically"
            )

    def _load_ground_truths(self) -> None:
        for name, path in self._settings.ground_truths.items():
            state = self.job_store.jobs.get(name)
            if state is not None and state.job.deployment not in self._loaded_ground_truths:
                self._loaded_ground_truths.add(state.job.deployment)
                task = asyncio.create_task(self._load_ground_truth(state.job, path))
                self._loading.add(task)
                task.add_done_callback(self._loading.discard)

    async def _load_ground_truth(self, job: DeployedJob, path: Path) -> None:
        try:
            ground_truths = await _in_a_daemon(
                lambda: self._load(job, path).ground_truths(job.domain)
            )
        except Exception as error:
            self._notify(f"job {job.name}: ground truth is unavailable: {error}")
            return
        self.job_store.set_ground_truths(job.name, job.deployment, ground_truths)

    def _published(self, job: DeployedJob) -> Iterator[EstimateRecord]:
        with self._open_cluster() as cluster:
            yield from EstimateReader(cluster, job).read()


async def _in_a_daemon(function: Callable[[], Result]) -> Result:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast(Result, result))

    def work() -> None:
        result, failed = None, None
        try:
            result = function()
        except Exception as error:
            failed = error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, failed)

    threading.Thread(target=work, name="ground-truth", daemon=True).start()
    return await future


async def serve(
    settings: SiteSettings,
    connection: Connection,
    load: Load,
    *,
    ready: Callable[[str], None],
    notify: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM; raise `NoPortError` if the address cannot be used.

    `ready` receives the address of the page, and `notify` receives messages for the operator.
    """
    site = Site(settings, lambda: Cluster(connection), load, notify, _limits())
    address = await site.start()
    follower = JobFollower(KafkaSource(connection), Reader(settings.jobs), site.tell)
    background = Background(lambda: Cluster(connection), site.shown, site, site.job_store.clock)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    follower.start()
    background.start()
    ready(address)
    while not ended.is_set():
        if not (follower.is_alive() and background.is_alive()):
            raise RuntimeError("a thread of the live page failed; see the error above")
        site.look_who_watches()
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), 0.25)
    follower.end()
    background.end()
    await site.stop()


def _limits() -> Limits:
    connections = room_for_files(Limits().connections + _FILES_BESIDES) - _FILES_BESIDES
    return Limits(connections=connections, viewers=min(Limits().viewers, 2 * connections // 3))
