"""``status --watch`` outlives its broker, and ends when it is told to."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.local_kafka import LocalKafka
from dpstream.pipeline.operations.deployments import deploy
from tests.support.small_run import job_text

ROOT = Path(__file__).parents[2]
PATIENCE = 90.0


@pytest.mark.verify
def test_watching_waits_for_a_broker_that_is_away(
    broker: LocalKafka, bootstrap_servers: str, job_name: str
) -> None:
    with Cluster(Connection((bootstrap_servers,))) as cluster:
        deploy(cluster, parse_job(job_text(job_name)), deployment=secrets.token_bytes(16), now=0)
    watching = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "dpstream.pipeline.cli",
            "status",
            job_name,
            "--watch",
            "--every",
            "0.2",
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "DPSTREAM_BOOTSTRAP_SERVERS": bootstrap_servers,
            "PYTHONUNBUFFERED": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    # Ends the waits below, should it say nothing any more.
    deadline = threading.Timer(PATIENCE, watching.kill)
    deadline.start()
    try:
        wait_for(watching, "problem: no worker of stage publish is alive")
        pid = broker.status().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_for(watching, "looking on")
        broker.start()
        away = time.monotonic()
        while "looking on" in wait_for(watching, "problem: no worker of stage publish", after=1):
            assert time.monotonic() - away < PATIENCE
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=PATIENCE)
        assert (watching.returncode, errors) == (0, "")
    finally:
        deadline.cancel()
        watching.kill()
        watching.wait()
        if not broker.status().running:
            broker.start()


def wait_for(process: subprocess.Popen[str], words: str, *, after: int = 0) -> str:
    """Read until a line has the words; returns it with so many lines after it."""
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return line + "".join(process.stdout.readline() for _ in range(after))
    raise AssertionError(f"it ended without saying {words!r}")
