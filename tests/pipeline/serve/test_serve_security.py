"""Test security headers of every response, and access restrictions."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from dpstream.pipeline.serve.security import HEADERS, LONGEST_TARGET, Gatekeeper
from tests.support.live_page import LivePage, deploy_text, live_page, messages, publish
from tests.support.memory_cluster import MemoryCluster
from tests.support.shown_jobs import COUNT, count
from tests.support.waiting import until

POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data: blob:",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster()
    publish(cluster, deploy_text(cluster, COUNT), 1, count(10.0))
    return cluster


def check(headers: object) -> None:
    found = {name.lower(): value for name, value in headers.items()}  # type: ignore[attr-defined]
    policy = dict(
        part.strip().split(" ", 1) for part in found["content-security-policy"].split(";")
    )
    assert policy == POLICY
    assert found["x-content-type-options"] == "nosniff"
    assert found["referrer-policy"] == "no-referrer"
    assert not [name for name in found if name.startswith("access-control-")]
    assert "server" not in found


async def raw(page: LivePage, request: bytes) -> tuple[int, dict[str, str], bytes]:
    reader, writer = await page.connect(request)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), dict(line.split(": ", 1) for line in lines), body


async def test_every_response_has_the_security_policy(cluster: MemoryCluster) -> None:
    async with live_page(cluster) as page:
        index = (await page.body("/")).decode()
        script = index.partition('<script src="')[2].partition('"')[0]
        assert script.startswith("/bokeh/")
        paths = {
            "/": 200,
            script: 200,
            "/static/style.css": 200,
            "/api": 200,
            "/api/jobs": 200,
            "/api/jobs/count": 200,
            "/api/jobs/count/estimates?format=csv": 200,
            "/charts.json?job=count": 200,
            "/api/jobs/unknown": 404,
            "/api/jobs/count/curve?from=x": 400,
            "/nothing": 404,
            "/ws?job=count": 400,
        }
        for path, status in paths.items():
            async with page.client.get(page.address + path) as response:
                assert response.status == status, path
                check(response.headers)
        async with page.client.post(page.address + "/api/jobs") as response:
            assert response.status == 405
            check(response.headers)
        async with page.view("job=count") as viewer:
            check(viewer._response.headers)


MALFORMED = {
    b"GET / HTTP/1.1\r\nHost: localhost\r\nBad Header: x\r\n\r\n": 400,
    b"GET / HTTP/3\r\nHost: localhost\r\n\r\n": 400,
    b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n": 400,
    b"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n": 400,
    b"GET /" + b"a" * 50_000: 414,
    b"GET /" + b"a" * 3_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n": 414,
    b"GET / HTTP/1.1\r\nHost: localhost\r\nCookie: " + b"a" * 50_000: 431,
    b"GET / HTTP/1.1\r\n\r\n": 400,
    b"GET / HTTP/1.1\r\nHost:\r\n\r\n": 421,
    b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nabcd": 405,
    b"GET /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n\r\nabcd": 413,
    b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n": 413,
    b"GET / HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n\r\n": 417,
    b"GET / HTTP/1.1\r\nHost: localhost\r\nExpect: nonsense\r\n\r\n": 417,
    b"GET / HTTP/1.1\r\nHost: localhost\r\nOrigin: http://[\r\nConnection: close\r\n\r\n": 403,
    b"TRACE / HTTP/1.1\r\nHost: localhost\r\n\r\n": 405,
    b"OPTIONS /api/jobs HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n": 405,
    b"GET /api/jobs HTTP/1.1\r\nHost: localhost:1\r\nOrigin: http://localhost:2\r\n\r\n": 403,
}


async def test_malformed_requests_are_rejected_and_closed(
    cluster: MemoryCluster,
) -> None:
    async with live_page(cluster) as page:
        for request, expected in MALFORMED.items():
            status, headers, body = await raw(page, request)
            assert status == expected, (request[:60], body)
            check(headers)
            assert body
        await page.get("/api/jobs")
        await page.client.close()
        await until(lambda: not page.site.connections.open)


async def test_dns_rebinding_is_rejected(cluster: MemoryCluster) -> None:
    async with live_page(cluster, hosts=["Stats.Example.org"]) as page:
        for host in ("evil.example", "evil.example:8765", "localhost.evil.example", "a@localhost"):
            body = await page.get("/api/jobs", 421, Host=host)
            assert "--allow-host" in body["error"]
        for host in ("localhost", "127.0.0.1:99", "[::1]:8765", "stats.example.org", "LOCALHOST."):
            await page.get("/api/jobs", 200, Host=host)


async def test_cross_site_requests_are_rejected(cluster: MemoryCluster) -> None:
    async with live_page(cluster, hosts=["stats.example.org"]) as page:
        own = page.address
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "file://", "x"):
            await page.get("/api/jobs", 403, Origin=origin)
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                await page.client.ws_connect(f"{own}/ws", origin=origin)
        await page.get("/api/jobs", 200, Origin=own)
        async with page.client.ws_connect(f"{own}/ws", origin=own) as viewer:
            await messages(viewer, "hello")
        foreign_port = "https://stats.example.org:8443"
        await page.get("/api/jobs", 403, Origin=foreign_port)
        # Behind a proxy that forwards from an address of its own.
        await page.get("/api/jobs", 200, Origin="https://stats.example.org")


@pytest.mark.parametrize(
    "host", ["", ":", "[", "[::1", "localhost:x", "localhost:99999", "a/b", "a?b", "a#b", "\u2100"]
)
def test_malformed_hosts_are_rejected(host: str) -> None:
    rejection = Gatekeeper().reject("GET", "/", {"Host": host}, has_body=False)
    assert rejection is not None
    assert rejection.status == 421


async def test_longest_url_is_accepted_and_a_longer_one_rejected(cluster: MemoryCluster) -> None:
    async with live_page(cluster) as page:
        path = "/api/jobs?x="
        await page.get(path + "a" * (LONGEST_TARGET - len(path)))
        await page.get(path + "a" * (LONGEST_TARGET - len(path) + 1), 414)


def test_security_headers_are_complete() -> None:
    assert "unsafe-eval" not in HEADERS["Content-Security-Policy"]
    assert "http" not in HEADERS["Content-Security-Policy"]
