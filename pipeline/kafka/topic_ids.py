"""Kafka's topic IDs, which change when a topic is deleted and recreated.

The metadata request of aiokafka does not return IDs, so kafka-python's request is sent over
aiokafka's connections.
"""

from __future__ import annotations

from collections.abc import Collection
from io import BytesIO
from typing import Any, Self

from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Schema
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from dpstream.pipeline.kafka.cluster import identities_of

_VERSION = 10


class _Answer(Response):  # type: ignore[misc]  # untyped base class
    API_KEY = MetadataRequest.API_KEY
    API_VERSION = _VERSION
    SCHEMA = Schema()
    topics: list[dict[str, Any]]

    @classmethod
    def decode(cls, data: BytesIO | bytes) -> Self:
        read = data if isinstance(data, bytes) else data.read()
        answer = cls()
        answer.topics = MetadataResponse.decode(read, version=_VERSION).to_dict()["topics"]
        return answer


class _Question(RequestStruct):  # type: ignore[misc]  # untyped base class
    FLEXIBLE_VERSION = True
    API_KEY = MetadataRequest.API_KEY
    API_VERSION = _VERSION
    RESPONSE_TYPE = _Answer
    SCHEMA = Schema()
    names: Collection[str]

    def encode(self) -> bytes:
        requested = [
            MetadataRequest.MetadataRequestTopic(version=_VERSION, name=n) for n in self.names
        ]
        return bytes(
            MetadataRequest(
                version=_VERSION, topics=requested, allow_auto_topic_creation=False
            ).encode()
        )


class _Asked(Request[_Question]):  # type: ignore[misc]  # untyped base class
    API_KEY = MetadataRequest.API_KEY

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def build(self, request_struct_class: type[_Question]) -> _Question:
        request = request_struct_class()
        request.names = self._names
        return request


async def ask_ids(client: AIOKafkaClient, topics: Collection[str]) -> dict[str, str]:
    """Return Kafka's IDs of existing topics by name; empty for brokers before Kafka 2.8."""
    try:
        answer: _Answer = await client.send(client.get_random_node(), _Asked(topics))
    except NotImplementedError:
        # aiokafka raises this if the broker is too old for the request.
        return {}
    return identities_of(answer.topics)
