"""Synchronous access to a Kafka cluster by kafka-python, for tools and producers."""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.errors import (
    InvalidTopicError,
    KafkaError,
    KafkaTimeoutError,
    RequestTimedOutError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)

from dpstream.pipeline.actions import (
    Action,
    Append,
    EndOffsets,
    Flush,
    LogRecord,
    LogSlice,
    ReadRange,
    Result,
    Steps,
    carry_out,
    ends_of,
)
from dpstream.pipeline.kafka.broker_clock import BrokerClock, own_milliseconds
from dpstream.pipeline.kafka.cluster_errors import AccessError as AccessError
from dpstream.pipeline.kafka.cluster_errors import (
    BrokerAwayError,
    RecordTooLargeError,
    is_too_large,
    is_unknown_login,
    may_not_write,
    rejected_kind,
)
from dpstream.pipeline.kafka.cluster_errors import ClusterError as ClusterError
from dpstream.pipeline.kafka.cluster_errors import NoTopicError as NoTopicError
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.stored_state import restart
from dpstream.pipeline.kafka.topic_spread import (
    TopicSpreadError,
    metadata_of_brokers,
    record_ages,
    wait_for_brokers,
)
from dpstream.pipeline.kafka.workers import Committed
from dpstream.topics.names import BATCH_BYTES_MAX, Role, TopicSettings, topic_name
from dpstream.topics.topic_checks import reject_topic

CLIENT_ID = "dpstream"
_READ_TIMEOUT_MS = 500
# Seconds without progress after which a read fails, unless the cluster has another timeout.
_SILENCE_SECONDS = 30.0
_BOOTSTRAP_TIMEOUT_MS = 10_000
# kafka-python keeps requesting end offsets from a former leader of a partition until its metadata
# expires, after five minutes by default.
_METADATA_AGE_MS = 3_000
METADATA_PAUSE_MS = 10
"""Milliseconds between metadata requests; the default delays every new topic by 0.1 s."""
# While the broker holds a fetch of fully read partitions, the next request has to wait.
_FETCH_WAIT_MS = 20
# A cluster that has just started or changed needs a moment to settle.
_SETTLING_SECONDS = 10.0
_SPREADING_SECONDS = 30.0
# Attempts to create topics: an unanswered request might have been carried out.
_CREATIONS = 3
# Maximum bytes appended and not yet acknowledged; the client itself has no limit.
_IN_FLIGHT = 1 << 25
# Bytes of records to read at a time.
_SLICE_BYTES = 1 << 21
# Seconds until the broker is reported as away, and until giving up.
_NOTICE_AFTER = 5.0
_GIVE_UP_AFTER = 600.0
_RETRY_SECONDS = 0.2
# Error codes for a missing topic, and for an invalid topic name.
_ABSENT = (UnknownTopicOrPartitionError.errno, InvalidTopicError.errno)


T = TypeVar("T")


