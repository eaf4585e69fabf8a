"""What is private to the clients of Kafka and used all the same is there, and used in one place."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import KafkaConnectionError, NodeNotReadyError
from aiokafka.producer.message_accumulator import MessageAccumulator
from aiokafka.protocol.admin import DeleteRecordsRequest
from aiokafka.protocol.metadata import MetadataRequest_v5
from faust.sensors import Monitor
from faust.tables.manager import TableManager
from faust.transport.consumer import Consumer as AnyConsumer
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer
from faust.types import TP
from kafka import KafkaAdminClient

from dpstream.pipeline.kafka import topic_spread, workers
from dpstream.pipeline.kafka.workers import internals
from dpstream.pipeline.kafka.workers.consumer import StageConsumer, StageConsumerThread
from dpstream.pipeline.kafka.workers.timings import Timings

METHODS = [
    (Consumer, "_new_consumer_thread"),
    (Consumer, "_wait_next_records"),
    (Consumer, "_get_active_partitions"),
    (AIOKafkaConsumerThread, "_create_worker_consumer"),
    (AIOKafkaConsumerThread, "_ensure_consumer"),
    (GroupCoordinator, "ensure_coordinator_known"),
    (GroupCoordinator, "_do_heartbeat"),
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
    allowed = {inspect.getfile(module): set[str]() for module in (internals, topic_spread)}
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


def test_a_worker_looks_again_soon_only_while_a_partition_has_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(Consumer, "getmany", lambda consumer, timeout: waited.append(timeout))
    consumer = object.__new__(StageConsumer)
    for paused in (set(), {TP("reports", 0)}, set()):
        consumer._paused_partitions = paused
        consumer.getmany(timeout=1.0)
    consumer.getmany(timeout=0.001)
    consumer.timings = Timings(idle=2.0)
    consumer.getmany(timeout=1.0)
    free, full, again, short, long = waited
    assert full < free == again < 1.0
    assert short == 0.001
    assert long == 2.0


def test_a_worker_that_has_no_tables_waits_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    recovered: list[bool] = []

    async def refuse(tables: TableManager, seconds: float) -> None:
        pytest.fail(f"it waits for {seconds} s before it joins its group")

    async def recover() -> None:
        recovered.append(True)

    async def start() -> bool:
        consumer = SimpleNamespace(assignment=set, pause_partitions=lambda partitions: None)
        tables = internals.NoTables(cast(Any, SimpleNamespace(consumer=consumer)))
        tables._recovery = cast(Any, SimpleNamespace(start=recover))
        await tables.on_start()
        return tables._tables_registered.is_set()

    monkeypatch.setattr(TableManager, "sleep", refuse)
    assert asyncio.run(start()), "the application waits for this before it reads"
    assert recovered


class _Brokers:
    """A cluster of two brokers, of which one does not answer, with some topics."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.cluster, self.deleted, self.asked = self, list[str](), list[list[str]]()
        self.failure = failure or NodeNotReadyError()

    def brokers(self) -> list[Any]:
        return [SimpleNamespace(nodeId=1), SimpleNamespace(nodeId=2)]

    def update_metadata(self, answer: Any) -> None:
        self.known = {each["topic"] for each in answer.to_object()["topics"]}

    def leader_for_partition(self, partition: TopicPartition) -> int | None:
        return 2 if partition.topic in self.known else None

    async def send(self, node: int, request: Any) -> Any:
        if node == 1:
            raise self.failure
        if isinstance(request, DeleteRecordsRequest):
            self.deleted += [topic for topic, _ in request._topics]
            return SimpleNamespace(topics=[])
        built = request.build(MetadataRequest_v5)
        assert not built.allow_auto_topic_creation, "topics that are asked for would be made"
        self.asked.append(built.topics)
        topics = [
            {"topic": each, "error_code": 3 * (each == "gone"), "partitions": [0, 1]}
            for each in built.topics
        ]
        return SimpleNamespace(to_object=lambda: {"topics": topics})


@pytest.mark.parametrize("failure", [NodeNotReadyError(), TimeoutError()])
def test_a_worker_asks_about_its_own_topics_alone_and_any_broker_that_answers(
    failure: Exception,
) -> None:
    async def ask(brokers: _Brokers) -> dict[str, int]:
        admin = object.__new__(internals.NarrowAdmin)
        admin._client, admin._deletes_from = cast(Any, brokers), set()
        admin._request_timeout_ms = 1000
        await admin.delete_records({TopicPartition("reports", 0): RecordsToDelete(5)})
        return await admin.partition_counts(["reports", "gone"])

    for _ in range(20):
        brokers = _Brokers(failure)
        assert asyncio.run(ask(brokers)) == {"reports": 2}
        assert brokers.known == {"gone", "reports"}, "brokers move, and each answer names them"
        assert brokers.asked == [["reports"], ["gone", "reports"]]
        assert brokers.deleted == ["reports"]


