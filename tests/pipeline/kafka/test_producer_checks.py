"""Test that a starting producer detects old copies without reading all manifests."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.devices.producer import Producer, ProducerError
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.kafka import producer_checks
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.producer_checks import LogPartition, check_registered, ends_before
from dpstream.pipeline.kafka.stored_state import ContradictionError
from dpstream.pipeline.stages import decision_log
from dpstream.pipeline.stages.decision_log import DecisionLog
from dpstream.topics.batches import Punctuation, encode_punctuation
from dpstream.topics.manifests import Manifest, WindowStatus, encode_manifest
from dpstream.topics.names import Role
from dpstream.topics.records import Registration
from tests.support.memory_cluster import MemoryCluster
from tests.support.new_jobs import new_job

AHEAD = 3
LAST = 24
NAMES = ("north", "south")


@pytest.fixture(autouse=True)
def _windows_run_a_few_epochs_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (decision_log, producer_checks):
        monkeypatch.setattr(module, "EPOCHS_AHEAD", AHEAD)


def _job() -> DeployedJob:
    made = new_job(
        "checked",
        "future_rand",
        {"epsilon": 1, "max_changes": 1},
        count=LAST,
        minimum=1,
        partitions=1,
    )
    return deploy_job(made, deployed_at=0)


JOB = _job()


class CountingCluster(MemoryCluster):
    manifests_read = reports_read = 0

    def read(
        self, topic: str, partition: int = 0, start: int = 0, stop: int | None = None
    ) -> Iterator[LogRecord]:
        for record in super().read(topic, partition, start, stop):
            self.manifests_read += topic == JOB.topic(Role.MANIFESTS)
            self.reports_read += topic == JOB.topic(Role.REPORTS)
            yield record


class Folder:
    def __init__(self, name: str, cluster: MemoryCluster) -> None:
        self.name, self.job, self.cluster = name, JOB, cluster
        self.enrollment = name.encode().ljust(16, b".")
        self.facts: dict[str, int] = {}
        self.store, self.closed_epoch = self, 0
        self.before: Mapping[LogPartition, int] = {}
        record = Registration(JOB.deployment, name, self.enrollment, 1)
        cluster.append(JOB.topic(Role.PRODUCERS), record.to_bytes())

    def fact(self, name: str) -> int | None:
        return self.facts.get(name)

    def set_fact(self, name: str, value: int) -> None:
        self.facts[name] = value

    def acknowledged(self, role: Role, partition: int) -> int:
        return self.facts.get(f"sent_{role}_{partition}", 0)

    def is_old_copy(self, closed_epoch: int) -> bool:
        self.closed_epoch = closed_epoch
        try:
            check_registered(cast(Cluster, self.cluster), cast(Producer, self), before=self.before)
        except ProducerError as error:
            return "old copy" in str(error)
        return False


def new_cluster() -> CountingCluster:
    cluster = CountingCluster()
    for role in (Role.PRODUCERS, Role.MANIFESTS, Role.REPORTS):
        cluster.partitions[JOB.topic(role)] = 1
    return cluster


def decide(cluster: MemoryCluster, epoch: int, *inside: bool, first_epoch: int = 1) -> bytes:
    devices = sum(inside)
    record = encode_manifest(
        Manifest(
            JOB.fingerprint,
            JOB.deployment,
            epoch,
            WindowStatus.RELEASED if devices else WindowStatus.EMPTY,
            0,
            1,
            first_epoch,
            inside,
            (1,) * devices,
            devices,
            devices,
            0,
        )
    )
    cluster.append(JOB.topic(Role.MANIFESTS), record)
    return record


@st.composite
def decided_logs(draw: st.DrawFn) -> tuple[int, list[tuple[int, bool, bool]]]:
    first = draw(st.integers(1, 3))
    left, log = list(range(first, LAST + 1)), []
    for _ in range(draw(st.integers(0, len(left)))):
        near = [epoch for epoch in left if epoch <= left[0] + AHEAD]
        epoch = draw(st.sampled_from(near))
        left.remove(epoch)
        log.append((epoch, draw(st.booleans()), draw(st.booleans())))
    return first, log


@settings(
    max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(decided_logs(), st.integers(0, LAST), st.integers(0, LAST))
def test_producer_start_detects_every_old_copy_of_its_folder(
    log: tuple[int, list[tuple[int, bool, bool]]], closed: int, later: int
) -> None:
    first, decisions = log
    cluster = new_cluster()
    north, south = (Folder(name, cluster) for name in NAMES)
    whole, known = DecisionLog(JOB), 0
    for epoch, *inside in decisions:
        whole.apply(LogRecord(0, decide(cluster, epoch, *inside, first_epoch=first)))
        known += 1
    assert len(list(whole.decided.below(LAST + 1))) == known, "all manifests are valid"
    for index, folder in enumerate((north, south)):
        assert folder.is_old_copy(closed) == (whole.last_in(index) > closed)
        # Records that an earlier start has read and accepted add no information.
        again = max(closed, later)
        assert folder.is_old_copy(again) == (whole.last_in(index) > again)


def test_producer_start_reads_manifests_written_since_the_previous_start() -> None:
    cluster = new_cluster()
    north, _ = (Folder(name, cluster) for name in NAMES)
    decide(cluster, 1, True, True)
    assert not north.is_old_copy(1)
    decide(cluster, 2, False, True)
    assert not north.is_old_copy(1)
    decide(cluster, 3, True, True)
    assert north.is_old_copy(1)
    assert north.is_old_copy(2), "a rejected start does not store its position"
    assert not north.is_old_copy(3)


def sent(cluster: MemoryCluster, folder: Folder, epoch: int) -> None:
    punctuation = Punctuation(
        JOB.fingerprint, JOB.deployment, folder.enrollment, epoch, 0, 1, 1, bytes(8)
    )
    cluster.append(JOB.topic(Role.REPORTS), encode_punctuation(punctuation))


def test_first_producer_start_reads_only_the_registry(tmp_path: Path) -> None:
    cluster = new_cluster()
    north, south = (Folder(name, cluster) for name in NAMES)
    for epoch in range(1, LAST):
        decide(cluster, epoch, True)
        sent(cluster, north, epoch)
    file = tmp_path / "state"
    south.before = ends_before(cast(Cluster, cluster), JOB, file)
    assert set(south.before.values()) == {LAST - 1}
    assert not south.is_old_copy(0)
    assert (cluster.manifests_read, cluster.reports_read) == (0, 0)
    # It reads the records after that offset.
    south.before = {}
    decide(cluster, LAST, False, True)
    assert south.is_old_copy(0)
    assert cluster.manifests_read == 1
    # If the state already exists, its earlier writes are unknown.
    file.touch()
    assert ends_before(cast(Cluster, cluster), JOB, file) == {}


def test_producer_starts_on_a_full_disk() -> None:
    cluster = new_cluster()
    north = Folder("north", cluster)
    decide(cluster, 1, True)

    def full(name: str, value: int) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    north.set_fact = full  # type: ignore[method-assign]
    assert not north.is_old_copy(1)


def test_producer_start_reports_the_loss_of_acknowledged_reports() -> None:
    """Only producers can detect that a cluster was restored from an earlier copy."""
    cluster = new_cluster()
    north, _ = (Folder(name, cluster) for name in NAMES)
    sent(cluster, north, 1)
    north.facts["sent_reports_0"] = 1
    assert not north.is_old_copy(1)
    cluster.records[JOB.topic(Role.REPORTS), 0].clear()
    found = "up to offset 1, but the partition ends at 0"
    with pytest.raises(ContradictionError, match=found):
        north.is_old_copy(1)
