"""Test that a completed read has reached its stop, and that a stalled read raises an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaTimeoutError

from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection

TOPIC = "job.manifests"
PARTITION = TopicPartition(TOPIC, 0)


def record(offset: int) -> ConsumerRecord:
    values: dict[str, Any] = dict.fromkeys(ConsumerRecord._fields)
    return ConsumerRecord(**{**values, "offset": offset, "value": b"%d" % offset, "headers": []})


@dataclass
class Consumer:
    """Consumer of a partition whose records arrive one at a time.

    At offset `lost_at`, its position is unknown for `lost` polls, as if the records there were
    deleted and no leader responds. The position is then `resumes`, the first remaining record.
    """

    end: int
    lost_at: int | None = None
    lost: float = 0
    resumes: int = 0
    at: int = 0
    seconds: float = 0.0

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {0}

    def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {PARTITION: 0}

    def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {PARTITION: self.end}

    def assign(self, partitions: list[TopicPartition]) -> None:
        assert partitions == [PARTITION]

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.at = offset

    @property
    def is_lost(self) -> bool:
        return self.at == self.lost_at and self.lost > 0

    def position(self, partition: TopicPartition) -> int | None:
        if not self.is_lost:
            return self.at
        self.lost -= 1
        if not self.lost:
            self.at = self.resumes
        return None

    def poll(self, timeout: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        if self.is_lost or self.at >= self.end:
            self.seconds += timeout / 1000
            return {}
        self.at += 1
        return {PARTITION: [record(self.at - 1)]}


@pytest.fixture
def cluster_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Cluster]:
    def make(consumer: Consumer, timeout: float | None = None) -> Cluster:
        clock = SimpleNamespace(monotonic=lambda: consumer.seconds)
        monkeypatch.setattr("dpstream.pipeline.kafka.cluster.time", clock)
        cluster = Cluster(Connection(("memory:9092",)), timeout)
        cluster._consumer_client = cast(KafkaConsumer, consumer)
        return cluster

    return make


def offsets(cluster: Cluster, **bounds: int) -> list[int]:
    return [each.offset for each in cluster.read(TOPIC, **bounds)]


def test_read_returns_all_records_in_its_range(cluster_of: Callable[..., Cluster]) -> None:
    assert offsets(cluster_of(Consumer(6))) == [0, 1, 2, 3, 4, 5]
    assert offsets(cluster_of(Consumer(6)), start=2, stop=4) == [2, 3]
    assert offsets(cluster_of(Consumer(6)), start=6) == []


def test_read_continues_from_its_lost_position_once_it_is_known(
    cluster_of: Callable[..., Cluster],
) -> None:
    consumer = Consumer(6, lost_at=2, lost=3, resumes=4)
    assert offsets(cluster_of(consumer)) == [0, 1, 4, 5]


def test_read_yields_no_record_twice(cluster_of: Callable[..., Cluster]) -> None:
    consumer = Consumer(6, lost_at=3, lost=1, resumes=1)
    assert offsets(cluster_of(consumer)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("timeout", [None, 5.0])
@pytest.mark.parametrize(
    ("end", "lost"), [(6, float("inf")), (3, 0)], ids=["no position", "no records"]
)
def test_stalled_read_raises_an_error(
    cluster_of: Callable[..., Cluster], timeout: float | None, end: int, lost: float
) -> None:
    consumer = Consumer(end, lost_at=3, lost=lost)
    found: list[int] = []
    with pytest.raises(
        KafkaTimeoutError, match=r"partition 0 of job\.manifests: read up to offset 3 of 6"
    ):
        found.extend(each.offset for each in cluster_of(consumer, timeout).read(TOPIC, stop=6))
    assert found == [0, 1, 2]
    assert consumer.seconds == (timeout or 30.0) + 0.5


def test_read_does_not_time_out_because_its_caller_is_slow(
    cluster_of: Callable[..., Cluster],
) -> None:
    consumer, found = Consumer(4), []
    for each in cluster_of(consumer).read(TOPIC):
        found.append(each.offset)
        consumer.seconds += 3_600
    assert found == [0, 1, 2, 3]
