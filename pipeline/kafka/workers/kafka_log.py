"""Carry out a stage's actions on Kafka.

* One idempotent producer and one consumer without a group stay open.
* During an outage, repeatable requests are repeated until the broker is back, and the producer
  keeps its records. Only errors that waiting cannot cure are raised.
* `KnownRecords` caches records that were acknowledged, or passed to the stage. This is safe, since
  every reader gets the same record at an offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError
from aiokafka.structs import ConsumerRecord

from dpstream.pipeline.actions import Append, Ends, LogRecord, LogSlice
from dpstream.pipeline.kafka.broker_clock import BrokerClock
from dpstream.pipeline.kafka.cluster_errors import (
    AccessError,
    PositionDeletedError,
    RecordTooLargeError,
    is_too_large,
    rejected_kind,
)
from dpstream.pipeline.kafka.topic_ids import ask_ids
from dpstream.pipeline.kafka.workers.broker_outage import repeat_until_answered
from dpstream.pipeline.kafka.workers.internals import NarrowAdmin, never_give_up
from dpstream.topics.names import BATCH_BYTES_MAX, COMPACTED, TIMESTAMP_TYPE, Role


@dataclass(slots=True)
class _RecordRun:
    records: list[LogRecord] = field(default_factory=list)
    size: int = 0


class KnownRecords:
    """Cache the latest records of each partition that is read, up to `most` bytes each."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rows: dict[tuple[object, int], _RecordRun] = {}

    def note(self, place: tuple[object, int], record: LogRecord) -> None:
        row = self._rows.get(place)
        if row is None:
            return
        follows = not row.records or row.records[-1].offset + 1 == record.offset
        if not follows or row.size >= self._most:
            row = self._rows[place] = _RecordRun()
        row.records.append(record)
        row.size += len(record.value)

    def take(self, place: tuple[object, int], start: int, stop: int) -> Sequence[LogRecord]:
        """Return the cached records with offsets in [start, stop), and clear the partition's cache.

        No records if `start` is not cached. A partition is cached only after its first `take`.
        """
        records = self._rows.get(place, _RecordRun()).records
        self._rows[place] = _RecordRun()
        first = start - records[0].offset if records else 0
        return records[first : max(first, first + stop - start)] if first >= 0 else ()


# The client's limit counts the records of a batch; the topic's limit also counts its headers.
BATCH_BYTES = BATCH_BYTES_MAX - 4096
SLICE_BYTES = 2 << 20
_STOP_SECONDS = 1.0
# Kafka's code for the timestamp type.
_LOG_APPEND_TIME = 1


