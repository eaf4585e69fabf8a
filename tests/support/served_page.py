"""Live page of in-memory jobs, on the real server, behind a connection that can be cut."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from dpstream.aggregators.estimate import Published
from dpstream.pipeline.jobs.budget_declarations import BudgetDeclaration
from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.jobs.job_phases import JobPhase, Phase
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.local_kafka.broker import free_port
from dpstream.pipeline.serve.connections import Limits
from dpstream.pipeline.serve.follower import Reader
from dpstream.pipeline.serve.server import Site, SiteSettings
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import JOBS_TOPIC, Role
from tests.support.memory_cluster import MemoryCluster

TIMEOUT = 60.0
FIRST_CLOSE = 1_700_000_000_000
SECOND = 1_000

Answer = TypeVar("Answer")


class ServedPage:
    """Jobs in an in-memory cluster, and a restartable server behind a `Cable`."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster(partitions={JOBS_TOPIC: 1})
        self.jobs: dict[str, DeployedJob] = {}
        self.settings = SiteSettings()
        self.said: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="served page", daemon=True
        )
        self._site: Site | None = None
        self._reader = Reader()
        self._cable = Cable()

    def __enter__(self) -> Self:
        self._thread.start()
        self.start()
        self._do(self._cable.mend())
        return self

    def __exit__(self, *error: object) -> None:
        self._do(self._cable.cut())
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT)
        self._loop.close()

    @property
    def address(self) -> str:
        """Address of the page for the browser."""
        return f"http://127.0.0.1:{self._cable.port}"

    @property
    def site(self) -> Site:
        assert self._site is not None
        return self._site

    def start(self) -> None:
        self._site, self._reader = self._do(self._make_site()), Reader()
        self._tell(JOBS_TOPIC)
        for job in self.jobs.values():
            self._tell(job.topic(Role.ESTIMATES))

    def stop(self) -> None:
        self._do(self.site.stop())
        self._site = None

    def cut(self) -> None:
        """Cut the cable: all connections end, and new ones fail."""
        self._do(self._cable.cut())

    def mend(self) -> None:
        self._do(self._cable.mend())

    def deploy(self, text: str) -> DeployedJob:
        job = deploy_job(parse_job(text), deployed_at=FIRST_CLOSE)
        self.jobs[job.name] = job
        self.cluster.partitions[job.topic(Role.ESTIMATES)] = 1
        charge = Charge.of(job)
        self.cluster.append(JOBS_TOPIC, charge.to_bytes(), key=charge.key)
        self.cluster.append(JOBS_TOPIC, job.to_bytes(), key=job.name.encode())
        self._tell(JOBS_TOPIC, 2)
        return job

    def append(self, *records: Charge | BudgetDeclaration) -> None:
        for each in records:
            self.cluster.append(JOBS_TOPIC, each.to_bytes(), key=each.key)
        self._tell(JOBS_TOPIC, len(records))

    def publish(self, job: DeployedJob, first: int, estimates: Sequence[Published | None]) -> None:
        """Publish estimates for epochs starting with `first`; None suppresses an epoch."""
        topic = job.topic(Role.ESTIMATES)
        for epoch, estimate in enumerate(estimates, first):
            record = EstimateRecord(
                deployment=job.deployment,
                epoch=epoch,
                window_status=WindowStatus.SUPPRESSED
                if estimate is None
                else WindowStatus.RELEASED,
                closed_at=FIRST_CLOSE + epoch * SECOND,
                contributors=5 if estimate is None else 20_000,
                population=20_000,
                estimate=estimate,
                guarantee=job.guarantee_at(epoch, job.first_epoch).to_json(),
                assumes_changes=job.assumes_changes,
            )
            self.cluster.append(topic, record.to_bytes())
        self._tell(topic, len(estimates))

    def set_phase(self, job: DeployedJob, phase: Phase) -> None:
        decided = JobPhase(job.name, job.deployment, phase, FIRST_CLOSE)
        self.cluster.append(JOBS_TOPIC, decided.to_bytes(), key=decided.key)
        self._tell(JOBS_TOPIC, 1)

    def show_pipeline(self, job: DeployedJob, body: dict[str, Any]) -> None:
        self.site.pipeline(job, body, tuple(body["issues"]), 0.0)

    def _tell(self, topic: str, latest: int | None = None) -> None:
        if self._site is None:
            return
        records = self.cluster.records[topic, 0]
        news = self._reader.take(topic, records[-latest if latest else 0 :])
        if news is not None:
            self.site.tell(news)

    async def _make_site(self) -> Site:
        open_cluster = cast(Callable[[], Cluster], lambda: self.cluster)
        site = Site(self.settings, open_cluster, _no_ground_truth, self.said.append, Limits())
        address = await site.start()
        site.job_store.set_answers(True)
        self._cable.to = int(address.rstrip("/").rpartition(":")[2])
        return site

    def _do(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT)


class Cable:
    """Forward bytes between two local ports until cut."""

    def __init__(self) -> None:
        self.port = free_port()
        self.to = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", self.port)

    async def cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.to)
        both = {writer, back}
        self._writers |= both
        with suppress(OSError):
            await asyncio.gather(_pour(reader, back), _pour(there, writer))
        self._writers -= both
        for each in both:
            each.transport.abort()


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


def _no_ground_truth(job: DeployedJob, path: Path) -> Any:
    raise AssertionError("no ground truth was given")
