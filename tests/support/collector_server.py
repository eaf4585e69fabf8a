"""Collector server in a test's event loop, with a writer that stores records in memory."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from dpstream.pipeline.collector.accepting import Listener, listen
from dpstream.pipeline.collector.batch_writer import BatchWriter, IntakeCapacity
from dpstream.pipeline.collector.http_connections import HttpConnections
from dpstream.pipeline.collector.http_limits import HttpLimits, Rates
from dpstream.pipeline.collector.intake import Intake
from dpstream.pipeline.collector.service import Access, Served, Service
from dpstream.pipeline.collector.tokens import TokenCheck
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.broker_clock import BrokerClock
from dpstream.topics.envelopes import CONTENT_TYPE
from tests.support.device_jobs import BEGIN, KEY
from tests.support.memory_writer import MemoryWriter

NOW = BEGIN + 1000


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> str:
        assert self.headers["content-type"] == "application/problem+json"
        said = json.loads(self.body)
        assert said["status"] == self.status
        return str(said["type"])


@dataclass(eq=False)
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def reply(self, *, has_body: bool = True) -> Reply:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        status = int(first.split(" ")[1])
        if status == 100:
            return await self.reply()
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        length = int(headers.get("content-length", 0)) if has_body else 0
        return Reply(status, headers, await self.reader.readexactly(length))

    async def ask(self, method: str, path: str, *headers: str, body: bytes = b"") -> Reply:
        self.send(request(method, path, *headers, body=body))
        return await self.reply(has_body=method != "HEAD")

    async def report(self, body: bytes, *headers: str, job: str = "phones") -> Reply:
        self.send(report(body, *headers, job=job))
        return await self.reply()

    async def closed(self) -> bool:
        """Wait for the end of the connection, and return whether no more bytes arrived."""
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True


@dataclass
class Server:
    service: Service
    connections: HttpConnections
    writer: MemoryWriter
    port: int
    failed: list[Exception]
    clients: list[Client] = field(default_factory=list)

    async def connect(self) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.clients.append(Client(reader, writer))
        return self.clients[-1]

    @property
    def batch_writer(self) -> BatchWriter:
        return self.service.jobs["phones"].batch_writer


@asynccontextmanager
async def collecting(
    job: DeployedJob,
    *,
    limits: HttpLimits | None = None,
    access: Access | None = None,
    rates: Rates | None = None,
    now: int | None = NOW,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Server]:
    """Serve a job with a broker clock that stands still."""
    clock = BrokerClock(own=lambda: NOW, steady=lambda: 0.0)
    if now is not None:
        clock.note(now, 0.0)
    failed: list[Exception] = []
    writer = MemoryWriter()
    batch_writer = BatchWriter(Intake(job, KEY), writer, IntakeCapacity(), failed.append, clock.now)
    assert job.devices is not None
    said = job.devices.tokens
    tokens = None if said is None else TokenCheck(said, job.name, lambda: NOW)
    service = Service(clock, access or Access(), rates)
    service.jobs = {job.name: Served(job, batch_writer, tokens)}
    service.informed = True
    connections = HttpConnections(
        service.handle,
        service.look,
        service.allowed,
        limits or HttpLimits(),
        failed.append,
        service.access.is_proxy,
    )
    connections.tick(0.0)
    listener = Listener(connections, listen("127.0.0.1", 0), tls)
    server = Server(service, connections, writer, listener.port, failed)
    try:
        yield server
    finally:
        for client in server.clients:
            client.writer.close()
        await listener.close()
        connections.abort()
        await batch_writer.finish()
        assert not failed


def request(method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: collector", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def report(body: bytes, *headers: str, job: str = "phones") -> bytes:
    kind = f"Content-Type: {CONTENT_TYPE}"
    return request("POST", f"/v1/jobs/{job}/reports", kind, *headers, body=body)
