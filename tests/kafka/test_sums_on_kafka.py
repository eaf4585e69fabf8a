"""Test noisy sums on a real broker: a window rewritten after a kill has the same sum."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

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
from tests.support.replays import replayed

pytestmark = pytest.mark.verify

ROOT = Path(__file__).parents[2]
# Far longer than any expected wait.
TIMEOUT = 120.0
USERS, EPOCHS = 300, 3
# Before the record, when it is sent, and when it has arrived but is not committed.
DEATHS = (0, -1, 1, -1, 2, -1)


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
        produce(cluster, job)
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


def produce(cluster: Cluster, job: DeployedJob) -> None:
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


def run(stage: str, job: DeployedJob) -> tuple[str, ...]:
    return "run", stage, job.name, "--name", f"{stage}-worker"


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, env=os.environ, stderr=subprocess.DEVNULL
    )
