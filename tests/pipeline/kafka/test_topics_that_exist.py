"""Test that an existence check requests a single topic."""

from __future__ import annotations

from typing import Any, cast

import pytest
from kafka import KafkaAdminClient
from kafka.errors import (
    InvalidTopicError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from dpstream.pipeline.kafka.cluster import AccessError, Cluster
from dpstream.pipeline.kafka.connection import Connection


class Admin:
    def __init__(self, code: int) -> None:
        self._code = code

    def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        return [{"name": name, "error_code": self._code, "partitions": []} for name in names]


def cluster_that_answers(code: int) -> Cluster:
    cluster = Cluster(Connection(("memory:9092",)))
    cluster._admin_client = cast(KafkaAdminClient, Admin(code))
    return cluster


@pytest.mark.parametrize(
    ("code", "there"),
    [(0, True), (UnknownTopicOrPartitionError.errno, False), (InvalidTopicError.errno, False)],
)
def test_unknown_or_invalid_topic_does_not_exist(code: int, there: bool) -> None:
    assert cluster_that_answers(code).exists("a.reports") is there


def test_topic_without_access_raises_an_access_error() -> None:
    with pytest.raises(AccessError) as caught:
        cluster_that_answers(TopicAuthorizationFailedError.errno).exists("a.reports")
    assert caught.value.name == "a.reports"
