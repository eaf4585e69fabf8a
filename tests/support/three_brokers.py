"""Three brokers that are one cluster, each of which may be killed: every partition has two more."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from kafka import KafkaAdminClient

from pipeline.connection import Connection
from pipeline.local_kafka import LocalKafka
from pipeline.local_kafka.broker import HOST, free_port

NODES = (1, 2, 3)


class ThreeBrokers:
    """A cluster with replication 3 and min.insync.replicas 2, until it is left."""

    def __init__(self, folder: Path) -> None:
        clients, controllers = dict[int, int](), dict[int, int]()
        for ports in (clients, controllers):
            for node in NODES:
                taken = {*clients.values(), *controllers.values()}
                ports[node] = next(port for port in iter(free_port, None) if port not in taken)
        self._ports = clients
        self.servers = ",".join(f"{HOST}:{port}" for port in clients.values())
        self.connection = Connection(tuple(self.servers.split(",")))
        cluster_id = secrets.token_urlsafe(16)
        shared = {
            "controller.quorum.voters": ",".join(
                f"{node}@{HOST}:{port}" for node, port in controllers.items()
            ),
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            "offsets.topic.replication.factor": "3",
            "transaction.state.log.replication.factor": "3",
            "transaction.state.log.min.isr": "2",
            "share.coordinator.state.topic.replication.factor": "3",
            "share.coordinator.state.topic.min.isr": "2",
        }
        self._brokers = {
            node: LocalKafka(
                folder / str(node),
                {
                    **shared,
                    "node.id": str(node),
                    "listeners": (
                        f"PLAINTEXT://{HOST}:{clients[node]},"
                        f"CONTROLLER://{HOST}:{controllers[node]}"
                    ),
                    "advertised.listeners": f"PLAINTEXT://{HOST}:{clients[node]}",
                },
                cluster_id=cluster_id,
            )
            for node in NODES
        }

    def __enter__(self) -> Self:
        try:
            # Together: none answers before two of them have found each other.
            _together(self.start)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, node: int) -> None:
        """Start a broker and wait until it answers."""
        self._brokers[node].start(self._ports[node])

    def stop(self) -> None:
        """Stop all of them, by force: nobody needs their data any more."""
        _together(lambda node: self._brokers[node].stop(grace=0.0))

    def kill(self, node: int) -> None:
        """Kill a broker with SIGKILL."""
        pid = self._brokers[node].status().pid
        assert pid is not None, f"broker {node} is not running"
        os.kill(pid, signal.SIGKILL)

    def leaders(self, topics: Iterable[str]) -> dict[tuple[str, int], int]:
        """Which broker leads a partition, by topic and partition."""
        admin = KafkaAdminClient(**self.connection.kafka_python())
        try:
            return {
                (topic["name"], partition["partition_index"]): partition["leader_id"]
                for topic in admin.describe_topics(list(topics))
                for partition in topic["partitions"]
            }
        finally:
            admin.close()


def _together(do: Callable[[int], object]) -> None:
    with ThreadPoolExecutor(len(NODES)) as pool:
        list(pool.map(do, NODES))
