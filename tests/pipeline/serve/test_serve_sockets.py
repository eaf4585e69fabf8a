"""Test viewers: each gets every epoch once, across disconnects, restarts and redeployments."""

from __future__ import annotations

import asyncio
import socket as sockets
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import WSCloseCode, WSMsgType

from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.serve.connections import Limits
from dpstream.pipeline.serve.follower import BrokerAvailability
from dpstream.topics.names import JOBS_TOPIC
from tests.support.live_page import deploy_text, epochs, live_page, messages, publish, upgrade
from tests.support.memory_cluster import MemoryCluster
from tests.support.shown_jobs import COUNT, MODES, count, gap, items
from tests.support.waiting import until

QUICK = Limits(news_seconds=0.05)


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster()
    job = deploy_text(cluster, COUNT, b"c" * 16)
    for epoch in (1, 2, 3):
        publish(cluster, job, epoch, gap(1.0) if epoch == 2 else count(10.0 * epoch))
    publish(cluster, deploy_text(cluster, MODES, b"m" * 16), 1, items(1.0, 2.0, 3.0))
    return cluster


def grow(cluster: MemoryCluster, *numbers: int) -> None:
    job = deploy_text(MemoryCluster(), COUNT, b"c" * 16)
    for epoch in numbers:
        publish(cluster, job, epoch, count(10.0 * epoch))


async def test_viewer_receives_past_and_new_epochs(cluster: MemoryCluster) -> None:
    async with live_page(cluster) as page, page.view("job=count") as viewer:
        hello = await messages(viewer, "hello")
        assert hello["run"] == page.site.job_store.run
        assert hello["last_epoch"] == 3
        assert [job["job"] for job in hello["jobs"]] == ["count", "modes"]
        first, second, third = await epochs(viewer, 3)
        assert first["series"] == {"value": [10.0, 0.2, 19.8]}
        assert first["headline"] == "10 (95 % CI 0 to 20)"
        assert (second["series"], second["flags"]) == ({"value": None}, ["gap"])
        assert third["epoch"] == 3
        grow(cluster, 4)
        page.read()
        (fourth,) = await epochs(viewer, 1)
        assert (fourth["epoch"], fourth["job"]) == (4, "count")


async def test_reconnected_viewer_catches_up_without_a_gap(cluster: MemoryCluster) -> None:
    async with live_page(cluster) as page:
        start = page.site.job_store.run
        async with page.view(f"job=count&after=2&start={start}") as viewer:
            (third,) = await epochs(viewer, 1)
            assert third["epoch"] == 3
        grow(cluster, *range(4, 12))
        page.read()
        async with page.view(f"job=count&after=3&start={start}") as viewer:
            caught_up = await epochs(viewer, 8)
            grow(cluster, 12)
            page.read()
            (last,) = await epochs(viewer, 1)
        assert [each["epoch"] for each in [*caught_up, last]] == list(range(4, 13))


async def test_server_restart_sends_reload(cluster: MemoryCluster) -> None:
    async with live_page(cluster) as page:
        before = page.site.job_store.run
    async with live_page(cluster) as page:
        async with page.view(f"job=count&after=3&start={before}") as viewer:
            body = await viewer.receive_json()
            assert body["type"] == "reload"
            assert body["run"] == page.site.job_store.run != before
            assert (await viewer.receive()).type is WSMsgType.CLOSE
        async with page.view("job=count") as viewer:
            assert [each["epoch"] for each in await epochs(viewer, 3)] == [1, 2, 3]


async def test_redeployment_sends_reload_to_returning_viewers(
    cluster: MemoryCluster,
) -> None:
    async with live_page(cluster) as page:
        start = page.site.job_store.run
        before = page.site.job_store.jobs["count"].job.deployment.hex()
        job = deploy_text(cluster, COUNT, b"d" * 16, replace=True)
        publish(cluster, job, 1, count(99.0))
        page.read()
        # The new deployment has no epoch 3 to resume from.
        async with page.view(f"job=count&after=3&start={start}") as viewer:
            assert (await viewer.receive_json())["type"] == "reload"
        publish(cluster, job, 2, count(99.0))
        publish(cluster, job, 3, count(99.0))
        page.read()
        query = f"job=count&after=2&start={start}&deployment="
        async with page.view(query + before) as viewer:
            assert (await viewer.receive_json())["type"] == "reload"
        async with page.view(query + job.deployment.hex()) as viewer:
            assert (await epochs(viewer, 1))[0]["epoch"] == 3


