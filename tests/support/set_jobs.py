"""Completed in-memory jobs over sets of items, for commands to inspect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from dpstream.pipeline.devices.producer import Producer, Value
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.kafka.memory import MemoryDriver, SimulatedCluster
from dpstream.topics.names import Role
from tests.support.memory_cluster import MemoryCluster
from tests.support.small_run import generators

READ = (Role.MANIFESTS, Role.PARTIALS, Role.ESTIMATES)


def job_text(
    protocol: str, parameters: str, *, minimum: int, epochs: int = 3, name: str = "sets"
) -> str:
    """Return a job file with epsilon 1 and delta 1e-6."""
    return (
        f"name: {name}\nprotocol: {protocol}\n"
        f"parameters: {{epsilon: 1, delta: 1e-6, {parameters}}}\n"
        f"epochs: {{count: {epochs}}}\nshuffle: {{minimum: {minimum}}}\n"
    )


class Run:
    """Deployed job whose epochs are reported in turn, to be inspected by commands."""

    def __init__(self, cluster: MemoryCluster, name: str, first_epoch: int = 1) -> None:
        self.job: DeployedJob = find_deployed(cast(Cluster, cluster), name)
        self._cluster = cluster
        self._simulated = SimulatedCluster(self.job, generators)
        self._producer = Producer(
            self.job,
            None,
            name="p",
            transport=MemoryDriver(self._simulated.log),
            first_epoch=first_epoch,
            generators=generators,
        )
        self._copied = dict.fromkeys(READ, 0)

    @property
    def driver(self) -> MemoryDriver:
        return MemoryDriver(self._simulated.log)

    def report(self, epoch: int, held: Sequence[Value | Sequence[Value]]) -> None:
        """Report the items of numbered users at an epoch; enroll new users."""
        users = [str(user) for user in range(len(held))]
        self._producer.enroll(users)
        self._producer.report(epoch, dict(zip(users, held, strict=True)))
        self._producer.close(epoch)
        self._simulated.settle()
        for role in READ:
            new = self._simulated.log.values(role)[self._copied[role] :]
            self._copied[role] += len(new)
            for value in new:
                self._cluster.append(self.job.topic(role), value)


def held_by(counts: Iterable[tuple[Value, int]]) -> list[Value | Sequence[Value]]:
    """Return the items of each user, given the number of users per item."""
    return [item for item, count in counts for _ in range(count)]


def within(estimate: float, ground_truth: float, deviation: float) -> bool:
    """Return whether an error is plausible: correct runs exceed it once in a billion."""
    return abs(estimate - ground_truth) <= 6.2 * deviation
