"""Fleet scenario: a job on a cluster with its workers and producers, faults, and an audit."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, Self

from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

from dpstream.pipeline.jobs.key_files import NoiseKey
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.local_kafka import LocalKafka
from dpstream.pipeline.operations.deployments import deploy
from tests.support import cells
from tests.support.audit import Account, audit, read_logs
from tests.support.chaos import Brokers, Chaos
from tests.support.clocks import Clock
from tests.support.faults import Kind, draw_schedule
from tests.support.fleet import Fleet
from tests.support.namespaces import Namespaces
from tests.support.new_jobs import new_job
from tests.support.small_disks import SmallDisk, may_mount

SEED = int(os.environ.get("DPSTREAM_CHAOS_SEED", "20261122"))
# Far longer than an epoch, so that windows close only when complete.
NEVER = "1h"
CELLS = 48_000
PARAMETERS: Mapping[str, Mapping[str, object]] = {
    cells.NAME: {"cells": CELLS},
    "future_rand": {"epsilon": 2, "max_changes": 2},
    "shuffled_counts": {"epsilon": 20, "delta": 1e-3, "dummies": "shuffle"},
}
# Milliseconds between two retention checks of the broker.
_PASS = 200


class ClusterOfBrokers(Brokers, Protocol):
    @property
    def servers(self) -> str: ...

    @property
    def names(self) -> Sequence[str]: ...


class OneBroker:
    """Broker with a settable clock and frequent retention checks."""

    names = ("broker",)

    def __init__(self, folder: Path, preload: Path) -> None:
        settings = ("log.retention.check.interval.ms", "log.initial.task.delay.ms")
        self._kafka = LocalKafka(folder / "kafka", dict.fromkeys(settings, str(_PASS)), brief=True)
        self._clock = Clock(preload, folder / "broker.clock")

    def __enter__(self) -> Self:
        try:
            self.start("broker")
        except BaseException:
            self._kafka.stop(grace=0.0)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._kafka.stop(grace=0.0)

    @property
    def servers(self) -> str:
        servers = self._kafka.status().bootstrap_servers
        assert servers is not None
        return servers

    def start(self, name: str) -> None:
        with self._clock.for_children():
            self._kafka.start()

    def kill(self, name: str) -> None:
        self.signal(name, signal.SIGKILL)

    def signal(self, name: str, number: signal.Signals) -> None:
        pid = self._kafka.status().pid
        assert pid is not None
        os.kill(pid, number)

    def set_clock(self, name: str, seconds: float) -> None:
        self._clock.set(seconds)


class ChaosScenario:
    """Job with its fleet and faults.

    Args:
        preload: Library for the clocks.
        network: Network with a namespace for each future member.
    """

    def __init__(
        self,
        brokers: ClusterOfBrokers,
        preload: Path,
        folder: Path,
        protocol: str,
        *,
        network: Namespaces | None = None,
        **sections: Mapping[str, Any],
    ) -> None:
        job = new_job(
            f"chaos-{secrets.token_hex(4)}",
            protocol,
            dict(PARAMETERS[protocol]),
            epochs={"count": 16, "renew": True, **sections.get("epochs", {})},
            shuffle={"minimum": 50, "grace": NEVER, **sections.get("shuffle", {})},
            topics=dict(sections.get("topics", {})),
        )
        self._stack = ExitStack()
        self._network = network
        self.brokers = brokers
        self.disks: dict[str, SmallDisk] = {}
        connection = Connection(tuple(brokers.servers.split(",")))
        self.cluster = self._stack.enter_context(Cluster(connection, timeout=5.0))
        key = folder / "noise-key"
        deployment = secrets.token_bytes(16)
        self.job = deploy(self.cluster, job, deployment=deployment, now=0, noise_key=key)
        self.noise_key = NoiseKey.read(key) if self.job.needs_noise_key else None
        self.fleet = Fleet(
            self.job, self.cluster, brokers.servers, folder, preload, SEED, self.noise_key
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # Stop before the disks disappear.
        self.fleet.kill()
        self._stack.close()

    def add_producers(self, **counts: int) -> None:
        """Add producers with a number of devices each, on small disks where allowed."""
        for name, count in counts.items():
            before = sum(each.orders.count for each in self.fleet.producers.values())
            member = self.fleet.add(
                name, "producer", prefix=self._prefix(name), count=count, first_cell=before
            )
            if may_mount():
                self.disks[name] = self._stack.enter_context(SmallDisk(member.folder))

    def add_workers(self, **counts: int) -> None:
        for stage, count in counts.items():
            for number in range(1, count + 1):
                name = f"{stage}-{number}"
                self.fleet.add(name, stage, prefix=self._prefix(name))

    def survive(
        self, counts: Mapping[Kind, int], only: Mapping[Kind, Sequence[str]] | None = None
    ) -> None:
        """Inject the given number of faults of each kind; `only` limits the targets."""
        fleet, brokers = self.fleet, list(self.brokers.names)
        workers, producers = sorted(fleet.workers), sorted(fleet.producers)
        loose = [name for name in producers if not fleet.members[name].punctual]
        targets = {
            Kind.KILL: [*workers, *producers],
            Kind.PAUSE: [*workers, *producers],
            Kind.CLOCK: [*workers, *producers],
            Kind.DOUBLE_WORKER: workers,
            Kind.DOUBLE_PRODUCER: loose,
            Kind.IMPOSTOR: producers,
            Kind.FULL_DISK: sorted(self.disks),
            Kind.AHEAD: loose or producers,
            Kind.KILL_BROKER: brokers,
            Kind.PAUSE_BROKER: brokers,
            Kind.BROKER_CLOCK: brokers,
            Kind.CUT: _cuts([*workers, *producers], brokers),
        }
        wanted = dict(counts)
        if not self.disks and wanted.pop(Kind.FULL_DISK, 0):
            print("full disks are skipped: mounting small disks requires root")
        fleet.wait_for_epochs(2)
        chaos = Chaos(fleet, self.brokers, network=self._network, disks=self.disks)
        chaos.survive(draw_schedule(SEED, wanted, {**targets, **(only or {})}))

    def account(self) -> Account:
        """Let every member finish, and audit all published values."""
        last = self.fleet.finish()
        drawn = self.fleet.drawn()
        self.fleet.kill()
        assert not self.fleet.tracebacks(), self.fleet.logs()
        account = audit(self.job, read_logs(self.cluster, self.job), drawn, last, self.noise_key)
        print(account)
        return account

    def _prefix(self, name: str) -> tuple[str, ...]:
        return () if self._network is None else self._network.prefix(name)


def _cuts(members: Sequence[str], brokers: Sequence[str]) -> list[str]:
    """Return one-way cuts between two brokers, and between a member and all brokers."""
    between = [f"{one}>{other}" for one in brokers for other in brokers if one != other]
    away = [f"{member}>brokers" for member in members]
    back = [f"brokers>{member}" for member in members]
    return [*between, *away, *back, *(f"{broker}>fleet" for broker in brokers)]


def wait_for_retention(servers: str) -> None:
    """Wait until a broker has checked all topics for expired records once."""
    topic = f"sentinel-{secrets.token_hex(4)}"
    connection = Connection(tuple(servers.split(",")))
    admin = KafkaAdminClient(**connection.kafka_python())
    configs = {"retention.ms": "1000", "message.timestamp.type": "CreateTime"}
    admin.create_topics([NewTopic(topic, 1, 1, topic_configs=configs)])
    admin.close()
    sender = KafkaProducer(**connection.kafka_python())
    with Cluster(connection) as cluster:
        # A complete check lies between the deletions of two segments that expire at the same time.
        for written in (1, 2, 3):
            sender.send(topic, b"old", partition=0, timestamp_ms=1).get(30)
            while cluster.start_offsets(topic)[0] < written:
                pass
    sender.close()
