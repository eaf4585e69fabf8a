"""Test that idle and slow connections neither exhaust the server nor delay viewers."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from contextlib import suppress

import pytest

from dpstream.pipeline.serve.connections import Limits
from tests.support.live_page import (
    Connection,
    LivePage,
    deploy_text,
    epochs,
    live_page,
    messages,
    publish,
    upgrade,
)
from tests.support.memory_cluster import MemoryCluster
from tests.support.shown_jobs import COUNT, count
from tests.support.waiting import until

GET = b"GET /api/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster()
    publish(cluster, deploy_text(cluster, COUNT, b"c" * 16), 1, count(10.0))
    return cluster


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4_096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def close(connections: list[Connection]) -> None:
    for _, writer in connections:
        writer.transport.abort()


async def opened(page: LivePage, connections: int) -> None:
    await until(lambda: len(page.site.connections.open) == connections)


@pytest.mark.slow
async def test_thousand_idle_connections_do_not_block_viewers(
    cluster: MemoryCluster, many_files: None
) -> None:
    async with live_page(cluster) as page:
        idle = [
            await page.connect(request)
            for _ in range(250)
            for request in (b"", b"GET / HT", GET, upgrade("/ws?job=count"))
        ]
        try:
            await until(lambda: page.site.job_store.viewers >= 250)
            assert len(page.site.connections.open) == 1_000
            async with page.view("job=count") as viewer:
                assert (await epochs(viewer, 1))[0]["epoch"] == 1
                job = page.site.job_store.jobs["count"].job
                publish(cluster, job, 2, count(20.0))
                page.read()
                assert (await epochs(viewer, 1))[0]["epoch"] == 2
                await page.get("/api/jobs/count/curve")
        finally:
            close(idle)


async def test_silent_and_slow_connections_are_closed(
    cluster: MemoryCluster,
) -> None:
    limits = Limits(head_seconds=0.05, idle_seconds=0.05)

    async with live_page(cluster, limits=limits) as page:
        silent = await page.connect()
        partial = await page.connect(b"GET / HTTP/1.1\r\n")
        finished = await page.connect(GET)
        assert await silent[0].read() == b""
        assert await partial[0].read() == b""
        assert (await finished[0].read()).startswith(b"HTTP/1.1 200")
        assert not page.site.connections.open
        close([silent, partial, finished])


async def test_slow_headers_do_not_extend_the_deadline(cluster: MemoryCluster) -> None:
    limits = Limits(head_seconds=0.2)

    async with live_page(cluster, limits=limits) as page:
        reader, writer = await page.connect()
        await opened(page, 1)
        for _ in range(60):
            if not page.site.connections.open:
                break
            writer.write(b"a")
            await asyncio.sleep(limits.head_seconds / 4)
        assert not page.site.connections.open, "each byte has gained it more time"
        # Bytes that arrived after the last read make the system reset the connection.
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.transport.abort()


async def test_longest_idle_connection_is_closed_when_full(cluster: MemoryCluster) -> None:
    limits = Limits(connections=3)

    async with live_page(cluster, limits=limits) as page, page.view("job=count") as viewer:
        await messages(viewer, "hello")
        first, second = await page.connect(), await page.connect()
        await opened(page, 3)
        third = await page.connect(GET)
        assert (await third[0].readline()) == b"HTTP/1.1 200 OK\r\n"
        assert await first[0].read() == b""
        second[1].write(GET)
        assert (await second[0].readline()) == b"HTTP/1.1 200 OK\r\n"
        # The viewer is active throughout.
        publish(cluster, page.site.job_store.jobs["count"].job, 2, count(20.0))
        page.read()
        await epochs(viewer, 2)
        close([first, second, third])


async def test_connection_is_rejected_when_all_others_are_active(cluster: MemoryCluster) -> None:
    limits = Limits(connections=1)

    async with live_page(cluster, limits=limits) as page, page.view("job=count") as viewer:
        await messages(viewer, "hello")
        one_more = await page.connect(GET)
        answer = await one_more[0].read()
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"too many connections" in answer
        close([one_more])


async def test_viewer_without_pong_is_dropped(cluster: MemoryCluster) -> None:
    limits = Limits(heartbeat_seconds=0.1)

    async with live_page(cluster, limits=limits) as page:
        dead = await page.connect(upgrade("/ws?job=count"))
        await until(lambda: page.site.job_store.viewers)
        await until(lambda: not page.site.job_store.viewers)
        close([dead])
