"""A Kafka cluster as the tools see it: topics, offsets, whole reads and acknowledged writes.

Synchronous, on kafka-python. The workers do not use it: they are asyncio, on Faust's own client.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
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
    refused_kind,
)
from dpstream.pipeline.kafka.cluster_errors import ClusterError as ClusterError
from dpstream.pipeline.kafka.cluster_errors import NoTopicError as NoTopicError
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.kept_state import begin_anew
from dpstream.pipeline.kafka.topic_spread import (
    TopicSpreadError,
    metadata_of_brokers,
    record_ages,
    wait_for_brokers,
)
from dpstream.pipeline.kafka.workers.groups import Committed
from dpstream.topics.names import BATCH_BYTES_MAX, Role, TopicSettings, topic_name
from dpstream.topics.topic_checks import refuse_topic

CLIENT_ID = "dpstream"
_READ_TIMEOUT_MS = 500
# Reading that gets nowhere for so long has failed, unless a cluster is granted another time.
_SILENCE_SECONDS = 30.0
_BOOTSTRAP_TIMEOUT_MS = 10_000
# kafka-python goes on asking a broker that leads a partition no more where it ends, for as long as
# it takes its metadata for fresh: five minutes by default.
_METADATA_AGE_MS = 3_000
METADATA_PAUSE_MS = 10
"""Between two questions for metadata; by default another topic takes a tenth of a second."""
# A question about partitions of which all was read delays the next one for as long as it is held.
_FETCH_WAIT_MS = 20
# A cluster that has just started, or was just changed, needs a moment until all of it knows.
_SETTLING_SECONDS = 10.0
_SPREADING_SECONDS = 30.0
# A request to create topics that nobody answers may have been carried out: how often to look.
_CREATIONS = 3
# Bytes appended and not yet acknowledged; the client itself has no limit.
_IN_FLIGHT = 1 << 25
# Bytes of records that are read at a time.
_SLICE_BYTES = 1 << 21
# Say that the broker is away after this many seconds, give up after that many.
_NOTICE_AFTER = 5.0
_GIVE_UP_AFTER = 600.0
_RETRY_SECONDS = 0.2
# What is answered of a topic that is not there, or cannot be.
_ABSENT = (UnknownTopicOrPartitionError.errno, InvalidTopicError.errno)


T = TypeVar("T")


class Cluster:
    """Admin, consumer and producer of one cluster, each made when it is first needed.

    `patience` are the seconds that a broker is granted for an answer; by default the clients' own.
    `committed`: read only what transactions have committed, as is right for topics of others.
    """

    def __init__(
        self, connection: Connection, patience: float | None = None, *, committed: bool = False
    ) -> None:
        self.connection = connection
        self._silence = _SILENCE_SECONDS if patience is None else patience
        self._settings = {} if patience is None else {"request_timeout_ms": int(patience * 1000)}
        self._isolation = "read_committed" if committed else "read_uncommitted"
        self._admin_client: KafkaAdminClient | None = None
        self._consumer_client: KafkaConsumer | None = None
        self._producer_client: KafkaProducer | None = None
        self._asked: dict[str, int] = {}
        self._described: list[Mapping[str, Any]] = []

    @property
    def servers(self) -> str:
        """The bootstrap servers, for messages."""
        return ", ".join(self.connection.bootstrap_servers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close what was opened."""
        for client in (self._admin_client, self._consumer_client):
            if client is not None:
                client.close()
        producer = self._producer_client
        if producer is not None:
            try:
                producer.close(timeout=1)
            except KafkaTimeoutError:
                # The client closes only when records that no broker takes are out of its way.
                producer._sender.force_close()
                producer.close(timeout=1)

    def identity(self) -> str:
        """What the cluster calls itself."""
        return str(self.admin.describe_cluster()["cluster_id"])

    def topic_identity(self, topic: str) -> str | None:
        """What the cluster calls a topic, and never another one of its name; None: it says nothing.

        Brokers before Kafka 2.8 do not.
        """
        return self.topic_identities([topic]).get(topic)

    def topic_identities(self, topics: Iterable[str]) -> dict[str, str]:
        """Kafka's ids of the topics that exist; brokers before Kafka 2.8 have none."""
        wanted = sorted(topics)
        return identities_of(self.admin.describe_topics(wanted)) if wanted else {}

    def topics(self) -> set[str]:
        """The names of all topics."""
        return set(self.admin.list_topics())

    def exists(self, topic: str) -> bool:
        """Whether there is a topic.

        Raises:
            AccessError: this login may not know.
        """
        # Of this one alone: a list of all takes long where there are hundreds of jobs.
        (found,) = self.admin.describe_topics([topic])
        self._check_visible(found)
        return found["error_code"] not in _ABSENT

    def partition_counts(self) -> dict[str, int]:
        """How many partitions every topic has, as the brokers know it now.

        Later reads know it too: a consumer would ask for partitions that are gone for half a
        minute, and not see those that were added for five.
        """
        self._described = self.admin.describe_topics()
        counts = {
            topic["name"]: len(topic["partitions"])
            for topic in self._described
            if not topic["error_code"]
        }
        if any(counts.get(topic) != asked for topic, asked in self._asked.items()):
            self._asked.clear()
            self._consumer.close()
            self._consumer_client = None
        return counts

    def create_topics(self, topics: Iterable[TopicSettings]) -> None:
        """Create the topics that do not exist; all brokers know them then.

        Where it is not said whether they were created, it is looked at again what there is.

        Raises:
            ClusterError: one exists with another number of partitions or settings that would lose
                records or tell when they were sent, or cannot be created.
        """
        wanted = {topic.name: topic for topic in topics}
        if not wanted:
            return
        try:
            self._create(wanted)
            wait_for_brokers(
                lambda: metadata_of_brokers(self.admin, wanted),
                wanted,
                patience=_SPREADING_SECONDS,
            )
        except KafkaError as error:
            self._check_refusal(error, "create", ", ".join(wanted))
            raise ClusterError(f"cannot create the topics: {error}") from error
        except _UnansweredError as error:
            raise ClusterError(
                f"Kafka was asked {_CREATIONS} times to create {error}, and has not said whether "
                "it has, nor are they there: see that all brokers are well, and do the same again; "
                "what was created meanwhile is used then"
            ) from error
        except TopicSpreadError as error:
            raise ClusterError(
                f"the topics are created, but after {_SPREADING_SECONDS:g} s {error}: see that all "
                "brokers are well, and do the same again"
            ) from None

    def _create(self, wanted: Mapping[str, TopicSettings]) -> None:
        for _ in range(_CREATIONS - 1):
            with suppress(_UnansweredError):
                return self._patiently(lambda: self._create_missing(wanted))
        return self._patiently(lambda: self._create_missing(wanted))

    def _create_missing(self, wanted: Mapping[str, TopicSettings]) -> None:
        existing = self.existing_topics(wanted)
        for name, found in existing.items():
            if (refusal := refuse_topic(wanted[name], found)) is not None:
                raise ClusterError(refusal)
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
            if not _tells_nothing(error):
                raise
            raise _UnansweredError(", ".join(topic.name for topic in missing)) from error

    def existing_topics(self, names: Iterable[str]) -> dict[str, TopicSettings]:
        """How those of the topics that exist are set up, with all their settings."""
        wanted = set(names)
        return self._patiently(lambda: self._describe(sorted(self.topics() & wanted)))

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
        """Change settings of topics, by name; the others of a topic stay as they are.

        Raises:
            ClusterError: the cluster refuses; some may be changed then.
        """
        if not configs:
            return
        resources = [
            ConfigResource(ConfigResourceType.TOPIC, name, dict(changed))
            for name, changed in configs.items()
        ]
        # Unless told not to, the client looks at what there is, and finds nothing where it may not.
        answers = self.admin.alter_configs(resources, raise_on_unknown=False).get("topic", {})
        for name, said in answers.items():
            if "TopicAuthorizationFailed" in str(said):
                raise self._refusal("change", "topic", name)
            if said != "OK":
                raise ClusterError(f"cannot change the settings of topic {name}: {said}")

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete the topics that exist."""
        doomed = self.topics() & set(names)
        if doomed:
            with self.asking("delete", ", ".join(sorted(doomed))):
                self.admin.delete_topics(sorted(doomed))

    def delete_below(self, topic: str, offset: int, partition: int = 0) -> None:
        """Delete a partition's records below an offset.

        Raises:
            ClusterError: the cluster refuses.
        """
        try:
            self.admin.delete_records({TopicPartition(topic, partition): offset})
        except KafkaError as error:
            self._check_refusal(error, "delete records of", topic)
            raise ClusterError(
                f"records of {topic} below {offset} could not be deleted: {error}; retention will "
                "do it"
            ) from error

    def end_offsets(self, topic: str) -> list[int]:
        """The offset of the next record, by partition."""
        partitions = self._partitions(topic)
        ends = self._consumer.end_offsets(partitions)
        return [int(ends[partition]) for partition in partitions]

    def ends(self, partitions: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Where many topics end, by partition: asked of all of them at once.

        Args:
            partitions: by topic, of how many it is asked. Topics that are not there, or have
                fewer, are left out.
        """
        wanted = {
            topic: [TopicPartition(topic, number) for number in range(count)]
            for topic, count in partitions.items()
        }
        try:
            found = self._consumer.end_offsets([each for all in wanted.values() for each in all])
        except KeyError:
            # One of them is not there.
            if len(wanted) == 1:
                return {}
            return {t: e for each, n in partitions.items() for t, e in self.ends({each: n}).items()}
        return {topic: tuple(int(found[each]) for each in all) for topic, all in wanted.items()}

    def start_offsets(self, topic: str) -> list[int]:
        """The offset of the first record that is still there, by partition."""
        partitions = self._partitions(topic)
        starts = self._consumer.beginning_offsets(partitions)
        return [int(starts[partition]) for partition in partitions]

    def written(self, topic: str, offsets: Mapping[int, int], now: int) -> dict[int, int]:
        """About when records were written, in milliseconds since 1970, without reading them.

        Found by asking where the records of some time begin, of all partitions at once: see
        `topic_spread`. For topics that go by the broker's clock.

        Args:
            topic: where they are.
            offsets: of one record in each partition.
            now: by the broker's clock.

        Returns:
            By partition; those whose record is not there are left out.
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
        # Where records are compacted away, the first that is left is the oldest, if Kafka finds it.
        for each, first in self._consumer.offsets_for_times(dict.fromkeys(there, 0)).items():
            if first is None:
                there.remove(each)
            else:
                wanted[each] = max(wanted[each], int(first.offset))
        return {each.partition: now - age for each, age in record_ages(there, now, older).items()}

    def committed(self, group: str, topic: str) -> list[Committed | None]:
        """The offsets a consumer group has committed, by partition."""
        partitions = self._partitions(topic)
        with self.asking("see", group):
            offsets = self._patiently(lambda: self.admin.list_group_offsets({group: partitions}))[
                group
            ]
        return [Committed.of(offsets.get(partition)) for partition in partitions]

    def read(
        self, topic: str, partition: int = 0, start: int = 0, stop: int | None = None
    ) -> Iterator[LogRecord]:
        """Read a partition from offset `start` to before `stop` (its present end by default).

        What ends without an error has been read to its stop, every record once; what retention
        takes meanwhile is left out.

        Raises:
            NoTopicError: there is no such topic.
            KafkaError: the broker does not answer; what has been read so far is right.
        """
        if stop is None:
            stop = self.end_offsets(topic)[partition]
        start = max(start, self.start_offsets(topic)[partition])
        assigned = TopicPartition(topic, partition)
        self._consumer.assign([assigned])
        self._consumer.seek(assigned, start)
        reached, since = start, time.monotonic()
        # There is no position while the client looks for the next record that is still there.
        while (position := self._consumer.position(assigned)) is None or position < stop:
            if position is not None and position > reached:
                reached, since = position, time.monotonic()
            elif time.monotonic() - since > self._silence:
                raise KafkaTimeoutError(
                    f"partition {partition} of {topic} is read up to offset {reached} of {stop}, "
                    f"and the broker has sent nothing more for {self._silence:.0f} s"
                )
            for record in self._poll(assigned):
                if record.offset >= stop:
                    return
                if record.offset < reached:
                    # The client began anew, with what is left.
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
        """Write one record to partition 0 and wait for its acknowledgement; returns its offset."""
        try:
            future = self.producer.send(topic, value, key=key, partition=0)
            return int(future.get(timeout=60).offset)
        except KafkaError as error:
            if may_not_write(error):
                raise self._refusal("write", "topic", topic) from error
            if is_too_large(error):
                raise RecordTooLargeError(topic, len(value or b"")) from error
            raise ClusterError(f"cannot write to {topic}: {error}") from error

    @property
    def producer(self) -> KafkaProducer:
        """An idempotent producer that waits for all in-sync replicas."""
        if self._producer_client is None:
            self._producer_client = self._make(
                KafkaProducer,
                acks="all",
                linger_ms=0,
                # What the client calls a batch, the broker calls a message.
                batch_size=BATCH_BYTES_MAX - 4096,
                max_request_size=1 << 21,
                delivery_timeout_ms=int(_GIVE_UP_AFTER * 1000),
                allow_auto_create_topics=False,
            )
        return self._producer_client

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask again while the cluster says that it may know better in a moment."""
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
            raise NoTopicError(f"there is no topic {topic} on {self.servers}")
        self._asked[topic] = len(numbers)
        return [TopicPartition(topic, number) for number in sorted(numbers)]

    def _check_visible(self, found: Mapping[str, Any]) -> None:
        """Raise `AccessError` if the cluster does not say whether there is a topic."""
        if found["error_code"] == TopicAuthorizationFailedError.errno:
            raise self._refusal("see", "topic", found["name"])

    def _refusal(self, action: str, kind: str, name: str) -> AccessError:
        return AccessError(self.connection.principal, action, kind, name)

    def _check_refusal(self, error: KafkaError, action: str, name: str) -> None:
        if (kind := refused_kind(error)) is not None:
            raise self._refusal(action, kind, name) from error

    @contextmanager
    def asking(self, action: str, name: str) -> Iterator[None]:
        """Raise `AccessError` where the cluster refuses what is asked for in between.

        Args:
            action: a verb, as in `AccessError`.
            name: of what it is done to.
        """
        try:
            yield
        except KafkaError as error:
            self._check_refusal(error, action, name)
            raise

    @property
    def admin(self) -> KafkaAdminClient:
        """A client of administrators' requests."""
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
                    f"Kafka at {self.servers} does not know {self.connection.principal} by this "
                    "password: see sasl.jaas.config and sasl.mechanism of --kafka-config"
                ) from error
            raise BrokerAwayError(f"cannot reach Kafka at {self.servers}: {error}") from error


