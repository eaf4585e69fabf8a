"""Live page of an in-memory cluster in this process, polled on demand."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import aiohttp

from dpstream.aggregators.estimate import Published as Estimated
from dpstream.pipeline.cli.inputs import load_ground_truth
from dpstream.pipeline.devices.item_log import ValueLog
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.serve.access import AccessSettings
from dpstream.pipeline.serve.background import Background
from dpstream.pipeline.serve.connections import Limits
from dpstream.pipeline.serve.follower import BrokerAvailability, Reader
from dpstream.pipeline.serve.server import Site, SiteSettings
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role
from tests.support.memory_cluster import MemoryCluster

NOW = 1_700_000_000_000
Result = TypeVar("Result")
Connection: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def deploy_text(
    cluster: MemoryCluster, text: str, deployment: bytes = bytes(16), *, replace: bool = False
) -> DeployedJob:
    job = parse_job(text)
    return deploy(cast(Cluster, cluster), job, deployment=deployment, now=NOW, replace=replace)


def publish(
    cluster: MemoryCluster,
    job: DeployedJob,
    epoch: int,
    estimate: Estimated | None,
    window_status: WindowStatus = WindowStatus.RELEASED,
) -> EstimateRecord:
    record = EstimateRecord(
        job.deployment, epoch, window_status, NOW + 1_000 * epoch, 90, 100, estimate,
        job.guarantee_at(epoch, job.first_epoch).to_json(), assumes_changes=job.assumes_changes,
    )  # fmt: skip
    cluster.append(job.topic(Role.ESTIMATES), record.to_bytes())
    return record


@dataclass
class LivePage:
    """Served page and an HTTP client."""

    site: Site
    address: str
    cluster: MemoryCluster
    client: aiohttp.ClientSession
    log: list[str]
    reader: Reader
    _positions: dict[str, int] = field(default_factory=dict)

    def read(self) -> None:
        """Read new records of all topics, like the follower."""
        while True:
            before = self.reader.positions
            for topic, position in before.items():
                if topic in self.cluster.partitions:
                    records = list(self.cluster.read(topic, start=position))
                    news = self.reader.take(topic, records) if records else None
                    if news is not None:
                        self.site.take(news)
            if self.reader.positions == before:
                return

    async def look(self) -> None:
        """Poll the pipelines once, like the background task."""
        self.site.look_who_watches()
        background = Background(
            lambda: cast(Cluster, self.cluster),
            self.site.shown,
            self.site,
            self.site.job_store.clock,
        )
        await asyncio.to_thread(background.watch, cast(Cluster, self.cluster))
        # Let results of the thread arrive before the next request.
        await asyncio.sleep(0)

    async def connect(self, request: bytes = b"") -> Connection:
        host, _, port = self.address.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request)
        return reader, writer

    async def ground_truths_loaded(self) -> None:
        """Wait until the inputs have been read."""
        await asyncio.gather(*self.site._loading)

    async def get(self, path: str, status: int = 200, **headers: str) -> Any:
        async with self.client.get(self.address + path, headers=headers) as response:
            assert response.status == status, await response.text()
            return await response.json()

    async def body(self, path: str) -> bytes:
        async with self.client.get(self.address + path) as response:
            assert response.status == 200, await response.text()
            return await response.read()

    def view(self, query: str = "") -> Any:
        """Open a WebSocket as an asynchronous context manager."""
        return self.client.ws_connect(f"{self.address}/ws?{query}", autoclose=False)


async def messages(socket: aiohttp.ClientWebSocketResponse, *types: str) -> dict[str, Any]:
    while True:
        body = await asyncio.wait_for(socket.receive_json(), 20)
        if body["type"] in types:
            return cast(dict[str, Any], body)


async def epochs(socket: aiohttp.ClientWebSocketResponse, count: int) -> list[dict[str, Any]]:
    return [await messages(socket, "epoch") for _ in range(count)]


@asynccontextmanager
async def live_page(
    cluster: MemoryCluster,
    *,
    jobs: Sequence[str] = (),
    hosts: Sequence[str] = (),
    ground_truths: Iterable[tuple[str, Path]] = (),
    limits: Limits | None = None,
    access: AccessSettings | None = None,
    frame_ancestors: Sequence[str] = (),
    tls: ssl.SSLContext | None = None,
    unread: bool = False,
) -> AsyncIterator[LivePage]:
    """Serve on a free port, after reading existing records unless deferred."""
    log: list[str] = []

    def load(job: DeployedJob, path: Path) -> ValueLog:
        return load_ground_truth(job, path)

    settings = SiteSettings(
        jobs=tuple(jobs),
        hosts=tuple(hosts),
        ground_truths=dict(ground_truths),
        tls=tls,
        access=access or AccessSettings(),
        frame_ancestors=tuple(frame_ancestors),
    )
    site = Site(settings, lambda: cast(Cluster, cluster), load, log.append, limits or Limits())
    address = (await site.start()).rstrip("/")
    # Accept cookies of IP addresses, not only of names.
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
        page = LivePage(site, address, cluster, client, log, Reader(jobs))
        try:
            if not unread:
                site.take(BrokerAvailability(True))
                page.read()
            yield page
        finally:
            await site.stop()


def run(test: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    return asyncio.run(test())


def upgrade(path: str) -> bytes:
    return (
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        "Sec-WebSocket-Version: 13\r\n\r\n"
    ).encode()
