"""A cluster client for polling hundreds of jobs together.

Polling each job separately would take about thirty small requests per job. `ManyTopics.look`
fetches everything for all jobs in a few requests, and later calls use the fetched data. If a
request is denied, or fails repeatedly, nothing is prefetched, and the later call raises the error.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.kafka.cluster import Cluster, identities_of
from dpstream.pipeline.kafka.workers import Committed
from dpstream.topics.names import TIMESTAMP_TYPE, TopicSettings
from dpstream.topics.topic_checks import SETTINGS

_ATTEMPTS = 3
_READ_SECONDS = 10.0
_POLL_MS = 500
_SETTINGS_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Tail:
    """At most `at_most` latest records of a single-partition topic, from offset `start` on."""

    start: int
    at_most: int


@dataclass(slots=True)
class _Seen:
    counts: dict[str, int] = field(default_factory=dict)
    starts: dict[str, list[int]] = field(default_factory=dict)
    committed: dict[str, dict[TopicPartition, Committed | None]] = field(default_factory=dict)
    ends: dict[str, list[int]] = field(default_factory=dict)
    tails: dict[str, tuple[int, list[LogRecord]]] = field(default_factory=dict)


class ManyTopics(Cluster):
    _seen = _Seen()
    _settings_seen: Mapping[str, TopicSettings] = {}
    _settings_at = float("-inf")

    def look(
        self, topics: Iterable[str], groups: Mapping[str, str], tails: Mapping[str, Tail]
    ) -> None:
        """Prefetch data for later calls.

        Partition counts and start and end offsets are fetched for `topics`, committed offsets for
        `groups` (consumer group to topic), and the latest records for `tails`.
        """
        self._seen = _Seen()
        for _ in range(_ATTEMPTS):
            try:
                self._seen = self._look(topics, groups, tails)
                return
            except KeyError:
                # A topic was created or deleted in the meantime.
                continue
            except KafkaError as error:
                if not error.retriable:
                    # The later call raises the error.
                    return

    def _look(
        self, topics: Iterable[str], groups: Mapping[str, str], tails: Mapping[str, Tail]
    ) -> _Seen:
        counts = super().partition_counts()
        wanted = {
            topic: [TopicPartition(topic, number) for number in range(counts[topic])]
            for topic in topics
            if topic in counts
        }
        flat = [each for partitions in wanted.values() for each in partitions]
        self._see_settings(wanted)
        # Keep this order: records that a stage has finished might be deleted between requests.
        starts = self._consumer.beginning_offsets(flat)
        found = self.admin.list_group_offsets(
            {group: wanted[topic] for group, topic in groups.items() if topic in wanted}
        )
        ends = self._consumer.end_offsets(flat)
        seen = _Seen(
            counts,
            {topic: [int(starts[each]) for each in all] for topic, all in wanted.items()},
            {
                group: {each: Committed.of(entry) for each, entry in offsets.items()}
                for group, offsets in found.items()
            },
            {topic: [int(ends[each]) for each in all] for topic, all in wanted.items()},
        )
        self._read_tails(seen, tails)
        return seen

    def _read_tails(self, seen: _Seen, tails: Mapping[str, Tail]) -> None:
        positions = {}
        for topic, tail in tails.items():
            if topic in seen.ends:
                (end, *_), (first, *_) = seen.ends[topic], seen.starts[topic]
                start = max(tail.start, first, end - tail.at_most)
                seen.tails[topic] = start, []
                if start < end:
                    positions[TopicPartition(topic, 0)] = start
        if not positions:
            return
        consumer, deadline = self._consumer, time.monotonic() + _READ_SECONDS
        consumer.assign(list(positions))
        for each, start in positions.items():
            consumer.seek(each, start)
        left = set(positions)
        while left:
            polled = consumer.poll(_POLL_MS)
            for each, records in polled.items():
                seen.tails[each.topic][1].extend(
                    LogRecord(
                        record.offset,
                        record.value if record.value is not None else b"",
                        record.timestamp,
                        record.key,
                        tuple(record.headers),
                    )
                    for record in records
                    if record.offset < seen.ends[each.topic][0]
                )
                if records and records[-1].offset + 1 >= seen.ends[each.topic][0]:
                    left.discard(each)
            if not polled:
                # The last offset might not be a record. Query the position only then: the client
                # checks all partitions to return one.
                left = {
                    each
                    for each in left
                    if (at := consumer.position(each)) is None or at < seen.ends[each.topic][0]
                }
            if left and time.monotonic() > deadline:
                for each in left:
                    del seen.tails[each.topic]
                return

    def _see_settings(self, topics: Iterable[str]) -> None:
        now = time.monotonic()
        if now < self._settings_at + _SETTINGS_SECONDS:
            return
        requested = [
            ConfigResource(
                ConfigResourceType.TOPIC, topic, dict.fromkeys((TIMESTAMP_TYPE, *SETTINGS))
            )
            for topic in topics
        ]
        found = (
            self.admin.describe_configs(requested, config_filter="all")["topic"]
            if requested
            else {}
        )
        self._settings_seen = {
            topic: TopicSettings(topic, 0, 0, {key: each["value"] for key, each in entries.items()})
            for topic, entries in found.items()
        }
        self._settings_at = now

    def partition_counts(self) -> dict[str, int]:
        return self._seen.counts or super().partition_counts()

    def topic_identities(self, topics: Iterable[str]) -> dict[str, str]:
        if not self._seen.counts:
            return super().topic_identities(topics)
        wanted = set(topics)
        return identities_of(each for each in self._described if each["name"] in wanted)

    def existing_topics(self, names: Iterable[str]) -> dict[str, TopicSettings]:
        """Return the settings of existing topics; for prefetched topics, only some settings.

        All other topics are requested from the brokers: they might exist but be hidden.
        """
        requested = list(names)
        known = self._settings_seen
        if self._seen.counts and all(name in known for name in requested):
            return {name: known[name] for name in requested}
        return super().existing_topics(requested)

    def start_offsets(self, topic: str) -> list[int]:
        seen = self._seen.starts.get(topic)
        return super().start_offsets(topic) if seen is None else list(seen)

    def end_offsets(self, topic: str) -> list[int]:
        seen = self._seen.ends.get(topic)
        return super().end_offsets(topic) if seen is None else list(seen)

    def committed(self, group: str, topic: str) -> list[Committed | None]:
        seen, count = self._seen.committed.get(group), self._seen.counts.get(topic)
        if seen is None or count is None:
            return super().committed(group, topic)
        return [seen.get(TopicPartition(topic, number)) for number in range(count)]

    def read(
        self, topic: str, partition: int = 0, start: int = 0, stop: int | None = None
    ) -> Iterator[LogRecord]:
        tail = self._seen.tails.get(topic)
        if tail is None or partition or stop is None or stop > self._seen.ends[topic][0]:
            yield from super().read(topic, partition, start, stop)
            return
        begins, records = tail
        if max(start, self._seen.starts[topic][0]) < begins:
            yield from super().read(topic, partition, start, stop)
            return
        yield from (record for record in records if start <= record.offset < stop)