async def test_viewers_are_notified_of_kafka_outages(
    cluster: MemoryCluster,
) -> None:
    async with live_page(cluster, limits=QUICK) as page, page.view("job=count") as viewer:
        assert (await messages(viewer, "hello"))["kafka"]["answers"] is True
        page.site.take(BrokerAvailability(False))
        assert (await messages(viewer, "kafka"))["answers"] is False
        assert "does not respond" in page.log[0]
        page.site.take(BrokerAvailability(True))
        assert (await messages(viewer, "kafka"))["answers"] is True


async def test_charges_of_other_jobs_are_sent(cluster: MemoryCluster) -> None:
    """The budget is sent on connection, because it may have changed, and on every change."""
    async with live_page(cluster, limits=QUICK) as page, page.view("job=count") as viewer:
        job = page.site.job_store.jobs["count"].job
        requested = (await page.get("/api/jobs/count"))["budget"]
        first = await messages(viewer, "budget")
        assert (first["job"], first["budget"]) == ("count", requested)
        other = replace(Charge.of(job), deployment="f" * 32)
        cluster.append(JOBS_TOPIC, other.to_bytes(), key=other.key)
        page.read()
        then = (await messages(viewer, "budget"))["budget"]
        assert then["charged"]["epsilon"] == 2 * requested["charged"]["epsilon"] > 0
        assert then == (await page.get("/api/jobs/count"))["budget"]
        # No other message is sent while nothing has changed.
        grow(cluster, 4)
        page.read()
        assert (await messages(viewer, "jobs", "budget"))["type"] == "jobs"


async def test_viewer_beyond_the_limit_is_rejected(cluster: MemoryCluster) -> None:
    limits = Limits(viewers=2)

    async with live_page(cluster, limits=limits) as page:
        async with page.view("job=count") as first, page.view() as second:
            await messages(first, "hello")
            await messages(second, "hello")
            with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
                await page.view("job=count")
            assert "limit of 2 viewers" in (await page.get("/ws?job=count", 503))["error"]
        await until(lambda: page.site.job_store.viewers < 2)
        async with page.view("job=count") as third:
            await messages(third, "hello")


@pytest.mark.slow
async def test_slow_viewer_is_dropped_without_delaying_others() -> None:
    cluster = MemoryCluster()
    labels = ", ".join(f"item{number}" for number in range(200))
    text = MODES.replace("walk, 'bus, or tram', car", labels).replace("count: 12", "count: 4096")
    job = deploy_text(cluster, text)
    for epoch in range(1, 2_501):
        publish(cluster, job, epoch, items(*[epoch / 7] * 200))

    async with live_page(cluster, limits=Limits(blocked_seconds=0.2)) as page:
        # The buffers hold only a part of the ten million bytes to send.
        host, _, port = page.address.removeprefix("http://").partition(":")
        with sockets.socket() as blocked:
            blocked.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4_096)
            blocked.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(blocked, (host, int(port)))
            await loop.sock_sendall(blocked, upgrade("/ws?job=modes"))
            await until(lambda: page.site.job_store.viewers)
            async with page.view("job=modes&after=2490") as viewer:
                assert [each["epoch"] for each in await epochs(viewer, 10)][-1] == 2_500
            await until(lambda: not page.site.job_store.viewers)


async def test_viewer_messages_are_ignored_and_long_ones_disconnect(
    cluster: MemoryCluster,
) -> None:
    async with live_page(cluster) as page, page.view("job=count&after=3") as viewer:
        await messages(viewer, "hello")
        await viewer.send_str('{"type": "drop tables"}')
        grow(cluster, 4)
        page.read()
        await epochs(viewer, 1)
        await viewer.send_str("x" * 100_000)
        assert await closed(viewer) == WSCloseCode.MESSAGE_TOO_BIG


async def test_viewers_are_notified_when_the_server_ends(cluster: MemoryCluster) -> None:
    async with live_page(cluster) as page, page.view("job=count") as viewer:
        await epochs(viewer, 3)
        ending = asyncio.create_task(page.site.stop())
        assert await closed(viewer) == WSCloseCode.GOING_AWAY
        await ending


async def closed(viewer: aiohttp.ClientWebSocketResponse) -> int:
    while True:
        message = await asyncio.wait_for(viewer.receive(), 20)
        if message.type is WSMsgType.CLOSE:
            await viewer.close()
            return int(message.data)