def test_a_worker_says_that_no_broker_answers() -> None:
    admin = object.__new__(internals.NarrowAdmin)
    brokers = _Brokers()
    admin._client = cast(Any, brokers)
    for known, error in (([1], NodeNotReadyError), ([], KafkaConnectionError)):
        brokers.brokers = lambda known=known: [SimpleNamespace(nodeId=n) for n in known]  # type: ignore[method-assign,misc]
        with pytest.raises(error):
            asyncio.run(admin.partition_counts(["reports"]))


class _Asked:
    """A fetcher that notes what it would ask with: at most so long, for at least so many bytes."""

    def __init__(self) -> None:
        self._fetch_max_wait_ms, self._fetch_min_bytes = 50, 1
        self._records: dict[TP, object] = {}
        self.asked: list[tuple[int, int]] = []

    def _get_actions_per_node(self, assignment: object) -> None:
        self.asked.append((self._fetch_max_wait_ms, self._fetch_min_bytes))


class _State:
    """What is known of a partition that is read."""

    def __init__(self, position: int | None) -> None:
        self.at, self.paused = position, False

    @property
    def has_valid_position(self) -> bool:
        return self.at is not None

    @property
    def position(self) -> int:
        assert self.at is not None, "as aiokafka does"
        return self.at


class _Assignment:
    def __init__(self, **positions: int | None) -> None:
        self.states = {TP(name, 0): _State(at) for name, at in positions.items()}

    @property
    def tps(self) -> list[TP]:
        return list(self.states)

    def state_value(self, partition: TP) -> _State:
        return self.states[partition]


@pytest.fixture
def fetcher() -> _Asked:
    """Asks for so long, for so many bytes, if records come; and for longer if none do."""
    asked = _Asked()
    internals.wait_long_for_all(cast(Any, SimpleNamespace(_fetcher=asked)), 500, 4096, 2000)
    return asked


def test_who_asks_about_every_partition_is_patient(fetcher: _Asked) -> None:
    """Nothing is asked of a partition that was left out until the answer is there."""
    assignment = _Assignment(one=0, other=0)
    one, other = assignment.states
    fetcher._get_actions_per_node(assignment)
    fetcher._records[other] = "not taken yet"
    fetcher._get_actions_per_node(assignment)
    del fetcher._records[other]
    assignment.states[other].at = 1
    fetcher._get_actions_per_node(assignment)
    assignment.states[one].paused = True
    fetcher._get_actions_per_node(assignment)
    assert fetcher.asked == [(500, 4096), (50, 1), (500, 4096), (50, 1)]


def test_where_nothing_has_come_the_next_record_is_told_at_once(fetcher: _Asked) -> None:
    assignment = _Assignment(one=7, other=None)
    one, other = assignment.states
    for _ in range(2):
        fetcher._get_actions_per_node(assignment)
    assignment.states[one].at = 8
    for _ in range(3):
        fetcher._get_actions_per_node(assignment)
    # Where a partition begins is known by now.
    assignment.states[other].at = 0
    fetcher._get_actions_per_node(assignment)
    # The same places in another assignment: what its records are is not known yet.
    fetcher._get_actions_per_node(_Assignment(one=8, other=0))
    busy, quiet = (500, 4096), (2000, 1)
    assert fetcher.asked == [busy, quiet, busy, quiet, quiet, busy, busy]


def test_nobody_reckons_what_nobody_reads() -> None:
    """Faust's sensor does it every second, and its thread wakes as often: workers are many."""
    sampler = internals.SilentMonitor._sampler
    assert (
        asyncio.run(asyncio.wait_for(cast(Any, sampler.fun(internals.SilentMonitor())), 0.5))
        is None
    )
    timers: list[float] = []

    async def no_time(interval: float) -> AsyncIterator[float]:
        timers.append(interval)
        yield interval

    for timings in (Timings(), Timings.of_many()):
        thread = object.__new__(StageConsumerThread)
        thread.timings = timings
        thread.itertimer = no_time  # type: ignore[method-assign,assignment]
        asyncio.run(cast(Any, internals.ClientThread._thread_keepalive.fun(thread)))
    assert timers == [1.0, Timings.of_many().look]
    assert Timings.of_many().look > 1.0
