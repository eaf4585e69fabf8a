"""Test on a real broker that its disk and a subset of the keys reveal no sealed report or share."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy.stats import chisquare

from dpstream.pipeline.connect import open_producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_ring import KeyRing
from dpstream.pipeline.jobs.routes import SHARERS
from dpstream.pipeline.jobs.sealing_keys import read_private_key
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.local_kafka import LocalKafka
from dpstream.pipeline.stages.ciphertexts_of_windows import Decryptor
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.stages.stage_builder import producer_admission
from dpstream.topics.batches import Batch
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.frames import CodecError, RecordType, kind_of
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.messages import MessageArray
from dpstream.topics.names import SUMS, Role
from dpstream.topics.partials import decode_partial
from dpstream.topics.sealed_batches import SealedBatch, decode_sealed_batch, open_batch
from dpstream.topics.sealed_messages import open_rows, unpack_reports
from dpstream.topics.sealing import unseal_all
from dpstream.topics.shares import PartialSum, ciphertexts_of
from tests.support.commands import Commands
from tests.support.keyed_workers import deployed_with_keys, wait_for, worker, workers
from tests.support.processes import TIMEOUT

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


SHARE_PARTIES = {party: party for party in SHARERS}
ITEMS = 500
SHARES_JOB = """\
name: {name}
protocol: fragments
parameters: {{epsilon: 8, delta: 1e-3, domain: [{items}]}}
epochs: {{count: 2}}
shuffle: {{minimum: 100, producers: 2}}
topics: {{partitions: 1}}
sealed: {{shares: [aggregate-a.pub, aggregate-b.pub]}}
"""


@pytest.mark.verify
def test_shares_do_not_reveal_the_counts_of_a_producer(
    broker: LocalKafka,
    bootstrap_servers: str,
    job_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One party is killed and restarted while the other one continues."""
    monkeypatch.chdir(tmp_path)
    items = ", ".join(f"item {number}" for number in range(ITEMS))
    text = SHARES_JOB.format(name=job_name, items=items)
    sealed = deployed_with_keys(text, SHARERS, bootstrap_servers, tmp_path, Commands(capsys))
    with sealed as (cluster, job):
        send_shares(cluster, job, tmp_path, 1)
        with workers(job, bootstrap_servers, tmp_path, SHARE_PARTIES) as first:
            wait_for(cluster, job.topic(Role.ESTIMATES), 1)
            first["aggregate-b"].kill()
            first["aggregate-b"].wait(TIMEOUT)
            send_shares(cluster, job, tmp_path, 2)
            wait_for(cluster, job.topic(SUMS[0]), 2)
            assert cluster.end_offsets(job.topic(SUMS[1]))[0] == 1
            assert cluster.end_offsets(job.topic(Role.PARTIALS))[0] == 1
            with worker(job, "aggregate-b", bootstrap_servers, tmp_path, SHARE_PARTIES):
                wait_for(cluster, job.topic(Role.ESTIMATES), 2)
        kept = {
            role: [record.value for record in cluster.read(job.topic(role))]
            for role in (Role.SHUFFLED, *SUMS, Role.PARTIALS, Role.ESTIMATES)
        }
    for value in kept[Role.ESTIMATES]:
        estimate = EstimateRecord.from_bytes(value)
        assert (estimate.window_status, estimate.contributors) == (WindowStatus.RELEASED, 2 * USERS)
    assert [len(kept[role]) for role in (*SUMS, Role.PARTIALS)] == [2, 2, 2]
    check_partials(job, kept)
    check_shares(job, broker, tmp_path, kept[Role.SHUFFLED])


def check_partials(job: DeployedJob, kept: dict[Role, list[bytes]]) -> None:
    """Check that each party's sums look random, and that together nearly all users have ash."""
    form = job.table_format
    for ours, theirs in zip(*(kept[role] for role in SUMS), strict=True):
        first, second = (
            PartialSum.from_bytes(form, decode_partial(each).payload) for each in (ours, theirs)
        )
        assert first.digest == second.digest
        assert first.chunks is not None
        assert second.chunks is not None
        assert looks_uniform(first.chunks.tobytes())
        assert looks_uniform(second.chunks.tobytes())
        counts = form.joined(first.chunks + second.chunks)
        # Each party adds the reports of devices without a value.
        added = 2 * job.added_by_each(job.law)
        assert counts.max() == counts[0] <= 2 * USERS + added
        assert counts[0] > USERS


def check_shares(job: DeployedJob, broker: LocalKafka, folder: Path, windows: list[bytes]) -> None:
    """Check that only a party's own key decrypts its data on the broker's disk."""
    topic = job.topic(Role.SHUFFLED)
    files = list(broker.directory.rglob(f"{topic}-0/*.log"))
    disk = b"".join(path.read_bytes() for path in files)
    found: list[bytes] = []
    for chunk in map(decode_chunk, windows):
        rows = chunk.words.values
        assert len(rows) == 2
        assert all(row.tobytes() in disk for row in rows)
        for party, name in enumerate(SHARERS):
            keys = KeyRing.of_folder(folder / name)
            own, others = ciphertexts_of(rows, party), ciphertexts_of(rows, 1 - party)
            opened = Decryptor(job, name, keys).open_all(chunk.epoch, own)
            assert None not in opened
            (key,) = keys.keys.values()
            for other in SHARERS:
                context = job.locks.of(other, chunk.epoch).context
                assert unseal_all(others, key, context) == [None, None]
            if party:
                found += [each[24:] for each in opened if each is not None]
    assert looks_uniform(b"".join(found))
    assert looks_uniform(b"".join(decode_chunk(value).words.values.tobytes() for value in windows))


def looks_uniform(data: bytes) -> bool:
    """Return whether bytes look uniform, with a false alarm rate of 1 in 10^12."""
    counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    return float(chisquare(counts).pvalue) > 1e-12


def send_shares(cluster: Cluster, job: DeployedJob, folder: Path, epoch: int) -> None:
    for name in ("north", "south"):
        users = {f"{name}{number}": "item 0" for number in range(USERS)}
        with open_producer(cluster, job, folder / name, name=name) as producer:
            producer.enroll(list(users))
            producer.report(epoch, users)
            producer.close(epoch)


INSTANCE_PARTIES = {"shuffle": "first", "instance-2": "second", "aggregate": "aggregator"}
EPOCHS = 2
INSTANCES_JOB = """\
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
    text, parties = INSTANCES_JOB.format(name=job_name), INSTANCE_PARTIES.values()
    sealed = deployed_with_keys(text, parties, bootstrap_servers, tmp_path, Commands(capsys))
    with sealed as (cluster, job):
        assert list(job.route.stages) == ["shuffle", "instance-2", "aggregate", "publish"]
        send_to_instances(cluster, job, tmp_path)
        raw = {
            role: [record.value for record in cluster.read(job.topic(role))]
            for role in job.route.reports
        }
        drawn = opened_by_instances(job, tmp_path, raw)
        check_disk_before(broker, job, raw)
        with workers(job, bootstrap_servers, tmp_path, INSTANCE_PARTIES) as first:
            wait_for(cluster, job.topic(Role.SHUFFLED), 1)
            first["instance-2"].send_signal(signal.SIGKILL)
            first["instance-2"].wait(TIMEOUT)
            with worker(
                job, "instance-2", bootstrap_servers, tmp_path, INSTANCE_PARTIES, name="another"
            ):
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


def send_to_instances(cluster: Cluster, job: DeployedJob, folder: Path) -> None:
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
        for other in set(INSTANCE_PARTIES.values()) - {party}:
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