class Cluster:
    """Admin client, consumer and producer for one cluster, each created on first use.

    `timeout` limits the wait for a broker's answer, in seconds. `committed` restricts reads to
    committed transactions; use it for topics of other applications.
    """

    def __init__(
        self, connection: Connection, timeout: float | None = None, *, committed: bool = False
    ) -> None:
        self.connection = connection
        self._silence = _SILENCE_SECONDS if timeout is None else timeout
        self._settings = {} if timeout is None else {"request_timeout_ms": int(timeout * 1000)}
        self._isolation = "read_committed" if committed else "read_uncommitted"
        self._admin_client: KafkaAdminClient | None = None
        self._consumer_client: KafkaConsumer | None = None
        self._producer_client: KafkaProducer | None = None
        self._requested_partitions: dict[str, int] = {}
        self._described: list[Mapping[str, Any]] = []

    @property
    def servers(self) -> str:
        return ", ".join(self.connection.bootstrap_servers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        for client in (self._admin_client, self._consumer_client):
            if client is not None:
                client.close()
        producer = self._producer_client
        if producer is not None:
            try:
                producer.close(timeout=1)
            except KafkaTimeoutError:
                # The client closes only once records that no broker accepts are dropped.
                producer._sender.force_close()
                producer.close(timeout=1)

    def identity(self) -> str:
        return str(self.admin.describe_cluster()["cluster_id"])

    def topic_identity(self, topic: str) -> str | None:
        """Return a topic's unique ID, which a recreated topic changes; None before Kafka 2.8."""
        return self.topic_identities([topic]).get(topic)

    def topic_identities(self, topics: Iterable[str]) -> dict[str, str]:
        wanted = sorted(topics)
        return identities_of(self.admin.describe_topics(wanted)) if wanted else {}

    def topics(self) -> set[str]:
        return set(self.admin.list_topics())

    def exists(self, topic: str) -> bool:
        """Return whether a topic exists; raise AccessError if it is hidden from this login."""
        # Describe only this topic: listing all takes long with hundreds of jobs.
        (found,) = self.admin.describe_topics([topic])
        self._check_visible(found)
        return found["error_code"] not in _ABSENT

    def partition_counts(self) -> dict[str, int]:
        """Return the current number of partitions in every topic.

        Later reads use these numbers, too. Otherwise, a consumer would request deleted partitions
        for half a minute, and would not see added partitions for five minutes.
        """
        self._described = self.admin.describe_topics()
        counts = {
            topic["name"]: len(topic["partitions"])
            for topic in self._described
            if not topic["error_code"]
        }
        if any(
            counts.get(topic) != requested
            for topic, requested in self._requested_partitions.items()
        ):
            self._requested_partitions.clear()
            self._consumer.close()
            self._consumer_client = None
        return counts

    def create_topics(self, topics: Iterable[TopicSettings]) -> None:
        """Create missing topics, and wait until all brokers know the new topics.

        If Kafka does not confirm the creation, checks again which topics exist. Raises ClusterError
        if a topic cannot be created, or exists with another number of partitions, or with settings
        that would lose records or reveal when they were sent.
        """
        wanted = {topic.name: topic for topic in topics}
        if not wanted:
            return
        try:
            self._create(wanted)
            wait_for_brokers(
                lambda: metadata_of_brokers(self.admin, wanted),
                wanted,
                timeout=_SPREADING_SECONDS,
            )
        except KafkaError as error:
            self._check_rejection(error, "create", ", ".join(wanted))
            raise ClusterError(f"cannot create the topics: {error}") from error
        except _UnansweredError as error:
            raise ClusterError(
                f"Kafka did not confirm the creation of topics {error} after {_CREATIONS} "
                "requests, and the topics do not exist. Check that all brokers are up, then run "
                "the same command again; topics created by then are kept"
            ) from error
        except TopicSpreadError as error:
            raise ClusterError(
                f"the topics were created, but {_SPREADING_SECONDS:g} s later, {error}. Check "
                "that all brokers are up, then run the same command again"
            ) from None

    def _create(self, wanted: Mapping[str, TopicSettings]) -> None:
        for _ in range(_CREATIONS - 1):
            with suppress(_UnansweredError):
                return self._repeat(lambda: self._create_missing(wanted))
        return self._repeat(lambda: self._create_missing(wanted))

    def _create_missing(self, wanted: Mapping[str, TopicSettings]) -> None:
        existing = self.existing_topics(wanted)
        for name, found in existing.items():
            if (rejection := reject_topic(wanted[name], found)) is not None:
                raise ClusterError(rejection)
        missing = [topic for name, topic in wanted.items() if name not in existing]
        if not missing:
            return
        requested = [
            NewTopic(
                topic.name,
                topic.partitions,
                -1 if topic.replication is None else topic.replication,
                topic_configs=dict(topic.configs),
            )
            for topic in missing
        ]
        try:
            self.admin.create_topics(requested)
        except (KafkaError, RuntimeError) as error:
            if not _is_inconclusive(error):
                raise
            raise _UnansweredError(", ".join(topic.name for topic in missing)) from error

    def existing_topics(self, names: Iterable[str]) -> dict[str, TopicSettings]:
        wanted = set(names)
        return self._repeat(lambda: self._describe(sorted(self.topics() & wanted)))

    def _describe(self, names: list[str]) -> dict[str, TopicSettings]:
        if not names:
            return {}
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        configs = self.admin.describe_configs(resources, config_filter="all")["topic"]
        described = {}
        for topic in self.admin.describe_topics(names):
            if topic["error_code"]:
                raise for_code(topic["error_code"])(f"topic {topic['name']}")
            described[topic["name"]] = TopicSettings(
                topic["name"],
                len(topic["partitions"]),
                len(topic["partitions"][0]["replica_nodes"]),
                {key: entry["value"] for key, entry in configs[topic["name"]].items()},
            )
        return described

    def alter_topics(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """Change settings by topic name; after a ClusterError, some might be changed already."""
        if not configs:
            return
        resources = [
            ConfigResource(ConfigResourceType.TOPIC, name, dict(changed))
            for name, changed in configs.items()
        ]
        # By default, the client checks the existing settings first, and finds none without access.
        answers = self.admin.alter_configs(resources, raise_on_unknown=False).get("topic", {})
        for name, response in answers.items():
            if "TopicAuthorizationFailed" in str(response):
                raise self._rejection("change", "topic", name)
            if response != "OK":
                raise ClusterError(f"cannot change the settings of topic {name}: {response}")

    def delete_topics(self, names: Iterable[str]) -> None:
        doomed = self.topics() & set(names)
        if doomed:
            with self.asking("delete", ", ".join(sorted(doomed))):
                self.admin.delete_topics(sorted(doomed))

    def delete_below(self, topic: str, offset: int, partition: int = 0) -> None:
        try:
            self.admin.delete_records({TopicPartition(topic, partition): offset})
        except KafkaError as error:
            self._check_rejection(error, "delete records of", topic)
            raise ClusterError(
                f"cannot delete records from {topic} below offset {offset}: {error}. They "
                "will be deleted when their retention ends"
            ) from error

    def end_offsets(self, topic: str) -> list[int]:
        partitions = self._partitions(topic)
        ends = self._consumer.end_offsets(partitions)
        return [int(ends[partition]) for partition in partitions]

    def ends(self, partitions: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Return the end offsets of all partitions; topics that lack a partition are omitted."""
        wanted = {
            topic: [TopicPartition(topic, number) for number in range(count)]
            for topic, count in partitions.items()
        }
        try:
            found = self._consumer.end_offsets([each for all in wanted.values() for each in all])
        except KeyError:
            # One of the partitions does not exist.
            if len(wanted) == 1:
                return {}
            return {t: e for each, n in partitions.items() for t, e in self.ends({each: n}).items()}
        return {topic: tuple(int(found[each]) for each in all) for topic, all in wanted.items()}

    def start_offsets(self, topic: str) -> list[int]:
        partitions = self._partitions(topic)
        starts = self._consumer.beginning_offsets(partitions)
        return [int(starts[partition]) for partition in partitions]

    def written(self, topic: str, offsets: Mapping[int, int], now: int) -> dict[int, int]:
        """Return approximate write times of records, by partition, without reading the records.

        `offsets` maps each partition to the offset of one record. Times are milliseconds since 1970
        by the broker's clock, as is `now`; missing records are omitted. See
        `topic_spread.record_ages`.
        """
        wanted = {TopicPartition(topic, each): offset for each, offset in offsets.items()}
        ends = self._consumer.end_offsets(list(wanted))

        def older(ages: Mapping[TopicPartition, int]) -> set[TopicPartition]:
            moments = {each: max(0, now - age) for each, age in ages.items()}
            found = self._consumer.offsets_for_times(moments)
            return {
                each
                for each in ages
                if found[each] is None or int(found[each].offset) > wanted[each]
            }

        there = [each for each, offset in wanted.items() if offset < ends[each]]
        # If a record was deleted, use the time of the first remaining record, unless Kafka finds
        # none.
        for each, first in self._consumer.offsets_for_times(dict.fromkeys(there, 0)).items():
            if first is None:
                there.remove(each)
            else:
                wanted[each] = max(wanted[each], int(first.offset))
        return {each.partition: now - age for each, age in record_ages(there, now, older).items()}

    def committed(self, group: str, topic: str) -> list[Committed | None]:
        partitions = self._partitions(topic)
        with self.asking("see", group):
            offsets = self._repeat(lambda: self.admin.list_group_offsets({group: partitions}))[
                group
            ]
        return [Committed.of(offsets.get(partition)) for partition in partitions]

    def read(
        self, topic: str, partition: int = 0, start: int = 0, stop: int | None = None
    ) -> Iterator[LogRecord]:
        """Yield a partition's records from offset `start`, below `stop` (default: the current end).

        If the iteration ends without an error, it has yielded every record once, except records
        that retention deletes during reading. Raises NoTopicError, or KafkaError if the broker does
        not answer; records yielded before the error are valid.
        """
        if stop is None:
            stop = self.end_offsets(topic)[partition]
        start = max(start, self.start_offsets(topic)[partition])
        assigned = TopicPartition(topic, partition)
        self._consumer.assign([assigned])
        self._consumer.seek(assigned, start)
        reached, since = start, time.monotonic()
        # The position is unknown while the client looks for the next remaining record.
        while (position := self._consumer.position(assigned)) is None or position < stop:
            if position is not None and position > reached:
                reached, since = position, time.monotonic()
            elif time.monotonic() - since > self._silence:
                raise KafkaTimeoutError(
                    f"partition {partition} of {topic}: read up to offset {reached} of {stop}, "
                    f"then the broker sent nothing for {self._silence:.0f} s"
                )
            for record in self._poll(assigned):
                if record.offset >= stop:
                    return
                if record.offset < reached:
                    # The client restarted from the first remaining record.
                    continue
                yield LogRecord(
                    record.offset,
                    record.value if record.value is not None else b"",
                    record.timestamp,
                    record.key,
                    tuple(record.headers),
                )
                reached, since = record.offset + 1, time.monotonic()

    def append(self, topic: str, value: bytes | None, key: bytes | None = None) -> int:
        try:
            future = self.producer.send(topic, value, key=key, partition=0)
            return int(future.get(timeout=60).offset)
        except KafkaError as error:
            if may_not_write(error):
                raise self._rejection("write", "topic", topic) from error
            if is_too_large(error):
                raise RecordTooLargeError(topic, len(value or b"")) from error
            raise ClusterError(f"cannot write to {topic}: {error}") from error

    @property
    def producer(self) -> KafkaProducer:
        if self._producer_client is None:
            self._producer_client = self._make(
                KafkaProducer,
                acks="all",
                linger_ms=0,
                # A client's batch must fit the broker's maximum message size.
                batch_size=BATCH_BYTES_MAX - 4096,
                max_request_size=1 << 21,
                delivery_timeout_ms=int(_GIVE_UP_AFTER * 1000),
                allow_auto_create_topics=False,
            )
        return self._producer_client

    def _repeat(self, ask: Callable[[], T]) -> T:
        deadline = time.monotonic() + _SETTLING_SECONDS
        while True:
            try:
                return ask()
            except KafkaError as error:
                if not _is_settling(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _poll(self, partition: TopicPartition) -> list[Any]:
        with self.asking("read", partition.topic):
            records: list[Any] = self._consumer.poll(_READ_TIMEOUT_MS).get(partition, [])
        return records

    def _partitions(self, topic: str) -> list[TopicPartition]:
        numbers = self._consumer.partitions_for_topic(topic)
        if not numbers:
            (found,) = self.admin.describe_topics([topic])
            self._check_visible(found)
            raise NoTopicError(f"topic {topic} does not exist on {self.servers}")
        self._requested_partitions[topic] = len(numbers)
        return [TopicPartition(topic, number) for number in sorted(numbers)]

    def _check_visible(self, found: Mapping[str, Any]) -> None:
        if found["error_code"] == TopicAuthorizationFailedError.errno:
            raise self._rejection("see", "topic", found["name"])

    def _rejection(self, action: str, kind: str, name: str) -> AccessError:
        return AccessError(self.connection.principal, action, kind, name)

    def _check_rejection(self, error: KafkaError, action: str, name: str) -> None:
        if (kind := rejected_kind(error)) is not None:
            raise self._rejection(action, kind, name) from error

    @contextmanager
    def asking(self, action: str, name: str) -> Iterator[None]:
        """Raise `AccessError` if the cluster denies a request within this context."""
        try:
            yield
        except KafkaError as error:
            self._check_rejection(error, action, name)
            raise

    @property
    def admin(self) -> KafkaAdminClient:
        if self._admin_client is None:
            self._admin_client = self._make(KafkaAdminClient)
        return self._admin_client

    @property
    def _consumer(self) -> KafkaConsumer:
        if self._consumer_client is None:
            self._consumer_client = self._make(
                KafkaConsumer,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                metadata_max_age_ms=_METADATA_AGE_MS,
                retry_backoff_ms=METADATA_PAUSE_MS,
                fetch_max_wait_ms=_FETCH_WAIT_MS,
                isolation_level=self._isolation,
            )
        return self._consumer_client

    def _make(self, client: Callable[..., Any], **settings: Any) -> Any:
        try:
            shared = {"client_id": CLIENT_ID, "bootstrap_timeout_ms": _BOOTSTRAP_TIMEOUT_MS}
            return client(**shared | self.connection.kafka_python() | self._settings | settings)
        except KafkaError as error:
            if is_unknown_login(error):
                raise ClusterError(
                    f"Kafka at {self.servers} rejects the password of {self.connection.principal}: "
                    "check sasl.jaas.config and sasl.mechanism in --kafka-config"
                ) from error
            raise BrokerAwayError(f"cannot reach Kafka at {self.servers}: {error}") from error


def identities_of(described: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    ids = {
        topic["name"]: uuid.UUID(str(topic["topic_id"]))
        for topic in described
        if topic.get("topic_id") is not None and not topic["error_code"]
    }
    return {name: str(named) for name, named in ids.items() if named.int}


@dataclass(frozen=True, slots=True)
class _Sent:
    future: Any
    place: tuple[Role, int]
    topic: str
    size: int
    sent_at: float
    own: int


def _is_settling(error: KafkaError) -> bool:
    """Return whether a broker answered with a transient error; a timeout is not an answer."""
    # Also retry if a topic exists but another broker does not list it yet.
    answered = getattr(error, "errno", None) is not None
    return answered and (error.retriable or isinstance(error, TopicAlreadyExistsError))


class _UnansweredError(Exception):
    """Kafka did not confirm the creation of topics, which might exist or not."""


def _is_inconclusive(error: Exception) -> bool:
    """Return whether a request might have been carried out in spite of an error."""
    if isinstance(error, KafkaError):
        answered = getattr(error, "errno", None) is not None
        return isinstance(error, RequestTimedOutError) or (error.retriable and not answered)
    # The admin client has no error class for a missing controller.
    return "controller" in str(error)


class KafkaTransport:
    """Carry out a producer's actions on a job's topics.

    During an outage, the transport waits, and calls `notify` once. Raises ClusterError if a record
    is rejected, or after ten minutes without an answer.
    """

    def __init__(
        self,
        cluster: Cluster,
        job: str,
        notify: Callable[[str], None] = lambda message: None,
        clock: BrokerClock | None = None,
    ) -> None:
        self._cluster = cluster
        self._job = job
        self._notify = notify
        self._clock = clock or BrokerClock()
        self._pending: deque[_Sent] = deque()
        self._pending_bytes = 0
        self._written: dict[tuple[Role, int], int] = {}

    def run(self, steps: Steps[Result], /) -> Result:
        return carry_out(steps, self.carry_out)

    def carry_out(self, action: Action) -> object:
        """Carry out an action; only `Flush` waits for acknowledgements, unless many are pending."""
        match action:
            case EndOffsets():
                return self.persistently(lambda: ends_of(action, self._ends))
            case ReadRange(role, partition, start, stop):
                return self.persistently(lambda: self._read(role, partition, start, stop))
            case Append(role, partition, value):
                self._append(role, partition, value)
            case Flush():
                self._settle(0)
                return dict(self._written)
            case _:
                raise TypeError(f"action is {type(action).__name__}; expected a producer's action")
        return None

    def persistently(self, ask: Callable[[], T]) -> T:
        started, notified = time.monotonic(), False
        while True:
            try:
                answer = ask()
            except KafkaError as error:
                waited = time.monotonic() - started
                if waited > _GIVE_UP_AFTER:
                    raise ClusterError(f"Kafka does not answer: {error}") from error
                if not notified:
                    self._notify("Kafka does not answer: waiting for it. No data is lost")
                    notified = True
                time.sleep(_RETRY_SECONDS)
                continue
            if notified:
                self._notify("Kafka is back")
            return answer

    def _ends(self, role: Role) -> list[int]:
        return self._cluster.end_offsets(topic_name(self._job, role))

    def _read(self, role: Role, partition: int, start: int, stop: int) -> LogSlice:
        records: list[LogRecord] = []
        size = 0
        for record in self._cluster.read(topic_name(self._job, role), partition, start, stop):
            records.append(record)
            size += len(record.value)
            if size >= _SLICE_BYTES:
                break
        return LogSlice(tuple(records), records[-1].offset + 1 if records else stop)

    def _append(self, role: Role, partition: int, value: bytes) -> None:
        sent_at, own = self._clock.begin(), own_milliseconds()
        topic = topic_name(self._job, role)
        try:
            future = self._cluster.producer.send(
                topic, value, partition=partition, timestamp_ms=own
            )
        except KafkaError as error:
            # The client has waited in vain for the metadata of the topic.
            self._check_there(topic)
            raise ClusterError(f"Kafka does not answer: {error}") from error
        self._pending.append(_Sent(future, (role, partition), topic, len(value), sent_at, own))
        self._pending_bytes += len(value)
        self._settle(_IN_FLIGHT)

    def _check_there(self, topic: str) -> None:
        try:
            there = self._cluster.exists(topic)
        except (KafkaError, BrokerAwayError):
            return
        if not there:
            raise NoTopicError(
                f"topic {topic} no longer exists: was the job undeployed? Unsent reports "
                f"remain in the producer's folder. {restart(self._job)}"
            )

    def _settle(self, allowed: int) -> None:
        started = time.monotonic()
        notified = False
        while self._pending and self._pending_bytes > allowed:
            sent = self._pending[0]
            try:
                acknowledged = sent.future.get(timeout=0.2)
            except KafkaError as error:
                if not sent.future.is_done:
                    waited = time.monotonic() - started
                    if waited > _NOTICE_AFTER and not notified:
                        self._check_there(sent.topic)
                        self._notify("Kafka does not answer: waiting for it. No data is lost")
                        notified = True
                    continue
                self._pending.clear()
                self._pending_bytes = 0
                if may_not_write(error):
                    raise AccessError(
                        self._cluster.connection.principal, "write", "topic", sent.topic
                    ) from error
                if is_too_large(error):
                    raise RecordTooLargeError(sent.topic, sent.size) from error
                raise ClusterError(
                    f"Kafka rejected a record: {error}. To send it again, run the same command"
                ) from error
            self._pending.popleft()
            self._pending_bytes -= sent.size
            # A broker does not always return the offset of a duplicate record.
            if acknowledged.offset >= 0:
                self._written[sent.place] = acknowledged.offset + 1
            if acknowledged.timestamp != sent.own:
                # The timestamp is the broker's, not the one sent.
                self._clock.note(acknowledged.timestamp, sent.sent_at)
        if notified:
            self._notify("Kafka is back")