class KafkaLog:
    """Read and write the topics of a job.

    Every aiokafka client gets `options`: servers, security, timeouts, client ID. The reading client
    checks what to request every `look_seconds`, and when notified. If access is denied, methods
    raise an AccessError that names `principal`; for appended records, `flush` raises it.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        topic: Callable[[Role], str],
        clock: BrokerClock | None = None,
        principal: str | None = None,
        *,
        look_seconds: float = 0.2,
    ) -> None:
        self._topic = topic
        self._principal = principal
        self._clock = clock or BrokerClock()
        self._producer = AIOKafkaProducer(
            **options,
            acks="all",
            enable_idempotence=True,
            linger_ms=0,
            max_batch_size=BATCH_BYTES,
        )
        # Reads never wait for new records, so a fetch must not hold up the requests behind it.
        self._reader = AIOKafkaConsumer(
            **options,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=10,
            consumer_timeout_ms=round(1000 * look_seconds),
            max_partition_fetch_bytes=SLICE_BYTES,
        )
        self._admin = NarrowAdmin(**options)
        self._reading = asyncio.Lock()
        self._sent: set[asyncio.Future[object]] = set()
        self._pending: set[asyncio.Future[object]] = set()
        self._written: dict[tuple[Role, int], int] = {}
        self._known = KnownRecords(SLICE_BYTES)
        self._failure: BaseException | None = None
        self._unstarted = [self._producer, self._reader, self._admin]

    async def start(self) -> None:
        """Connect. Raises `KafkaConnectionError` without a broker, and can then be called again."""
        while self._unstarted:
            await self._unstarted[0].start()
            self._unstarted.pop(0)
        never_give_up(self._producer)

    async def stop(self) -> None:
        self.forget_appends()
        await asyncio.gather(
            *(
                asyncio.wait_for(stop(), _STOP_SECONDS)
                for stop in (self._producer.stop, self._reader.stop, self._admin.close)
            ),
            return_exceptions=True,
        )

    async def partitions(self, role: Role) -> int:
        return (await self.partition_counts([role]))[role]

    async def partition_counts(self, roles: Collection[Role]) -> dict[Role, int]:
        """Return the number of partitions in each of the job's topics; 0 for a missing topic.

        Does not request topics that are hidden from this login: the cluster logs such requests.
        """
        found = await self._admin.partition_counts([self._topic(role) for role in roles])
        return {role: found.get(self._topic(role), 0) for role in roles}

    async def topic_ids(self, roles: Collection[Role]) -> dict[str, str]:
        return await ask_ids(self._producer.client, [self._topic(role) for role in roles])

    async def assigned(self, group: str, role: Role) -> set[int] | None:
        return await self._admin.assigned_partitions(group, self._topic(role))

    async def check_visible(self, roles: Iterable[Role]) -> None:
        """Raise AccessError if a topic that seems to be missing is only hidden from this login."""
        for found in await self._admin.describe_topics([self._topic(role) for role in roles]):
            if found["error_code"] == TopicAuthorizationFailedError.errno:
                raise AccessError(self._principal, "see", "topic", found["topic"])

    async def settings(self, roles: Iterable[Role]) -> dict[str, dict[str, str]]:
        requested = [
            ConfigResource(ConfigResourceType.TOPIC, self._topic(role), {TIMESTAMP_TYPE: None})
            for role in roles
        ]
        found: dict[str, dict[str, str]] = {}
        for response in await self._admin.describe_configs(requested):
            for code, _, _, name, entries in response.resources:
                if not code:
                    found[name] = {entry[0]: entry[1] for entry in entries}
        return found

    async def append(self, action: Append) -> None:
        with self._asking("write", self._topic(action.role)):
            sent = await self._send(action)
        self._sent.add(sent)
        self._pending.add(sent)
        sent.add_done_callback(partial(self._acknowledged, action))

    async def write(self, action: Append) -> None:
        topic = self._topic(action.role)
        try:
            with self._asking("write", topic):
                await (await self._send(action))
        except KafkaError as error:
            if is_too_large(error):
                raise RecordTooLargeError(topic, len(action.value)) from error
            raise

    async def flush(self) -> Ends:
        while self._pending:
            await asyncio.wait(self._pending)
        if self._failure is not None:
            raise self._failure
        return dict(self._written)

    def forget_appends(self) -> None:
        self._pending = set()
        self._failure = None

    async def settle(self, seconds: float) -> None:
        if self._sent:
            await asyncio.wait(self._sent, timeout=seconds)

    def note_shown(self, role: Role, partition: int, record: LogRecord) -> None:
        self._known.note((role, partition), record)

    async def ends(self, places: Collection[tuple[Role, int]]) -> Ends:
        return await repeat_until_answered(lambda: self._ends(places))

    async def end_offsets(self, role: Role, partitions: Collection[int]) -> dict[int, int]:
        ends = await self._ends([(role, partition) for partition in partitions])
        return {partition: end for (_, partition), end in ends.items()}

    async def read(self, role: Role, partition: int, start: int, stop: int) -> LogSlice:
        """Read some records; raise `PositionDeletedError` if the first was deleted."""
        if known := self._known.take((role, partition), start, stop):
            return LogSlice(tuple(known), known[-1].offset + 1)
        where = TopicPartition(self._topic(role), partition)
        async with self._reading:
            with self._asking("read", where.topic):
                found = await repeat_until_answered(lambda: self._read(where, start, stop))
                first = (
                    found[0].offset
                    if found
                    else await repeat_until_answered(lambda: self._first(where))
                )
        if first > start and role not in COMPACTED:
            hole = await repeat_until_answered(lambda: self._first(where)) <= start
            raise PositionDeletedError(where.topic, partition, start, first, hole=hole)
        records = tuple(
            LogRecord(
                record.offset,
                record.value or b"",
                record.timestamp,
                record.key,
                tuple(record.headers),
            )
            for record in found
            if record.offset < stop
        )
        return LogSlice(records, records[-1].offset + 1 if records else max(start, first))

    async def delete_below(self, role: Role, partition: int, offset: int) -> None:
        where = TopicPartition(self._topic(role), partition)
        with self._asking("delete records of", where.topic):
            await self._admin.delete_records({where: RecordsToDelete(before_offset=offset)})

    async def _ends(self, places: Collection[tuple[Role, int]]) -> Ends:
        requested = {TopicPartition(self._topic(role), each): (role, each) for role, each in places}
        try:
            ends = await self._reader.end_offsets(list(requested))
        except KafkaError as error:
            rejected = [each.topic for each in error.args if isinstance(each, TopicPartition)]
            topic = (
                rejected[0] if rejected else ", ".join(sorted({each.topic for each in requested}))
            )
            if (problem := self._rejection(error, "see", topic)) is not None:
                raise problem from error
            raise
        return {requested[where]: end for where, end in ends.items()}

    async def _send(self, action: Append) -> asyncio.Future[object]:
        sent_at = self._clock.begin()
        sent: asyncio.Future[object] = await repeat_until_answered(
            lambda: self._producer.send(
                self._topic(action.role),
                action.value,
                key=action.key,
                partition=action.partition,
                headers=list(action.headers),
            )
        )
        sent.add_done_callback(partial(self._read_clock, sent_at))
        return sent

    def _read_clock(self, sent_at: float, sent: asyncio.Future[Any]) -> None:
        if sent.cancelled() or sent.exception() is not None:
            return
        written = sent.result()
        if written.timestamp_type == _LOG_APPEND_TIME:
            self._clock.note(written.timestamp, sent_at)

    async def _read(
        self, where: TopicPartition, start: int, stop: int
    ) -> list[ConsumerRecord[bytes | None, bytes | None]]:
        reader = self._reader
        assigned = reader.assignment()
        if where not in assigned:
            reader.assign([*assigned, where])
            reader.pause(*assigned, where)
        reader.seek(where, start)
        reader.resume(where)
        try:
            while start < stop:
                found = await reader.getmany(where, timeout_ms=200)
                records: list[ConsumerRecord[bytes | None, bytes | None]] = found.get(where, [])
                if records:
                    return records
                if await self._first(where) > start:
                    # The whole range was deleted: no record will arrive.
                    return []
                stop = min(stop, (await reader.end_offsets([where]))[where])
            return []
        finally:
            # Idle partitions are paused, because their fetches would delay the next request.
            reader.pause(where)

    async def _first(self, where: TopicPartition) -> int:
        return int((await self._reader.beginning_offsets([where]))[where])

    @contextmanager
    def _asking(self, action: str, topic: str) -> Iterator[None]:
        try:
            yield
        except KafkaError as error:
            if (rejected := self._rejection(error, action, topic)) is not None:
                raise rejected from error
            raise

    def _rejection(self, error: BaseException, action: str, topic: str) -> AccessError | None:
        kind = rejected_kind(error)
        return None if kind is None else AccessError(self._principal, action, kind, topic)

    def _acknowledged(self, action: Append, sent: asyncio.Future[Any]) -> None:
        self._sent.discard(sent)
        failure = None if sent.cancelled() else sent.exception()
        if failure is not None:
            topic = self._topic(action.role)
            failure = self._rejection(failure, "write", topic) or failure
            if is_too_large(failure):
                failure = RecordTooLargeError(topic, len(action.value))
        written = sent.result() if failure is None and not sent.cancelled() else None
        self._note_written(action, written)
        if sent in self._pending:
            self._pending.discard(sent)
            self._failure = self._failure or failure

    def _note_written(self, action: Append, written: Any) -> None:
        """Note a record's offset if the record was acknowledged; otherwise, `written` is None."""
        place = action.role, action.partition
        if written is None or written.timestamp_type != _LOG_APPEND_TIME:
            # A broker might not know the time and offset of a duplicate batch: the client then
            # computes record offsets without a base.
            self._written.pop(place, None)
            return
        self._written[place] = written.offset + 1
        self._known.note(
            place,
            LogRecord(written.offset, action.value, written.timestamp, action.key, action.headers),
        )
