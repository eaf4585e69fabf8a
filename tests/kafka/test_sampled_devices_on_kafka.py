"""Test devices of sampled_response on a real broker: over HTTP, through a killed collector.

Devices are real clients. What is published is recomputed from what they store.
"""

from __future__ import annotations

import contextlib
import json
import math
import select
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from dpstream.aggregators.estimate import Participation
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import read_jobs
from dpstream.pipeline.kafka.local_kafka.broker import free_port
from dpstream.pipeline.results.follow import EstimateReader
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.randomizers.client import Device, Limit, UnreachableError
from dpstream.randomizers.client.document import Document
from dpstream.randomizers.one_device import OneDevice
from dpstream.topics.manifests import Manifest, WindowStatus, decode_manifest
from dpstream.topics.names import Role
from tests.kafka.conftest import TIMEOUT
from tests.support.commands import Commands
from tests.support.small_collector import MemoryStore

Start = Callable[..., "subprocess.Popen[str]"]

DEVICES = 40
EPOCHS = 4
MINIMUM = 8


@dataclass(frozen=True)
class Times:
    """Seconds of a run on a machine on which a command takes `command` seconds."""

    command: float

    @property
    def begins_in(self) -> int:
        """Time until the first epoch, in which all processes start and all devices join."""
        return max(40, math.ceil(8 * self.command))

    @property
    def length(self) -> int:
        return max(12, math.ceil(2 * self.command))

    @property
    def late(self) -> int:
        """Time after an epoch in which a killed collector restarts."""
        return max(30, math.ceil(8 * self.command))


def value_of(device: int, epoch: int) -> bool:
    return (device + epoch) % 3 == 0


def job_text(name: str, start: datetime, times: Times) -> str:
    return f"""\
name: {name}
protocol: sampled_response
parameters: {{epsilon: 4, reports: 1}}
epochs: {{count: {EPOCHS}, start: "{start:%Y-%m-%dT%H:%M:%SZ}", length: PT{times.length}S}}
shuffle: {{minimum: {MINIMUM}, grace: PT{times.late + 5}S}}
topics: {{partitions: 2}}
devices: {{late: PT{times.late}S}}
"""


def collector(start: Start, job: str, port: int) -> subprocess.Popen[str]:
    process = start("collect", "--job", job, "--bind", f"127.0.0.1:{port}")
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], TIMEOUT)[0], "the collector prints nothing"
    return process


def wait_for(moment: datetime) -> None:
    time.sleep(max(0.0, (moment - datetime.now(UTC)).total_seconds()))


def expected_words(job: DeployedJob, stores: Sequence[MemoryStore]) -> dict[int, list[int]]:
    """Return the answers of each epoch, from the draws that devices store."""
    words: dict[int, list[int]] = {epoch: [] for epoch in range(1, EPOCHS + 1)}
    for number, store in enumerate(stores):
        member = Document.from_text(store.text).member(job.name)
        assert member is not None
        assert not member.waiting
        assert member.enrolled == 1
        for epoch, answers in words.items():
            state: dict[str, Any] = {**(member.state or {}), "epoch": 0}
            device = OneDevice.restore(job.protocol, job.constants, state)
            drawn = device.report(epoch, value_of(number, epoch), lambda count: bytes(count))
            answers += drawn.ravel().tolist()
    return words


def published(cluster: Cluster, job: DeployedJob, times: Times) -> list[EstimateRecord]:
    deadline = time.monotonic() + 3 * TIMEOUT + times.late
    reader = EstimateReader(cluster, job)
    records: list[EstimateRecord] = []
    while len(records) < EPOCHS:
        assert time.monotonic() < deadline, f"{len(records)} epochs are published"
        records += reader.read()
        time.sleep(0.2)
    return records


def test_devices_that_answer_once_count_once_when_a_collector_is_killed(
    dpstream: Commands, start: Start, cluster: Cluster, job_name: str, tmp_path: Path
) -> None:
    begun = time.monotonic()
    start("list").communicate(timeout=TIMEOUT)
    times = Times(time.monotonic() - begun)
    begins = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=times.begins_in)
    (tmp_path / "job.yaml").write_text(job_text(job_name, begins, times))
    assert dpstream("deploy", tmp_path / "job.yaml").code == 0
    job = read_jobs(cluster).jobs[job_name]
    assert job.signed_description is not None
    for stage in ("shuffle", "aggregate", "publish"):
        start("run", stage, job_name)
    port = free_port()
    running = collector(start, job_name, port)
    stores = [MemoryStore() for _ in range(DEVICES)]
    devices = [
        Device(
            f"http://127.0.0.1:{port}",
            job_name,
            signers=[job.signed_description.signer.hex()],
            limit=Limit.of(4),
            store=store,
        )
        for store in stores
    ]

    def join(device: Device) -> None:
        # A collector that has just started has not read its jobs.
        while datetime.now(UTC) < begins:
            with contextlib.suppress(UnreachableError):
                device.join()
                return
            time.sleep(0.2)

    def report(number: int, epoch: int) -> int:
        told = devices[number].report(value_of(number, epoch))
        assert (told.epoch, told.drawn) == (epoch, True)
        return devices[number].deliver(times.late).waiting

    restart: threading.Thread | None = None
    with ThreadPoolExecutor(DEVICES) as pool:
        # They enroll as of the first epoch, which has not begun.
        list(pool.map(join, devices))
        for epoch in range(1, EPOCHS + 1):
            wait_for(begins + timedelta(seconds=(epoch - 1) * times.length + 0.5))
            if epoch == 2:
                running.kill()
                restart = threading.Thread(target=collector, args=(start, job_name, port))
                restart.start()
            waiting = pool.map(report, range(DEVICES), [epoch] * DEVICES)
            if epoch != 2:
                assert set(waiting) == {0}
    assert restart is not None
    restart.join()
    words = expected_words(job, stores)
    assert sum(map(len, words.values())) == DEVICES
    records = published(cluster, job, times)
    manifests: dict[int, Manifest] = {}
    for stored in cluster.read(job.topic(Role.MANIFESTS)):
        manifest = decode_manifest(stored.value)
        manifests.setdefault(manifest.epoch, manifest)
    for record in records:
        epoch, answers = record.epoch, words[record.epoch]
        manifest = manifests[epoch]
        # The minimum counts answers; the population those who have enrolled.
        assert (manifest.contributors, manifest.population) == (len(answers), DEVICES)
        released = len(answers) >= MINIMUM
        assert (manifest.window_status is WindowStatus.RELEASED) == released
        assert (record.estimate is not None) == released
        if record.headline is not None:
            aggregator = job.aggregator()
            aggregator.add(epoch, np.array(answers, np.uint8)[:, None], None)
            expected = aggregator.estimate(epoch, Participation.constant(EPOCHS, DEVICES))
            assert expected is not None
            assert record.headline == expected.headline
            assert record.headline.reports == len(answers)
    folder, again = tmp_path / "recorded", f"{job_name}-again"
    assert dpstream("record", job_name, "--output", folder).code == 0
    assert dpstream("record", "--verify", folder).code == 0
    done = dpstream("replay", folder, "--new-name", again, "--partitions", 1)
    assert done.code == 0, done.errors
    assert dpstream("diff", job_name, again).code == 0
    described = json.loads(job.signed_description.statement)
    assert described["epochs"]["answers"] == 1