def identities_of(described: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return Kafka's ids of described topics, by name."""
    ids = {
        topic["name"]: uuid.UUID(str(topic["topic_id"]))
        for topic in described
        if topic.get("topic_id") is not None and not topic["error_code"]
    }
    return {name: str(named) for name, named in ids.items() if named.int}


@dataclass(frozen=True, slots=True)
class _Sent:
    """A record on its way: where to, its size, and when it set out, by two clocks."""

    future: Any
    place: tuple[Role, int]
    topic: str
    size: int
    begun: float
    own: int


def _is_settling(error: KafkaError) -> bool:
    """Whether a broker has answered that it does not know yet; silence is no such answer."""
    # Who is told that a topic exists which another broker does not list asks on.
    answered = getattr(error, "errno", None) is not None
    return answered and (error.retriable or isinstance(error, TopicAlreadyExistsError))


class _UnansweredError(Exception):
    """A request to create topics, which are named, may have been carried out or not."""


def _tells_nothing(error: Exception) -> bool:
    """Whether after an error a request may have been carried out all the same."""
    if isinstance(error, KafkaError):
        answered = getattr(error, "errno", None) is not None
        return isinstance(error, RequestTimedOutError) or (error.retriable and not answered)
    # The admin client finds no controller any more, for which it has no class.
    return "controller" in str(error)


class KafkaTransport:
    """Carries out a producer's actions on the topics of a job.

    While the broker is away it waits, and says so once through `notify`. Every acknowledgement
    tells `clock` what the broker's says.

    Raises:
        ClusterError: a record was refused, or the broker stayed away for ten minutes.
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
        """Carry out a whole generator; returns what it returns."""
        return carry_out(steps, self.carry_out)

    def carry_out(self, action: Action) -> object:
        """Carry out an action; only `Flush` waits for acknowledgements, unless they are many."""
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
                raise TypeError(f"a producer does not {action}")
        return None

    def persistently(self, ask: Callable[[], T]) -> T:
        """What the broker answers; while it is away, waits and says so once."""
        started, told = time.monotonic(), False
        while True:
            try:
                answer = ask()
            except KafkaError as error:
                waited = time.monotonic() - started
                if waited > _GIVE_UP_AFTER:
                    raise ClusterError(f"Kafka does not answer: {error}") from error
                if not told:
                    self._notify("Kafka does not answer; waiting for it, nothing is lost")
                    told = True
                time.sleep(_RETRY_SECONDS)
                continue
            if told:
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
        begun, own = self._clock.begin(), own_milliseconds()
        topic = topic_name(self._job, role)
        try:
            future = self._cluster.producer.send(
                topic, value, partition=partition, timestamp_ms=own
            )
        except KafkaError as error:
            # The client does not know the topic, and has waited for that.
            self._check_there(topic)
            raise ClusterError(f"Kafka does not answer: {error}") from error
        self._pending.append(_Sent(future, (role, partition), topic, len(value), begun, own))
        self._pending_bytes += len(value)
        self._settle(_IN_FLIGHT)

    def _check_there(self, topic: str) -> None:
        try:
            there = self._cluster.exists(topic)
        except (KafkaError, BrokerAwayError):
            return
        if not there:
            raise NoTopicError(
                f"topic {topic} is gone: was the job undeployed? What was drawn is not sent, and "
                f"stays in the producer's folder; if the job is to go on, {begin_anew(self._job)}"
            )

    def _settle(self, allowed: int) -> None:
        started = time.monotonic()
        told = False
        while self._pending and self._pending_bytes > allowed:
            sent = self._pending[0]
            try:
                acknowledged = sent.future.get(timeout=0.2)
            except KafkaError as error:
                if not sent.future.is_done:
                    waited = time.monotonic() - started
                    if waited > _NOTICE_AFTER and not told:
                        self._check_there(sent.topic)
                        self._notify("Kafka does not answer; waiting for it, nothing is lost")
                        told = True
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
                    f"Kafka did not take a record: {error}; it is kept, run the same again"
                ) from error
            self._pending.popleft()
            self._pending_bytes -= sent.size
            # Of a record that it had already, a broker need not know where it lies.
            if acknowledged.offset >= 0:
                self._written[sent.place] = acknowledged.offset + 1
            if acknowledged.timestamp != sent.own:
                # Not the time we have put there, but the broker's.
                self._clock.note(acknowledged.timestamp, sent.begun)
        if told:
            self._notify("Kafka is back")
