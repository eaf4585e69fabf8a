"""What the live page takes: ``python -m tests.benchmarks.serving``, about a minute.

A server in a process of its own shows a job of 200 items whose epochs are published every 0.25 s,
on top of 4,000 that are there. Measured is the processor time that viewers add, and how long it
takes to answer what a page asks first. Everything but Kafka is real. Prints JSON.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import aiohttp
import numpy as np
import psutil

from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.topics.manifests import Fate
from tests.support.live_page import deploy_text, live_page, publish
from tests.support.memory_cluster import MemoryCluster

ITEMS = 200
EPOCHS = 4_000
PERIOD = 0.25
SECONDS = 10.0
VIEWERS = 10
RUNS = 5

_LABELS = ", ".join(f"item{number}" for number in range(ITEMS))
_JOB = (
    "name: items\nprotocol: hadamard_values\n"
    f"parameters: {{epsilon: 8, changes: 1, domain: [{_LABELS}]}}\n"
    "epochs: {count: 8192}\n"
)
ASKED = {
    "figures of 12 curves": "/figures.json?job=items&series=" + ",".join(map(str, range(1, 13))),
    "12 curves": "/api/jobs/items/curve?series=" + ",".join(map(str, range(1, 13))),
    "200 sparklines": "/api/jobs/items/sparklines?count=200",
    "details": "/api/jobs/items",
}


def main() -> None:
    """Measure, or be the server."""
    if sys.argv[1:] == ["serve"]:
        asyncio.run(_serve())
        return
    command = [sys.executable, "-m", "tests.benchmarks.serving", "serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            print(json.dumps(asyncio.run(_measure(address, psutil.Process(server.pid))), indent=2))
        finally:
            server.kill()


async def _serve() -> None:
    """Show the job, and publish an epoch now and then, until killed."""
    cluster, rng = MemoryCluster(), np.random.default_rng(1)
    job = deploy_text(cluster, _JOB)
    values = rng.uniform(0, 1_000, ITEMS)

    def grow(epoch: int) -> None:
        values[:] += rng.normal(0, 5, ITEMS)
        estimate = ItemEstimates(values.copy(), 5.0, 9.8, 1_000, 1_000)
        publish(cluster, job, epoch, estimate, Fate.RELEASED)

    for epoch in range(1, EPOCHS + 1):
        grow(epoch)
    async with live_page(cluster) as page:
        print(page.address, flush=True)
        due = time.monotonic()
        for epoch in range(EPOCHS + 1, 8_193):
            due += PERIOD
            await asyncio.sleep(due - time.monotonic())
            grow(epoch)
            page.read()


async def _measure(address: str, server: psutil.Process) -> dict[str, Any]:
    async with aiohttp.ClientSession() as client:
        answers = {what: await _answer(client, address + path) for what, path in ASKED.items()}
        alone = await _share(server)
        seen: Counter[str] = Counter()
        viewers = [asyncio.create_task(_view(client, address, seen)) for _ in range(VIEWERS)]
        await asyncio.sleep(1)
        seen.clear()
        watched = await _share(server)
        epochs = seen["epoch"] / VIEWERS
        for viewer in viewers:
            viewer.cancel()
        await asyncio.gather(*viewers, return_exceptions=True)
    return {
        "items": ITEMS,
        "epochs": EPOCHS,
        "seconds_between_epochs": PERIOD,
        "viewers": VIEWERS,
        "epochs_seen_by_each": epochs,
        "share_of_a_core_without_viewers": round(alone, 4),
        "share_of_a_core_with_them": round(watched, 4),
        "share_of_a_core_each": round((watched - alone) / VIEWERS, 5),
        "answers": answers,
    }


async def _share(server: psutil.Process) -> float:
    """Processor time of the server over a while, as a share of it."""
    before, started = sum(server.cpu_times()[:2]), time.monotonic()
    await asyncio.sleep(SECONDS)
    return float(sum(server.cpu_times()[:2]) - before) / (time.monotonic() - started)


async def _answer(client: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """Milliseconds of the first and of the best later answer, and its kilobytes."""
    took = []
    for _ in range(RUNS):
        started = time.monotonic()
        async with client.get(url) as response:
            size = len(await response.read())
            assert response.status == 200
        took.append(1_000 * (time.monotonic() - started))
    return {
        "first_ms": round(took[0], 1),
        "later_ms": round(min(took[1:]), 1),
        "kilobytes": round(size / 1_000, 1),
    }


async def _view(client: aiohttp.ClientSession, address: str, seen: Counter[str]) -> None:
    async with client.ws_connect(f"{address}/ws?job=items&after={EPOCHS}") as viewer:
        async for message in viewer:
            seen[message.json()["type"]] += 1


if __name__ == "__main__":
    main()
