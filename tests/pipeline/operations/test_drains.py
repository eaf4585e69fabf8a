"""Test the progress and the completion of a drain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from dpstream.pipeline.actions import Append, LogRecord
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import DeploymentError, read_jobs, set_phase
from dpstream.pipeline.kafka.workers import Committed
from dpstream.pipeline.operations.drains import DrainWatch, end_drain, start_drain
from dpstream.topics.names import JOBS_TOPIC, Role
from dpstream.topics.records import decode_producer_record
from tests.support import cells
from tests.support.world import World

pytestmark = pytest.mark.usefixtures("cells_protocol")

NOW = 1_700_000_000_000


@dataclass
class Topics:
    world: World
    jobs: list[LogRecord] = field(default_factory=list)

    @property
    def cluster(self) -> Cluster:
        return cast(Cluster, self)

    def exists(self, topic: str) -> bool:
        return topic in self.topics()

    def topics(self) -> set[str]:
        return {JOBS_TOPIC}

    def _role(self, topic: str) -> Role:
        return next(role for role in Role if self.world.job.topic(role) == topic)

    def end_offsets(self, topic: str) -> list[int]:
        role = self._role(topic)
        partitions = len(self.world.job.start_offsets[role])
        return [self.world.log.end(role, partition) for partition in range(partitions)]

    def committed(self, group: str, topic: str) -> list[Committed | None]:
        assert group == f"drained.shuffle.{self.world.job.deployment.hex()}"
        role = self._role(topic)
        partitions = len(self.world.job.start_offsets[role])
        found = (self.world.log.committed.get((role, place)) for place in range(partitions))
        return [None if offset is None else Committed(offset, own=True) for offset in found]

    def read(self, topic: str, partition: int = 0, start: int = 0) -> Iterator[LogRecord]:
        if topic == JOBS_TOPIC:
            yield from self.jobs[start:]
            return
        role = self._role(topic)
        yield from self.world.log.read(role, 0, start, self.world.log.end(role, 0)).records

    def append(self, topic: str, value: bytes | None, key: bytes | None = None) -> None:
        if topic == JOBS_TOPIC:
            self.jobs.append(LogRecord(len(self.jobs), value or b"", 0, key))
        else:
            assert value is not None
            self.world.log.append(Append(self._role(topic), 0, value, key=key))


@pytest.fixture
def topics(tmp_path: Path) -> Iterator[Topics]:
    """Deploy a job whose windows wait an hour; the registered producer "south" is missing."""
    values = {
        "name": "drained",
        "protocol": cells.NAME,
        "parameters": {"cells": 30},
        "epochs": {"count": 8},
        "shuffle": {"minimum": 1, "grace": "1h", "producers": 2},
        "topics": {"partitions": 2},
    }
    job = deploy_job(make_job(values), deployment=bytes(range(16)), deployed_at=0)
    people = {
        name: {epoch: {f"{name}{cell}": cell for cell in range(15)} for epoch in range(1, 9)}
        for name in ("north", "south")
    }
    world = World(job, tmp_path, people)
    for name in people:
        world.producer(name)
    made = Topics(world)
    made.append(JOBS_TOPIC, job.to_bytes(), b"drained")
    yield made
    world.shut()


def drains(world: World) -> list[tuple[int, int]]:
    records = map(decode_producer_record, world.log.values(Role.PRODUCERS)[2:])
    return [(record.partition, record.end) for record in records]  # type: ignore[union-attr]


def test_second_request_to_drain_joins_the_drain_in_progress(topics: Topics) -> None:
    world, job = topics.world, topics.world.job
    world.close_epoch("north", 1)
    ends = start_drain(topics.cluster, job, NOW)
    assert dict(ends) == {0: 0, 1: 2}
    assert read_jobs(topics.cluster).phase("drained") is Phase.DRAINING
    world.close_epoch("north", 2)
    assert start_drain(topics.cluster, job, NOW) == ends
    assert drains(world) == [(0, 0), (1, 2)]
    set_phase(topics.cluster, job, Phase.RUNNING, NOW)
    assert dict(start_drain(topics.cluster, job, NOW)) == {0: 2, 1: 2}


def test_incomplete_request_to_drain_is_repeated(topics: Topics) -> None:
    """The earlier command was killed before it wrote the job's phase."""
    world, job = topics.world, topics.world.job
    start_drain(topics.cluster, job, NOW)
    topics.jobs.pop()
    world.close_epoch("north", 1)
    assert dict(start_drain(topics.cluster, job, NOW)) == {0: 0, 1: 2}


def test_drain_progress_counts_open_and_unpublished_epochs(topics: Topics) -> None:
    world, job = topics.world, topics.world.job
    for epoch in (1, 3):
        world.close_epoch("north", epoch)
    world.settle()
    watch = DrainWatch(topics.cluster, job, start_drain(topics.cluster, job, NOW))
    begun = watch.progress(NOW)
    assert (begun.unfinished, begun.undecided, begun.unpublished, begun.done) == (4, (), (), False)
    assert begun.idle == ("shuffle", "aggregate", "publish")
    world.settle(["shuffle"])
    written = watch.progress(NOW)
    assert (written.unfinished, written.undecided) == (0, (2,))
    assert (written.unpublished, written.done) == ((1, 3), False)
    world.settle()
    decided = watch.progress(NOW)
    assert (decided.undecided, decided.unpublished, decided.done) == ((), (), True)


def test_job_without_open_epochs_is_drained_immediately(topics: Topics) -> None:
    job = topics.world.job
    watch = DrainWatch(topics.cluster, job, start_drain(topics.cluster, job, NOW))
    assert watch.progress(NOW).done
    end_drain(topics.cluster, job, NOW)
    assert read_jobs(topics.cluster).phase("drained") is Phase.DRAINED


def test_drain_ignores_epochs_after_its_start(topics: Topics) -> None:
    """Epoch 4 is released, but not published, because epoch 3 waits for the south."""
    world, job = topics.world, topics.world.job
    world.close_epoch("north", 1)
    watch = DrainWatch(topics.cluster, job, start_drain(topics.cluster, job, NOW))
    for name, epoch in (("north", 3), ("north", 4), ("south", 4)):
        world.close_epoch(name, epoch)
    world.settle()
    world.settle()
    assert sorted(world.manifests()) == [1, 4]
    assert sorted(world.published()) == [1]
    assert watch.progress(NOW).done


def replaced(job: DeployedJob) -> bytes:
    return job.model_copy(update={"deployment": bytes(16)}).to_bytes()


def test_drain_cannot_be_ended_after_its_job_has_changed(topics: Topics) -> None:
    job = topics.world.job
    start_drain(topics.cluster, job, NOW)
    set_phase(topics.cluster, job, Phase.RUNNING, NOW)
    with pytest.raises(
        DeploymentError, match="everything is published, but job drained is running"
    ):
        end_drain(topics.cluster, job, NOW)
    assert read_jobs(topics.cluster).phase("drained") is Phase.RUNNING
    for record in (replaced(job), None):
        topics.append(JOBS_TOPIC, record, b"drained")
        with pytest.raises(DeploymentError, match="undeployed or replaced during the drain"):
            end_drain(topics.cluster, job, NOW)
