"""Test sealed parallel shufflers on a real broker: its disk and one key reveal no report.

One shuffler is killed while windows are processed.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from dpstream.pipeline.connect import open_producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_ring import KeyRing
from dpstream.pipeline.jobs.sealing_keys import read_private_key
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.local_kafka import LocalKafka
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.stages.stage_builder import producer_admission
from dpstream.topics.batches import Batch
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.frames import RecordType, kind_of
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role
from dpstream.topics.sealed_messages import open_rows, unpack_reports
from tests.support.commands import Commands
from tests.support.keyed_workers import deployed_with_keys, wait_for, worker, workers
from tests.support.processes import TIMEOUT

PARTIES = {"shuffle": "first", "instance-2": "second", "aggregate": "aggregator"}
USERS = 60
EPOCHS = 2
JOB = """\
name: {name}
protocol: fragments
parameters: {{epsilon: 2, delta: 1e-3, domain: [ash, oak], reports: 2}}
epochs: {{count: 2}}
shuffle: {{minimum: 100, producers: 2, instances: 2}}
topics: {{partitions: 1}}
sealed: {{aggregate: aggregator.pub, stages: [first.pub, second.pub]}}
"""

Ciphertexts: TypeAlias = set[tuple[int, bytes]]


@pytest.mark.verify
def test_compromised_shuffler_decrypts_no_report(
    broker: LocalKafka,
    bootstrap_servers: str,
    job_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    text, parties = JOB.format(name=job_name), PARTIES.values()
    sealed = deployed_with_keys(text, parties, bootstrap_servers, tmp_path, Commands(capsys))
    with sealed as (cluster, job):
        assert list(job.route.stages) == ["shuffle", "instance-2", "aggregate", "publish"]
        send(cluster, job, tmp_path)
        raw = {
            role: [record.value for record in cluster.read(job.topic(role))]
            for role in job.route.reports
        }
        drawn = opened_by_instances(job, tmp_path, raw)
        check_disk_before(broker, job, raw)
        with workers(job, bootstrap_servers, tmp_path, PARTIES) as first:
            wait_for(cluster, job.topic(Role.SHUFFLED), 1)
            first["instance-2"].send_signal(signal.SIGKILL)
            first["instance-2"].wait(TIMEOUT)
            with worker(job, "instance-2", bootstrap_servers, tmp_path, PARTIES, name="another"):
                wait_for(cluster, job.topic(Role.ESTIMATES), EPOCHS)
        chunks = [decode_chunk(record.value) for record in cluster.read(job.topic(Role.SHUFFLED))]
        for record in cluster.read(job.topic(Role.ESTIMATES)):
            estimate = EstimateRecord.from_bytes(record.value)
            assert (estimate.window_status, estimate.contributors) == (
                WindowStatus.RELEASED,
                2 * USERS,
            )
        assert cluster.end_offsets(job.topic(Role.DEAD_LETTERS)) == [0]
    for instance, role in enumerate(job.route.reports, 1):
        passed = {
            (chunk.epoch, row.tobytes())
            for chunk in chunks
            if chunk.instance == instance
            for row in chunk.words.values
        }
        assert passed == drawn[role], "the shuffler forwards only its own messages"
    ciphertexts = set.union(*drawn.values())
    assert reports_in_ciphertexts(job, tmp_path, "first", ciphertexts) is None
    assert reports_in_ciphertexts(job, tmp_path, "second", ciphertexts) is None
    reports = reports_in_ciphertexts(job, tmp_path, "aggregator", ciphertexts)
    assert reports is not None
    assert reports < len(ciphertexts), "some of them are cover traffic"
    # On average, a device sends more than two reports per epoch.
    assert reports > EPOCHS * 2 * USERS
    check_disk_after(broker, job, drawn)


def send(cluster: Cluster, job: DeployedJob, folder: Path) -> None:
    """Report as two gateways, one with only ash and one with only oak, before stages run."""
    for name, value in (("north", "ash"), ("south", "oak")):
        users = {f"{name}{number}": value for number in range(USERS)}
        with open_producer(cluster, job, folder / name, name=name) as producer:
            producer.enroll(list(users))
            for epoch in range(1, EPOCHS + 1):
                producer.report(epoch, users)
                producer.close(epoch)


def opened_by_instances(
    job: DeployedJob, folder: Path, raw: dict[Role, list[bytes]]
) -> dict[Role, Ciphertexts]:
    """Return the ciphertexts in each shuffler's topic; check that no other key decrypts them."""
    drawn: dict[Role, Ciphertexts] = {}
    for role, party in zip(job.route.reports, ("first", "second"), strict=True):
        batches = [value for value in raw[role] if kind_of(value) is not RecordType.PUNCTUATION]
        assert {kind_of(value) for value in batches} == {RecordType.SEALED_BATCH}
        sizes = [len(value) for value in batches]
        quarter = len(sizes) // (2 * EPOCHS)
        assert sizes == sizes[:quarter] * 2 * EPOCHS, "record sizes reveal nothing"
        for other in set(PARTIES.values()) - {party}:
            keys = KeyRing.of_folder(folder / other)
            admission = producer_admission(job, keys, role)
            assert not any(isinstance(admission.admit(0, value), Batch) for value in batches)
        admission = producer_admission(job, KeyRing.of_folder(folder / party), role)
        found: Ciphertexts = set()
        for value in batches:
            batch = admission.admit(0, value)
            assert isinstance(batch, Batch)
            found |= {(batch.epoch, row.tobytes()) for row in batch.words.values}
        drawn[role] = found
    first, second = drawn.values()
    assert not first & second
    assert len(first) == len(second), "all are padded to the same size"
    return drawn


def reports_in_ciphertexts(
    job: DeployedJob, folder: Path, party: str, ciphertexts: Ciphertexts
) -> int | None:
    """Return the number of reports (without cover traffic) that a party decrypts, or None."""
    key = read_private_key(folder / party / f"{party}.key")
    opened = reports = 0
    for epoch, row in ciphertexts:
        values = np.frombuffer(row, "<u8").reshape(1, -1)
        for name in ("stage 1", "stage 2", "aggregate"):
            inner = open_rows(values, key, job.locks.of(name, epoch).context)
            opened += len(inner)
            reports += len(unpack_reports(inner, job.message_format))
    assert opened in (0, len(ciphertexts))
    return reports if opened else None


def files_of(broker: LocalKafka, job: DeployedJob, role: Role) -> bytes:
    files = list(broker.directory.rglob(f"{job.topic(role)}-0/*.log"))
    assert files
    return b"".join(path.read_bytes() for path in files)


def check_disk_before(broker: LocalKafka, job: DeployedJob, raw: dict[Role, list[bytes]]) -> None:
    """Check that the inspected records are those on the broker's disk."""
    for role, values in raw.items():
        disk = files_of(broker, job, role)
        assert all(value in disk for value in values)


def check_disk_after(broker: LocalKafka, job: DeployedJob, drawn: dict[Role, Ciphertexts]) -> None:
    """Check that no aggregated ciphertext is left in the topics of earlier stages on disk."""
    needles = {row[:16] for ciphertexts in drawn.values() for _, row in ciphertexts}
    shuffled = files_of(broker, job, Role.SHUFFLED)
    assert all(needle in shuffled for needle in needles)
    for role in job.route.reports:
        disk = files_of(broker, job, role)
        assert not any(needle in disk for needle in needles)
