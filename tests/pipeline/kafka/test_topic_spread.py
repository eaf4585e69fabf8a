"""Test that a created topic is awaited on every broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from kafka import KafkaAdminClient
from kafka.errors import (
    KafkaConnectionError,
    KafkaTimeoutError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)

from dpstream.pipeline.kafka.cluster import Cluster, ClusterError
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.topic_spread import TopicSpreadError, wait_for_brokers
from dpstream.topics.names import TopicSettings

UNKNOWN = 3
WANTED = TopicSettings("a.reports", 2, 3, {"cleanup.policy": "delete"})


@dataclass
class Broker:
    """Broker that reports a new topic only after it was requested `lag` times."""

    node_id: int
    lag: int = 0
    down: bool = False
    topics: dict[str, int] = field(default_factory=dict)

    def describe(self, name: str) -> dict[str, Any]:
        if name not in self.topics:
            return {"name": name, "error_code": UNKNOWN, "partitions": []}
        self.topics[name] -= 1
        if self.topics[name] >= 0:
            return {"name": name, "error_code": UNKNOWN, "partitions": []}
        partition = {"error_code": 0, "leader_id": 1, "replica_nodes": [1, 2, 3]}
        return {"name": name, "error_code": 0, "partitions": [partition] * WANTED.partitions}


class Brokers:
    def __init__(self, *lags: int) -> None:
        self.nodes = [Broker(number, lag) for number, lag in enumerate(lags, 1)]
        self.created: list[str] = []
        self.config_errors = 0
        self.faults: list[Exception] = []
        self.carries_out = True
        self.requested = 0
        self._manager = self
        self.cluster = self

    def brokers(self) -> list[Broker]:
        return self.nodes

    def run(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        return asyncio.run(cast(Any, ask()))

    async def send(self, request: Any, node_id: int) -> Any:
        node = self.nodes[node_id - 1]
        if node.down:
            raise KafkaConnectionError("no broker listens")
        described = [node.describe(topic.name) for topic in request.topics]

        class Response:
            def to_dict(self) -> dict[str, Any]:
                return {"topics": described}

        return Response()

    def list_topics(self) -> list[str]:
        return list(self.created)

    def create_topics(self, topics: Any, wait_for_metadata: bool = False) -> None:
        self.requested += 1
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None and not self.carries_out:
            raise fault
        for topic in topics:
            self.created.append(topic.name)
            for node in self.nodes:
                node.topics[topic.name] = node.lag
        if fault is not None:
            raise fault

    def describe_configs(self, resources: Any, config_filter: str) -> dict[str, Any]:
        if self.config_errors:
            self.config_errors -= 1
            raise UnknownTopicOrPartitionError("missing topic")
        return {"topic": {WANTED.name: {"cleanup.policy": {"value": "delete"}}}}

    def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        return [self.nodes[0].describe(name) for name in names]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)


def cluster_of(brokers: Brokers) -> Cluster:
    cluster = Cluster(Connection(("memory:9092",)))
    cluster._admin_client = cast(KafkaAdminClient, brokers)
    return cluster


@pytest.mark.usefixtures("quick")
def test_concurrently_created_topics_are_awaited() -> None:
    brokers = Brokers(0, 1, 5)
    brokers.create_topics([WANTED])
    cluster_of(brokers).create_topics([WANTED])
    for node in brokers.nodes:
        assert node.describe(WANTED.name)["error_code"] == 0, node


UNANSWERED = (
    KafkaTimeoutError("no answer within 30 s"),
    KafkaConnectionError("the connection is closed"),
    RequestTimedOutError("Request 'CreateTopicsRequest(...)' failed"),
    RuntimeError("Failed to find active controller id!"),
)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("fault", UNANSWERED, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("carries_out", [True, False])
def test_topics_are_looked_up_after_an_unconfirmed_creation(
    carries_out: bool, fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response might take longer than brokers need to learn of the topics."""
    monkeypatch.setattr("dpstream.pipeline.kafka.cluster._SETTLING_SECONDS", -1.0)
    brokers = Brokers(0, 1, 2)
    brokers.faults, brokers.carries_out = [fault], carries_out
    cluster_of(brokers).create_topics([WANTED])
    assert brokers.created == [WANTED.name]
    assert brokers.requested == (1 if carries_out else 2)


@pytest.mark.usefixtures("quick")
def test_topics_created_with_other_settings_are_rejected() -> None:
    """A topic created by an unanswered request is checked like any existing topic."""
    brokers = Brokers(0)
    brokers.faults = [KafkaTimeoutError("no answer within 30 s")]
    wanted = TopicSettings(WANTED.name, 7, 3, WANTED.configs)
    with pytest.raises(
        ClusterError, match=("Undeploy the job with --delete-topics, or change the job file")
    ):
        cluster_of(brokers).create_topics([wanted])


@pytest.mark.usefixtures("quick")
def test_unresponsive_cluster_times_out_with_a_message() -> None:
    brokers = Brokers(0)
    brokers.faults, brokers.carries_out = [*UNANSWERED], False
    with pytest.raises(ClusterError) as caught:
        cluster_of(brokers).create_topics([WANTED])
    message = str(caught.value)
    assert "a.reports" in message
    assert "run the same command again" in message
    assert "CreateTopicsRequest" not in message
    assert brokers.requested == 3


def test_error_lists_a_broker_that_never_receives_topic_metadata(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    unknown = {"error_code": UNKNOWN, "partitions": []}
    no_leader = {"error_code": 0, "partitions": [{"error_code": 0, "leader_id": -1}]}
    ready = {"error_code": 0, "partitions": [{"error_code": 0, "leader_id": 2}]}
    answers = {1: {"a": ready, "b": ready}, 2: {"a": no_leader, "b": ready}, 3: {"a": unknown}}
    message = "broker 2 does not know a; broker 3 does not know a, b"
    with pytest.raises(TopicSpreadError, match=message):
        wait_for_brokers(lambda: answers, ["b", "a"], timeout=30, clock=lambda: now[0], sleep=sleep)
    assert now[0] >= 30
    monkeypatch.setattr("dpstream.pipeline.kafka.cluster._SPREADING_SECONDS", -1.0)
    monkeypatch.setattr("time.sleep", sleep)
    with pytest.raises(ClusterError, match=r"broker 3 does not know a\.reports. Check that all"):
        cluster_of(Brokers(0, 0, 99)).create_topics([WANTED])
