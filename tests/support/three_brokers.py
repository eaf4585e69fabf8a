"""Cluster of three brokers, any of which can be killed: every partition has three replicas."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.local_kafka import LocalKafka
from dpstream.pipeline.kafka.local_kafka.broker import HOST, free_port
from tests.support.clocks import Clock
from tests.support.namespaces import Namespaces

NODES = (1, 2, 3)
ROOT = Path(__file__).parents[2]
_CLIENTS_PORT, _CONTROLLERS_PORT, _OBSERVERS_PORT = 21_000, 21_001, 21_002
# Starts a broker in a namespace, whose loopback address is the namespace's own.
_START = """
import json, pathlib, sys
from dpstream.pipeline.kafka.local_kafka import LocalKafka
folder, settings, cluster_id, port = json.loads(sys.argv[1])
LocalKafka(pathlib.Path(folder), settings, cluster_id=cluster_id, brief=True).start(port)
"""


def _shared(controllers: str) -> dict[str, str]:
    return {
        "controller.quorum.voters": controllers,
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "offsets.topic.replication.factor": "3",
        "transaction.state.log.replication.factor": "3",
        "transaction.state.log.min.isr": "2",
        "share.coordinator.state.topic.replication.factor": "3",
        "share.coordinator.state.topic.min.isr": "2",
    }


class ThreeBrokers:
    """Cluster with replication 3 and min.insync.replicas 2."""

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
        shared = _shared(",".join(f"{n}@{HOST}:{port}" for n, port in controllers.items()))
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
                brief=True,
            )
            for node in NODES
        }

    def __enter__(self) -> Self:
        try:
            # In parallel: none responds before two of them have found each other.
            _together(self.start, NODES)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self, node: int) -> None:
        self._brokers[node].start(self._ports[node])

    def stop(self) -> None:
        """Kill all brokers, as their data is no longer needed."""
        _together(lambda node: self._brokers[node].stop(grace=0.0), NODES)

    def kill(self, node: int) -> None:
        pid = self._brokers[node].status().pid
        assert pid is not None, f"broker {node} is not running"
        os.kill(pid, signal.SIGKILL)

    def leaders(self, topics: Iterable[str]) -> dict[tuple[str, int], int]:
        admin = KafkaAdminClient(**self.connection.kafka_python())
        try:
            return {
                (topic["name"], partition["partition_index"]): partition["leader_id"]
                for topic in admin.describe_topics(list(topics))
                for partition in topic["partitions"]
            }
        finally:
            admin.close()


def broker_name(node: int) -> str:
    return f"broker-{node}"


class BrokersInNamespaces:
    """Cluster of three brokers in namespaces `broker_name`, with separate clocks."""

    def __init__(
        self, folder: Path, network: Namespaces, clocks: Mapping[str, Clock] | None = None
    ) -> None:
        self._network = network
        self._clocks = clocks or {}
        self._cluster_id = secrets.token_urlsafe(16)
        addresses = {node: network.address(broker_name(node)) for node in NODES}
        self.servers = ",".join(f"{each}:{_CLIENTS_PORT}" for each in addresses.values())
        self.connection = Connection(tuple(self.servers.split(",")))
        shared = _shared(
            ",".join(f"{n}@{each}:{_CONTROLLERS_PORT}" for n, each in addresses.items())
        )
        self._settings = {
            broker_name(node): {
                **shared,
                # A disconnected replica leaves the in-sync set quickly.
                "replica.lag.time.max.ms": "4000",
                # Time that brokers wait for a broker with a dead connection, 30 s by default.
                "request.timeout.ms": "10000",
                "node.id": str(node),
                "listeners": (
                    f"PLAINTEXT://0.0.0.0:{_CLIENTS_PORT},"
                    f"CONTROLLER://{address}:{_CONTROLLERS_PORT}"
                ),
                "advertised.listeners": f"PLAINTEXT://{address}:{_CLIENTS_PORT}",
            }
            for node, address in addresses.items()
        }
        self._folders = {name: folder / name for name in self._settings}

    @property
    def names(self) -> list[str]:
        return list(self._settings)

    def __enter__(self) -> Self:
        try:
            # In parallel: none responds before two of them have found each other.
            _together(self.start, self.names)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for folder in self._folders.values():
            LocalKafka(folder).stop(grace=0.0)

    def start(self, name: str) -> None:
        orders = json.dumps(
            [str(self._folders[name]), self._settings[name], self._cluster_id, _CLIENTS_PORT]
        )
        subprocess.run(
            [*self._network.prefix(name), sys.executable, "-c", _START, orders],
            check=True,
            cwd=ROOT,
            env={**os.environ, **(self._clocks[name].environment if self._clocks else {})},
        )

    def kill(self, name: str) -> None:
        self.signal(name, signal.SIGKILL)

    def signal(self, name: str, number: signal.Signals) -> None:
        pid = LocalKafka(self._folders[name]).status().pid
        assert pid is not None, f"{name} is not running"
        os.kill(pid, number)

    def set_clock(self, name: str, seconds: float) -> None:
        self._clocks[name].set(seconds)


class BrokersByName(BrokersInNamespaces):
    """Cluster of three brokers by name, whose addresses change, except for `connection`."""

    def __init__(self, folder: Path, network: Namespaces) -> None:
        super().__init__(folder, network)
        observed = [f"{network.observed_at(name)}:{_OBSERVERS_PORT}" for name in self.names]
        self.connection = Connection(tuple(observed))
        self.servers = ",".join(f"{name}:{_CLIENTS_PORT}" for name in self.names)
        voters = ",".join(f"{n}@{broker_name(n)}:{_CONTROLLERS_PORT}" for n in NODES)
        for name, where in zip(self.names, observed, strict=True):
            self._settings[name] |= {
                "controller.quorum.voters": voters,
                "listener.security.protocol.map": (
                    "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,OBSERVERS:PLAINTEXT"
                ),
                "inter.broker.listener.name": "PLAINTEXT",
                "listeners": (
                    f"PLAINTEXT://0.0.0.0:{_CLIENTS_PORT},CONTROLLER://:{_CONTROLLERS_PORT},"
                    f"OBSERVERS://0.0.0.0:{_OBSERVERS_PORT}"
                ),
                "advertised.listeners": f"PLAINTEXT://{name}:{_CLIENTS_PORT},OBSERVERS://{where}",
            }

    def are_in_sync(self) -> bool:
        """Return whether the responding brokers report all replicas as in sync."""
        try:
            admin = KafkaAdminClient(**self.connection.kafka_python())
        except KafkaError:
            return False
        try:
            return all(
                len(partition["isr_nodes"]) == len(NODES)
                for topic in admin.describe_topics(admin.list_topics())
                for partition in topic["partitions"]
            )
        except KafkaError:
            return False
        finally:
            admin.close()


Node = TypeVar("Node")


def _together(do: Callable[[Node], object], nodes: Iterable[Node]) -> None:
    with ThreadPoolExecutor(len(NODES)) as pool:
        list(pool.map(do, nodes))
