"""Job with two producers, one of which registers too late, and its topics as a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, cast

import pytest

from dpstream.pipeline.actions import Append, LogRecord
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.jobs.key_files import NoiseKey
from dpstream.pipeline.jobs.key_ring import NO_KEYS, KeyRing
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.pipeline.operations.redrive import Redrive, redrive
from dpstream.pipeline.stages.admission import decode_raw
from dpstream.topics.names import Role
from dpstream.topics.records import Registration
from tests.support.memory_cluster import Acknowledged
from tests.support.world import World, producer_generators

HALF = 600
EPOCHS = 4
COUNTED = (
    "name: small\nprotocol: future_rand\nparameters: {epsilon: 2, max_changes: 2}\n"
    # All epochs end before a scenario starts, so windows wait only for the grace period.
    f"epochs: {{count: {EPOCHS}, start: '2023-01-01', length: PT1H}}\n"
    "shuffle: {producers: 2}\ntopics: {partitions: 2}\n"
)
HIDDEN = (
    "name: small\nprotocol: shuffled_counts\nparameters: {epsilon: 1, delta: 1e-6}\n"
    f"epochs: {{count: {EPOCHS}}}\nshuffle: {{producers: 2, minimum: {HALF}}}\n"
    "topics: {partitions: 2}\n"
)


@dataclass
class LogCluster:
    """Cluster over the topics of a `World`, which fails after `appends` further writes."""

    job: DeployedJob
    log: MemoryLog
    appends: int = 1_000
    sent: list[Role] = field(default_factory=list)

    @property
    def cluster(self) -> Cluster:
        return cast(Cluster, self)

    @property
    def producer(self) -> Self:
        return self

    def _role(self, topic: str) -> Role:
        return next(role for role in Role if self.job.topic(role) == topic)

    def read(self, topic: str, partition: int = 0, start: int = 0) -> Iterator[LogRecord]:
        role = self._role(topic)
        end = self.log.end(role, partition)
        start = max(start, self.log._partitions[role, partition].base)
        while start < end:
            found = self.log.read(role, partition, start, end)
            yield from found.records
            start = found.end

    def start_offsets(self, topic: str) -> list[int]:
        return [self.log._partitions[self._role(topic), 0].base]

    def delete_below(self, topic: str, offset: int) -> None:
        self.log.delete_below(self._role(topic), 0, offset)

    def send(self, topic: str, value: bytes, partition: int, timestamp_ms: int = 0) -> Acknowledged:
        self.sent.append(self._role(topic))
        self.log.append(Append(self._role(topic), partition, value))
        return Acknowledged(self.log.clock(), self.log.end(self._role(topic), partition) - 1)

    def append(self, topic: str, value: bytes, key: bytes | None = None) -> int:
        if not self.appends:
            raise KeyboardInterrupt
        self.appends -= 1
        self.log.append(Append(self._role(topic), 0, value, key=key))
        return 0


class LateRegistrationScenario:
    """The north reports on time; the south's reports arrive, but not its registration."""

    def __init__(
        self,
        text: str,
        folder: Path,
        keys: KeyRing = NO_KEYS,
        noise_key: NoiseKey | None = None,
    ) -> None:
        job = deploy_job(parse_job(text), deployed_at=0, deployment=bytes(16))
        if noise_key is not None:
            job = job.model_copy(update={"noise_key": noise_key.digest})
        values = {
            name: {
                epoch: {f"{name}{user}": int(user % 3 == 0) for user in range(HALF)}
                for epoch in range(1, EPOCHS + 1)
            }
            for name in ("north", "south")
        }
        self.job = job
        self.world = World(job, folder, values, keys=keys, noise_key=noise_key)
        self.cluster = LogCluster(job, self.world.log)
        self.south = MemoryLog()
        producer = Producer(
            job,
            None,
            name="south",
            transport=MemoryDriver(self.south),
            generators=producer_generators("south"),
        )
        producer.enroll(list(values["south"][1]))
        for epoch in range(1, EPOCHS + 1):
            producer.report(epoch, values["south"][epoch])
            producer.close(epoch)
        producer.shut()

    def north(self, *epochs: int) -> None:
        for epoch in epochs:
            self.world.close_epoch("north", epoch)

    def send(self, *epochs: int, shift: int = 0) -> int:
        """Deliver the south's records of these epochs and return their number."""
        count = 0
        for partition in range(2):
            for role in reversed(self.job.route.reports):
                values = [
                    value
                    for value in self.south.values(role, partition)
                    if decode_raw(value).epoch in epochs
                ]
                count += len(values)
                for value in values:
                    self.world.log.append(Append(role, (partition + shift) % 2, value))
        return count

    def register(self) -> None:
        (registration,) = self.south.values(Role.PRODUCERS)
        assert Registration.from_bytes(registration).name == "south"
        self.world.log.append(Append(Role.PRODUCERS, 0, registration))

    def settle(self, *, later: float = 0.0) -> None:
        self.world.now += later
        for _ in range(2):
            self.world.settle()
        # Written dead letters reach Kafka even if the process is killed.
        for stage, role in self.job.route.stages.items():
            if role in self.job.route.reports:
                self.world.workers[stage].driver.crash(keep=True)

    def redrive(self, *, dry_run: bool = False) -> Redrive:
        return redrive(self.cluster.cluster, self.job, dry_run=dry_run)

    def die_redriving(self) -> None:
        """Kill the command after each acknowledgment, before it is recorded."""
        left, self.cluster.appends = self.cluster.appends, 0
        with pytest.raises(KeyboardInterrupt):
            self.redrive()
        self.cluster.appends = left
