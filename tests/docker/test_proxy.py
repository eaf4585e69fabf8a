"""Test docker/nginx in front of in-memory collectors, if nginx is installed."""

import asyncio
from pathlib import Path

import pytest

from dpstream.pipeline.addresses import networks
from dpstream.pipeline.collector.http_limits import Rates
from dpstream.pipeline.collector.service import Access
from dpstream.topics.envelopes import BODY_MAX, CONTENT_TYPE
from tests.pipeline.collector.test_http import APP, run
from tests.support.collector_server import Client, Server, collecting, report
from tests.support.device_jobs import body, device_job, envelope
from tests.support.proxy import INSTALLED, proxy

pytestmark = pytest.mark.skipif(INSTALLED is None, reason="nginx is not installed")


async def connect(server: Server, port: int) -> Client:
    server.clients.append(Client(*await asyncio.open_connection("127.0.0.1", port)))
    return server.clients[-1]


def test_proxy_passes_reports_and_returns_problem_details(tmp_path: Path) -> None:
    job = device_job()
    most = (BODY_MAX - 100) // len(envelope(job))
    largest = body(job, 1, [envelope(job) for _ in range(most)])
    access = Access(frozenset({APP}), networks(["127.0.0.1"]))
    path = "/v1/jobs/phones/reports"

    async def work() -> None:
        async with collecting(job, access=access) as first, collecting(job) as second:
            with proxy(tmp_path / "nginx", [first.port, second.port]) as port:
                client = await connect(first, port)
                for data in (body(job), largest) * 2:
                    assert (await client.report(data)).status == 202
                chunked = b"Content-Length: %d" % len(largest)
                whole = report(largest).replace(chunked, b"Transfer-Encoding: chunked")
                head, _, rest = whole.partition(b"\r\n\r\n")
                client.send(head + b"\r\n\r\n%x\r\n" % len(rest) + rest + b"\r\n0\r\n\r\n")
                assert (await client.reply()).status == 202
                # A slightly too large body, which a collector rejects, and a far too large body.
                for size in (BODY_MAX + 1, 2 * BODY_MAX):
                    client = await connect(first, port)
                    client.send(report(bytes(size)))
                    assert (await client.reply()).problem == "/problems/too-large"
                client = await connect(first, port)
                reply = await client.ask("GET", "/v1/jobs/none")
                assert reply.problem == "/problems/unknown-job"
                # Without collectors, the response has no HTML, and a time to retry.
                for server in (first, second):
                    server.service.stopping = True
                assert (await client.report(body(job))).problem == "/problems/stopping"
            with proxy(tmp_path / "alone", [1]) as port:
                client = await connect(first, port)
                reply = await client.ask("POST", path, f"Content-Type: {CONTENT_TYPE}", body=b"x")
                assert reply.problem == "/problems/unavailable"
                assert reply.headers["retry-after"] == "5"

    run(work)


def test_rate_limit_applies_to_each_client_instead_of_the_proxy(tmp_path: Path) -> None:
    """An address that a client claims in a header is ignored."""
    job = device_job()
    access = Access(proxies=networks(["127.0.0.1"]))
    rates = Rates(0.1, lambda: 0.0, burst=2)

    async def work() -> None:
        async with collecting(job, access=access, rates=rates) as server:
            with proxy(tmp_path / "nginx", [server.port]) as port:
                statuses = []
                for number in range(4):
                    client = await connect(server, port)
                    reply = await client.report(body(job), f"X-Forwarded-For: 192.0.2.{number}")
                    statuses.append(reply.status)
                assert statuses == [202, 202, 429, 429]
                assert set(rates._buckets) == {"127.0.0.1"}

    run(work)


def test_job_that_rejects_reports_does_not_affect_other_jobs(tmp_path: Path) -> None:
    job = device_job()

    async def work() -> None:
        async with collecting(job) as server:
            server.service.unserved = frozenset({"drained"})
            with proxy(tmp_path / "nginx", [server.port]) as port:
                for _ in range(5):
                    client = await connect(server, port)
                    replies = [
                        await client.report(body(job), job=name) for name in ("phones", "drained")
                    ]
                    assert [reply.status for reply in replies] == [202, 503]
                    assert replies[1].problem == "/problems/unavailable"

    run(work)
