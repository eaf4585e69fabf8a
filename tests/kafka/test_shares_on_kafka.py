"""Test tables split into two shares on a real broker: its disk and one key reveal nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chisquare

from dpstream.pipeline.connect import open_producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_ring import KeyRing
from dpstream.pipeline.jobs.routes import SHARERS
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.local_kafka import LocalKafka
from dpstream.pipeline.stages.ciphertexts_of_windows import Decryptor
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import SUMS, Role
from dpstream.topics.partials import decode_partial
from dpstream.topics.sealing import unseal_all
from dpstream.topics.shares import PartialSum, ciphertexts_of
from tests.support.commands import Commands
from tests.support.keyed_workers import deployed_with_keys, wait_for, worker, workers
from tests.support.processes import TIMEOUT

PARTIES = {party: party for party in SHARERS}
USERS = 60
ITEMS = 500
JOB = """\
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
    text = JOB.format(name=job_name, items=items)
    sealed = deployed_with_keys(text, SHARERS, bootstrap_servers, tmp_path, Commands(capsys))
    with sealed as (cluster, job):
        send(cluster, job, tmp_path, 1)
        with workers(job, bootstrap_servers, tmp_path, PARTIES) as first:
            wait_for(cluster, job.topic(Role.ESTIMATES), 1)
            first["aggregate-b"].kill()
            first["aggregate-b"].wait(TIMEOUT)
            send(cluster, job, tmp_path, 2)
            wait_for(cluster, job.topic(SUMS[0]), 2)
            assert cluster.end_offsets(job.topic(SUMS[1]))[0] == 1
            assert cluster.end_offsets(job.topic(Role.PARTIALS))[0] == 1
            with worker(job, "aggregate-b", bootstrap_servers, tmp_path, PARTIES):
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


def send(cluster: Cluster, job: DeployedJob, folder: Path, epoch: int) -> None:
    for name in ("north", "south"):
        users = {f"{name}{number}": "item 0" for number in range(USERS)}
        with open_producer(cluster, job, folder / name, name=name) as producer:
            producer.enroll(list(users))
            producer.report(epoch, users)
            producer.close(epoch)
