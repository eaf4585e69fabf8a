"""What is private to the clients of Kafka and used all the same is there, and used in one place."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

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

from dpstream.pipeline.kafka import cluster, topic_spread, workers
from dpstream.pipeline.kafka.workers import internals
from dpstream.pipeline.kafka.workers.consumer import StageConsumer, StageConsumerThread

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
def test_the_clients_have_what_is_used_of_their_insides(owner: type, name: str) -> None:
    there = hasattr(owner, name) or f"self.{name} = " in inspect.getsource(owner)
    assert there, (
        f"{owner.__module__}.{owner.__name__}.{name} is gone: see in pipeline/kafka what it was "
        "for, and find another way with the installed version, or require the one before"
    )


def test_their_insides_are_used_in_one_place() -> None:
    allowed = {inspect.getfile(module): set[str]() for module in (cluster, internals, topic_spread)}
    for path in Path(inspect.getfile(workers)).parents[1].rglob("*.py"):
        used = {
            node.attr
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute)
            and node.attr.startswith("_")
            and not node.attr.startswith("__")
            and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "os"))
            and not (isinstance(node.value, ast.Call) and ast.unparse(node.value) == "super()")
        }
        if str(path) in allowed:
            allowed[str(path)] = used
        else:
            assert not used, f"{path} uses {used}: it belongs into {internals.__name__}"
    named = {name for _, name in (*METHODS, *ATTRIBUTES)}
    assert set.union(*allowed.values()) <= named, "every one of them is looked for above"


@pytest.mark.parametrize("own", [StageConsumer, StageConsumerThread])
def test_a_stage_overrides_nothing_private(own: type) -> None:
    private = {name for name in vars(own) if name.startswith("_") and not name.startswith("__")}
    inherited = {name for name in private if any(hasattr(base, name) for base in own.__bases__)}
    assert not inherited - {"_abc_impl"}, f"it belongs into {internals.__name__}"
