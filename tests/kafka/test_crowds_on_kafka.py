"""Test crowds on a real broker: a window rewritten after a kill omits the same messages."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.jobs.key_files import NoiseKey
from dpstream.pipeline.kafka.cluster import Cluster, KafkaTransport
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.stages.crowd_deletion import numbers_left
from dpstream.pipeline.state import noise_key_file
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.manifests import decode_manifest
from dpstream.topics.names import Role

ROOT = Path(__file__).parents[2]
# Far longer than any expected wait.
TIMEOUT = 120.0
CROWDS = ("old", "new", "rare")
SIZES = (900, 600, 30)
# Before the first record, after some records, and after the last record before the commit.
SHORT, LONG = (-1,), (0, 1, -1, 2, -1, 1, 3, -1)

Row: TypeAlias = tuple[int, ...]
Attempts: TypeAlias = dict[int, list[tuple[Counter[Row], bool]]]


@pytest.mark.verify
@pytest.mark.parametrize("deaths", [SHORT, LONG], ids=["once", "often"])
def test_rewritten_window_omits_the_same_messages(
    deaths: tuple[int, ...],
    bootstrap_servers: str,
    job_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPSTREAM_BOOTSTRAP_SERVERS", bootstrap_servers)
    values = {
        "name": job_name,
        "protocol": "single_message",
        # Messages are wide, so that a window has several records.
        "parameters": {
            "epsilon": 1,
            "delta": 1e-3,
            "domain": [f"item {item}" for item in range(400)],
            "response": "rappor",
        },
        "epochs": {"count": 2},
        "shuffle": {"minimum": 100, "grace": "1h"},
        "topics": {"partitions": 1},
        "crowds": {"by": "version", "values": list(CROWDS), "epsilon": 0.5, "delta": 1e-3},
    }
    with Cluster(Connection((bootstrap_servers,))) as cluster:
        job = deploy(cluster, make_job(values), deployment=secrets.token_bytes(16), now=0)
        produce(cluster, job)
        for actions in deaths:
            dying = start("-m", "tests.kafka.dying_worker", str(actions), *run("shuffle", job))
            assert dying.wait(TIMEOUT) == -signal.SIGKILL
        written = attempts_at_the_end(cluster, job)
    ends = sum(actions == -1 for actions in deaths)
    # Unacknowledged records might have arrived, too.
    assert len([each for each in written[1] if each[1]]) >= ends + 1
    key, law = NoiseKey.read(noise_key_file(job.name)), job.crowds_law
    assert law is not None
    for epoch in (1, 2):
        left = numbers_left(law.counts, np.array(SIZES), key.generator(job.deployment, epoch))
        whole, *others = (words for words, complete in written[epoch] if complete)
        assert all(each == whole for each in others)
        assert all(each <= whole for each, complete in written[epoch] if not complete)
        crowds = law.crowds_of(np.array(list(whole.elements()), np.uint8))
        assert np.bincount(crowds, minlength=4).tolist() == [0, *left[:2].tolist(), 0]


def produce(cluster: Cluster, job: DeployedJob) -> None:
    """Report two epochs of all users, each in a crowd with an item."""
    crowds = np.repeat(np.arange(len(CROWDS)), SIZES)
    first = 1 + crowds * 401
    held = np.stack([first, first + 1 + np.arange(len(crowds)) % 400], axis=1)
    with Producer(job, None, name="p", transport=KafkaTransport(cluster, job.name)) as producer:
        producer.enroll([f"u{user}" for user in range(len(held))])
        for epoch in (1, 2):
            producer.report_all(epoch, held)
            producer.close(epoch)


def attempts(cluster: Cluster, job: DeployedJob) -> Attempts:
    """Return the records of each attempt to write an epoch, and whether it is complete."""
    manifests = [decode_manifest(each.value) for each in cluster.read(job.topic(Role.MANIFESTS))]
    assert [each.contributors for each in manifests] == [sum(SIZES)] * len(manifests)
    words: dict[tuple[int, bytes], Counter[Row]] = defaultdict(Counter)
    missing: dict[tuple[int, bytes], int] = {}
    for record in cluster.read(job.topic(Role.SHUFFLED)):
        chunk = decode_chunk(record.value)
        place = chunk.epoch, chunk.attempt
        counts = chunk.words.counts
        rows = chunk.words.values if counts is None else np.repeat(chunk.words.values, counts, 0)
        words[place].update(map(tuple, rows.tolist()))
        missing[place] = missing.get(place, chunk.total) - 1
        assert chunk.total > 1
    found: Attempts = defaultdict(list)
    for place, multiset in words.items():
        found[place[0]].append((multiset, missing[place] == 0))
    return found


def attempts_at_the_end(cluster: Cluster, job: DeployedJob) -> Attempts:
    worker = start("-m", "dpstream.pipeline.cli", *run("shuffle", job))
    deadline = time.monotonic() + TIMEOUT
    try:
        while not any(complete for _, complete in attempts(cluster, job)[2]):
            assert time.monotonic() < deadline, "the worker does not exit"
            time.sleep(0.2)
    finally:
        worker.kill()
        worker.wait(TIMEOUT)
    return attempts(cluster, job)


def run(stage: str, job: DeployedJob) -> tuple[str, ...]:
    return "run", stage, job.name, "--name", "worker"


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, env=os.environ, stderr=subprocess.DEVNULL
    )
