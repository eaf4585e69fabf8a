"""In-memory cluster, for commands that run without a broker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pytest

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.kafka.broker_clock import own_milliseconds
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.workers import Committed
from dpstream.topics.names import TopicSettings


@dataclass(frozen=True)
class Acknowledged:
    """Immediate result of sending a record, with the broker's timestamp in milliseconds."""

    timestamp: int
    offset: int
    is_done = True

    def get(self, timeout: float | None = None) -> Self:
        return self


@dataclass
class MemoryCluster:
    """Stand-in for `Cluster`, with `records` by topic and partition.

    Like a broker, it timestamps records by `clock`, in milliseconds since 1970.
    """

    records: dict[tuple[str, int], list[LogRecord]] = field(
        default_factory=lambda: defaultdict(list)
    )
    partitions: dict[str, int] = field(default_factory=dict)
    settings: dict[str, TopicSettings] = field(default_factory=dict)
    starts: dict[tuple[str, int], int] = field(default_factory=dict)
    identities: dict[str, str] = field(default_factory=dict)
    connection: Connection = field(default_factory=lambda: Connection(("memory:9092",)))
    clock: Callable[[], int] = own_milliseconds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    @property
    def producer(self) -> Self:
        return self

    @property
    def servers(self) -> str:
        return ", ".join(self.connection.bootstrap_servers)

    def identity(self) -> str:
        return "memory"

    def topic_identity(self, topic: str) -> str | None:
        return self.identities.get(topic)

    def topic_identities(self, topics: Iterable[str]) -> dict[str, str]:
        return {name: self.identities[name] for name in topics if name in self.identities}

    def topics(self) -> set[str]:
        return set(self.partitions)

    def exists(self, topic: str) -> bool:
        return topic in self.partitions

    def partition_counts(self) -> dict[str, int]:
        return dict(self.partitions)

    def create_topics(self, topics: Iterable[TopicSettings]) -> None:
        for topic in topics:
            if topic.name not in self.partitions:
                self.partitions[topic.name] = topic.partitions
                self.settings[topic.name] = topic

    def existing_topics(self, names: Iterable[str]) -> dict[str, TopicSettings]:
        return {name: self.settings[name] for name in names if name in self.settings}

    def alter_topics(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        for name, changed in configs.items():
            old = self.settings[name]
            self.settings[name] = replace(old, configs={**old.configs, **changed})

    def delete_topics(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self.partitions:
                for partition in range(self.partitions.pop(name)):
                    self.records.pop((name, partition), None)
                del self.settings[name]

    def delete_below(self, topic: str, offset: int, partition: int = 0) -> None:
        self.starts[topic, partition] = max(offset, self.starts.get((topic, partition), 0))

    def end_offsets(self, topic: str) -> list[int]:
        return [len(self.records[topic, each]) for each in range(self.partitions[topic])]

    def start_offsets(self, topic: str) -> list[int]:
        return [self.starts.get((topic, each), 0) for each in range(self.partitions[topic])]

    def written(self, topic: str, offsets: Mapping[int, int], now: int) -> dict[int, int]:
        return {
            partition: self.records[topic, partition][offset].timestamp
            for partition, offset in offsets.items()
            if offset < len(self.records[topic, partition])
        }

    def committed(self, group: str, topic: str) -> list[Committed | None]:
        return [None] * self.partitions[topic]

    def read(
        self, topic: str, partition: int = 0, start: int = 0, stop: int | None = None
    ) -> Iterator[LogRecord]:
        first = max(start, self.starts.get((topic, partition), 0))
        yield from self.records[topic, partition][first:stop]

    def append(self, topic: str, value: bytes | None, key: bytes | None = None) -> int:
        held = self.records[topic, 0]
        held.append(LogRecord(len(held), value or b"", self.clock(), key, ()))
        return len(held) - 1

    def send(self, topic: str, value: bytes, partition: int, timestamp_ms: int = 0) -> Acknowledged:
        held = self.records[topic, partition]
        held.append(LogRecord(len(held), value, self.clock(), None, ()))
        return Acknowledged(held[-1].timestamp, held[-1].offset)


def use_memory_cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    """Make commands in this process use a new in-memory cluster."""
    cluster = MemoryCluster()
    use_cluster(monkeypatch, cluster)
    return cluster


def use_cluster(monkeypatch: pytest.MonkeyPatch, cluster: MemoryCluster) -> None:
    def connection_of(*arguments: Any, **options: Any) -> Connection:
        return cluster.connection

    monkeypatch.setattr("dpstream.pipeline.cli.cluster_and_jobs.connection_of", connection_of)
    monkeypatch.setattr(
        "dpstream.pipeline.cli.cluster_and_jobs.Cluster", lambda connection, **options: cluster
    )
