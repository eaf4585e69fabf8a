"""Test on a real broker that windows rewritten after kills release the same sums and crowds."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import replace
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
from dpstream.pipeline.recording.replay.topic_source import TopicSource
from dpstream.pipeline.stages.crowd_deletion import numbers_left
from dpstream.pipeline.stages.estimate_records import FirstEstimates
from dpstream.pipeline.state import noise_key_file
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import (
    STEPS,
    SUM_ZERO,
    ShuffledValueStreamLaw,
)
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.manifests import WindowStatus, decode_manifest
from dpstream.topics.names import Role
from tests.support.new_jobs import hidden_sizes
from tests.support.replays import replayed

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
        **hidden_sizes(CROWDS, 0.5, 1e-3),
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
    return "run", stage, job.name, "--name", f"{stage}-worker"


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, env=os.environ, stderr=subprocess.DEVNULL
    )


USERS, EPOCHS = 300, 3
# Before the record, when it is sent, and when it has arrived but is not committed.
DEATHS = (0, -1, 1, -1, 2, -1)


@pytest.mark.verify
def test_rewritten_window_has_the_same_sum_and_replays_reproduce_it(
    bootstrap_servers: str, job_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPSTREAM_BOOTSTRAP_SERVERS", bootstrap_servers)
    values = {
        "name": job_name,
        "protocol": "shuffled_counts",
        "parameters": {"epsilon": 1, "delta": 1e-6, "max_changes": 1, "dummies": "shuffle"},
        "epochs": {"count": EPOCHS},
        "shuffle": {"minimum": 100, "grace": "1h"},
        "topics": {"partitions": 1},
    }
    with Cluster(Connection((bootstrap_servers,))) as cluster:
        job = deploy(cluster, make_job(values), deployment=secrets.token_bytes(16), now=0)
        produce_counts(cluster, job)
        for actions in DEATHS:
            dying = start("-m", "tests.kafka.dying_worker", str(actions), *run("shuffle", job))
            assert dying.wait(TIMEOUT) == -signal.SIGKILL
        stages = job.route.stages
        workers = [start("-m", "dpstream.pipeline.cli", *run(stage, job)) for stage in stages]
        try:
            published = wait_for_estimates(cluster, job)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait(TIMEOUT)
        check_sums(cluster, job)
        transport = KafkaTransport(cluster, job.name)
        _, _, again = replayed(TopicSource(job, transport.run))
    assert again.estimates == published
    assert len(again.integers) == EPOCHS


def user_values(epoch: int) -> list[int]:
    """Return values: a third of users have 1 at first, and gradually another third."""
    return [int(user % 3 == 0 or user < 100 * (epoch - 1)) for user in range(USERS)]


def produce_counts(cluster: Cluster, job: DeployedJob) -> None:
    with Producer(job, None, name="p", transport=KafkaTransport(cluster, job.name)) as producer:
        producer.enroll([f"u{user}" for user in range(USERS)])
        for epoch in range(1, EPOCHS + 1):
            producer.report_all(epoch, np.array(user_values(epoch), np.int8))
            producer.close(epoch)


def check_sums(cluster: Cluster, job: DeployedJob) -> None:
    """Check that the stage's only output is one noisy sum per epoch."""
    manifests = [decode_manifest(each.value) for each in cluster.read(job.topic(Role.MANIFESTS))]
    assert {each.epoch for each in manifests} == set(range(1, EPOCHS + 1))
    assert {(each.window_status, each.contributors) for each in manifests} == {
        (WindowStatus.RELEASED, USERS)
    }
    written: dict[int, list[int]] = defaultdict(list)
    for record in cluster.read(job.topic(Role.SHUFFLED)):
        chunk = decode_chunk(record.value)
        assert (chunk.index, chunk.total, chunk.words.counts) == (0, 1, None)
        written[chunk.epoch].extend(chunk.words.values[:, 0].tolist())
    assert max(map(len, written.values())) > 1, "some windows were written twice"
    assert {epoch: len(set(sums)) for epoch, sums in written.items()} == dict.fromkeys(written, 1)
    key, law = NoiseKey.read(noise_key_file(job.name)), job.law
    assert isinstance(law, ShuffledValueStreamLaw)
    noise = law.noise.draw(key.generator(job.deployment, 1))
    ones = sum(user_values(1))
    # The messages of the first epoch are known up to the rounding of each message.
    exact = STEPS * (ones * (0.5 + law.boost) - (USERS - ones) * 0.5)
    assert abs(written[1][0] - SUM_ZERO - noise - exact) <= USERS
    assert law.deviation > USERS, "noise exceeds rounding"


def wait_for_estimates(cluster: Cluster, job: DeployedJob) -> dict[int, bytes]:
    """Return the estimates of all epochs, without the ID of the deployment."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        published, found = FirstEstimates(job), {}
        for record in cluster.read(job.topic(Role.ESTIMATES)):
            latest = published.apply(record.value)
            if latest is not None:
                found[latest.epoch] = replace(latest, deployment=bytes(16)).to_bytes()
        if len(found) == EPOCHS:
            return found
        assert time.monotonic() < deadline, "the workers do not exit"
        time.sleep(0.2)
