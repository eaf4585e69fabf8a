"""Test a recurring job of sampled items on a real broker: kills, a replay, a diff and the page.

Epsilon is so large that answers are the users' items, which never change. So each user's phase can
be recognized, in both horizons.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from dpstream.pipeline.kafka.connection import Connection
from tests.kafka.conftest import ROOT, TIMEOUT
from tests.kafka.test_replay import wait_until_published
from tests.support.commands import Commands
from tests.support.served import Served
from tests.support.warm import WarmPopen

Start = Callable[..., "subprocess.Popen[str]"]

USERS, ITEMS, COUNT, EPOCHS = 203, 12, 4, 8
STAGES = ("shuffle", "aggregate", "publish")


def job_text(name: str) -> str:
    labels = ", ".join(f"item{item}" for item in range(ITEMS))
    return (
        f"name: {name}\nprotocol: sampled_response\n"
        f"parameters: {{epsilon: 30, complete: true, domain: [{labels}]}}\n"
        f"epochs: {{count: {COUNT}, renew: true}}\nshuffle: {{minimum: 20, grace: 1h}}\n"
        "topics: {partitions: 2}\nroll_up: [2]\n"
    )


async def page(servers: str, name: str) -> tuple[Any, Any]:
    """Return what the page states about the job, and the estimates that it shows."""
    served, answers = Served(Connection((servers,)), name), []
    async with served as address, aiohttp.ClientSession() as client:
        for path in ("", "/estimates"):
            async with client.get(f"{address}api/jobs/{name}{path}") as response:
                assert response.status == 200, await response.text()
                answers.append(await response.json())
    return answers[0], answers[1]["estimates"]


def test_phases_and_answers_survive_kills_and_replays_reproduce_the_results(
    dpstream: Commands, start: Start, bootstrap_servers: str, job_name: str, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(job_text(job_name))
    rows = tmp_path / "items.csv"
    items = [user * user % ITEMS for user in range(USERS)]
    users = [f"user{user},1,item{item}\n" for user, item in enumerate(items)]
    rows.write_text("user,epoch,value\n" + "".join(users))
    assert dpstream("deploy", tmp_path / "job.yaml").code == 0

    # A shuffler is killed while it writes, and a producer after an epoch of the first horizon.
    arguments = ["1", "run", "shuffle", job_name, "--bootstrap-servers", bootstrap_servers]
    command = [sys.executable, "-m", "tests.kafka.dying_worker", *arguments]
    produce = ("produce", job_name, "--input", str(rows), "--to-epoch", str(EPOCHS))
    with WarmPopen(command, cwd=ROOT) as shuffler:
        producer = start(*produce, "--rate", "0.1")
        try:
            assert shuffler.wait(TIMEOUT) == -signal.SIGKILL
        finally:
            shuffler.kill()
    assert producer.poll() is None
    producer.kill()
    producer.wait(TIMEOUT)
    for stage in STAGES:
        start("run", stage, job_name)
    done = dpstream(*produce)
    assert done.code == 0, done.errors
    wait_until_published(bootstrap_servers, job_name, EPOCHS)

    lines = dpstream("estimates", job_name, "--json").output.splitlines()
    estimates = [json.loads(line)["estimate"] for line in lines]
    answers = np.array([each["reports"] for each in estimates])
    values = np.array([each["items"] for each in estimates])
    counts = np.rint(values * answers[:, None] / USERS).astype(int)
    # All users have answered once in a horizon, and at the same epoch of the next one.
    assert {each["population"] for each in estimates} == {USERS}
    assert counts[:COUNT].sum(0).tolist() == np.bincount(items, minlength=ITEMS).tolist()
    assert counts[:COUNT].tolist() == counts[COUNT:].tolist()

    folder, again = tmp_path / "recorded", f"{job_name}-again"
    assert dpstream("record", job_name, "--output", folder).code == 0
    assert dpstream("record", "--verify", folder).code == 0
    done = dpstream("replay", folder, "--new-name", again, "--partitions", 1)
    assert done.code == 0, done.errors
    assert dpstream("diff", job_name, again).code == 0
    replayed = dpstream("replay", job_name, "--in-memory", "--format", "csv").output
    assert replayed == dpstream("estimates", job_name, "--format", "csv").output
    stated, shown = asyncio.run(page(bootstrap_servers, job_name))
    assert stated["guarantee"]["rolling"] == {"epochs": COUNT, "epsilon": 30.0}
    assert [each["estimate"] for each in shown] == estimates
