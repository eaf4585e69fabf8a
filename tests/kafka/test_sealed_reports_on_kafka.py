"""Test sealed reports on a real broker: its disk and a subset of the keys reveal no report."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpstream.pipeline.connect import open_producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.sealing_keys import read_private_key
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.local_kafka import LocalKafka
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.frames import CodecError, RecordType, kind_of
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.messages import MessageArray
from dpstream.topics.names import Role
from dpstream.topics.sealed_batches import SealedBatch, decode_sealed_batch, open_batch
from dpstream.topics.sealed_messages import open_rows, unpack_reports
from tests.support.commands import Commands
from tests.support.keyed_workers import deployed_with_keys, wait_for, worker, workers

PARTIES = {"shuffle": "stage-a", "shuffle-2": "stage-b", "aggregate": "aggregator"}
USERS = 60
JOB = """\
name: {name}
protocol: fragments
parameters: {{epsilon: 2, delta: 1e-3, domain: [ash, oak]}}
epochs: {{count: 2}}
shuffle: {{minimum: 100, producers: 2}}
topics: {{partitions: 1}}
sealed: {{aggregate: aggregator.pub, stages: [stage-a.pub, stage-b.pub]}}
"""


def test_no_single_party_reads_a_sealed_report(
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
        keys = {party: read_private_key(tmp_path / party / f"{party}.key") for party in parties}
        raw = send(cluster, job, tmp_path)
        with workers(job, bootstrap_servers, tmp_path, PARTIES) as first:
            released(cluster, job, 1)
            # Another worker takes over, and rewrites the unfinished window.
            first["shuffle-2"].kill()
            with worker(job, "shuffle-2", bootstrap_servers, tmp_path, PARTIES, name="second"):
                # The first stage deletes what it has forwarded, so it is paused until then.
                first["shuffle"].send_signal(signal.SIGSTOP)
                raw += send(cluster, job, tmp_path, epoch=2)
                first["shuffle"].send_signal(signal.SIGCONT)
                released(cluster, job, 2)
        passed = {
            role: [decode_chunk(record.value) for record in cluster.read(job.topic(role))]
            for role in (Role.HOP_1, Role.SHUFFLED)
        }
    check_sizes(raw)
    batches = [
        decode_sealed_batch(value) for value in raw if kind_of(value) is RecordType.SEALED_BATCH
    ]
    hop, shuffled = (
        {(chunk.epoch, row.tobytes()) for chunk in chunks for row in chunk.words.values}
        for chunks in passed.values()
    )
    inside = {
        (sealed.epoch, row.tobytes())
        for sealed in batches
        for row in batch_rows(job, sealed, keys["stage-a"])
    }
    assert inside == hop, "the first stage forwards the contents of the batches"
    for party, key in keys.items():
        assert party == "stage-a" or not any(opens(job, sealed, key) for sealed in batches)
        assert count_opened(job, "stage 2", hop, key) == (len(hop) if party == "stage-b" else 0)
        # The aggregator's key decrypts the inner ciphertexts, once a stage has decrypted the outer
        # ones.
        assert count_opened(job, "aggregate", hop, key) == 0
        read = count_opened(job, "aggregate", shuffled, key)
        assert read == (len(shuffled) if party == "aggregator" else 0)
    shuffling = job.protocol_entry.shuffling
    assert shuffling is not None
    added = shuffling.capacity(job.law, 1, job.added_by_each(job.law))
    passed_on = Counter(epoch for epoch, _ in hop)
    assert Counter(epoch for epoch, _ in shuffled) == {
        epoch: ciphertexts + added for epoch, ciphertexts in passed_on.items()
    }
    check_disk(broker, job, shuffled)


def send(cluster: Cluster, job: DeployedJob, folder: Path, epoch: int = 1) -> list[bytes]:
    """Report as two gateways, one with only ash and one with only oak; return the records."""
    before = cluster.end_offsets(job.topic(Role.REPORTS))[0]
    for name, value in (("north", "ash"), ("south", "oak")):
        users = {f"{name}{number}": value for number in range(USERS)}
        with open_producer(cluster, job, folder / name, name=name) as producer:
            producer.enroll(list(users))
            producer.report(epoch, users)
            producer.close(epoch)
    topic = job.topic(Role.REPORTS)
    records = [record.value for record in cluster.read(topic) if record.offset >= before]
    assert records, "no stage has deleted the records yet"
    return records


def check_sizes(raw: list[bytes]) -> None:
    """Check that the gateways' records have the same lengths, whatever their users' items."""
    sizes = [len(value) for value in raw if kind_of(value) is RecordType.SEALED_BATCH]
    half = len(sizes) // 4
    assert sizes[:half] == sizes[half : 2 * half] == sizes[2 * half : 3 * half]


def check_disk(broker: LocalKafka, job: DeployedJob, shuffled: set[tuple[int, bytes]]) -> None:
    """Check that no aggregated ciphertext is left in the topics of earlier stages on disk."""
    needles = {row[:16] for _, row in shuffled}
    for role in (Role.REPORTS, Role.HOP_1):
        files = list(broker.directory.rglob(f"{job.topic(role)}-0/*.log"))
        assert files
        for path in files:
            content = path.read_bytes()
            assert not any(needle in content for needle in needles), path


def opens(job: DeployedJob, sealed: SealedBatch, key: X25519PrivateKey) -> bool:
    try:
        open_batch(sealed, key, job.locks.of("stage 1", sealed.epoch).context)
    except CodecError:
        return False
    return True


def batch_rows(job: DeployedJob, sealed: SealedBatch, key: X25519PrivateKey) -> MessageArray:
    return open_batch(sealed, key, job.locks.of("stage 1", sealed.epoch).context).words.values


def count_opened(
    job: DeployedJob, party: str, rows: set[tuple[int, bytes]], key: X25519PrivateKey
) -> int:
    """Count the ciphertexts that a key decrypts; check that they are reports or cover traffic."""
    opened = 0
    for epoch, row in rows:
        values = np.frombuffer(row, "<u8").reshape(1, -1)
        inner = open_rows(values, key, job.locks.of(party, epoch).context)
        opened += len(inner)
        if party == "aggregate" and len(inner):
            assert unpack_reports(inner, job.message_format).max(initial=0) < 2
    return opened


def released(cluster: Cluster, job: DeployedJob, epochs: int) -> None:
    topic = job.topic(Role.ESTIMATES)
    wait_for(cluster, topic, epochs)
    for record in cluster.read(topic):
        estimate = EstimateRecord.from_bytes(record.value)
        assert (estimate.window_status, estimate.contributors) == (WindowStatus.RELEASED, 2 * USERS)
