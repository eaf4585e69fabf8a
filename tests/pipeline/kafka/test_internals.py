"""Test that the private names of Kafka clients exist, and are used in only one module."""

from __future__ import annotations

import inspect

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.producer.message_accumulator import MessageAccumulator
from faust.sensors import Monitor
from faust.tables.manager import TableManager
from faust.transport.consumer import Consumer as AnyConsumer
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer
from kafka import KafkaAdminClient, KafkaProducer

METHODS = [
    (Consumer, "_new_consumer_thread"),
    (Consumer, "_wait_next_records"),
    (Consumer, "_get_active_partitions"),
    (AIOKafkaConsumerThread, "_create_worker_consumer"),
    (AIOKafkaConsumerThread, "_ensure_consumer"),
    (GroupCoordinator, "ensure_coordinator_known"),
    (GroupCoordinator, "_do_heartbeat"),
    (GroupCoordinator, "fetch_committed_offsets"),
    (Fetcher, "_get_actions_per_node"),
    (AIOKafkaConsumerThread, "_thread_keepalive"),
    (Monitor, "_sampler"),
    (TableManager, "_update_channels"),
    (AIOKafkaAdminClient, "_get_cluster_metadata"),
    (AIOKafkaAdminClient, "_send_request"),
]
ATTRIBUTES = [
    (AIOKafkaConsumer, "_fetch_max_wait_ms"),
    (AIOKafkaConsumer, "_consumer_timeout"),
    (AIOKafkaConsumer, "_coordinator"),
    (AIOKafkaConsumer, "_fetcher"),
    (Fetcher, "_fetch_max_wait_ms"),
    (Fetcher, "_fetch_min_bytes"),
    (Fetcher, "_records"),
    (AnyConsumer, "_paused_partitions"),
    (GroupCoordinator, "generation"),
    (AIOKafkaProducer, "_message_accumulator"),
    (MessageAccumulator, "_batch_ttl"),
    (KafkaAdminClient, "_manager"),
    (KafkaProducer, "_sender"),
    (AIOKafkaAdminClient, "_client"),
]


@pytest.mark.parametrize(("owner", "name"), [*METHODS, *ATTRIBUTES])
def test_private_attributes_that_are_used_exist_in_the_clients(owner: type, name: str) -> None:
    there = hasattr(owner, name) or f"self.{name} = " in inspect.getsource(owner)
    assert there, (
        f"{owner.__module__}.{owner.__name__}.{name} is gone: see in pipeline/kafka what it was "
        "for, and find another way with the installed version, or require the one before"
    )
