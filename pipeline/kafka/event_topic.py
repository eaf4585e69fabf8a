"""An input topic of events, read by a producer that stores its own offsets."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dpstream.pipeline.actions import LogRecord, LogSlice
from dpstream.pipeline.kafka.cluster import Cluster, ClusterError, KafkaTransport

_SLICE_BYTES = 1 << 21
_SLICE_EVENTS = 10_000


class EventTopic:
    """Read a topic without joining a consumer group or committing offsets.

    During an outage, reads wait, and `notify` is called once. `cluster` must read only committed
    records. Raises ClusterError if the topic does not exist, or after an outage of ten minutes.
    """

    def __init__(
        self, cluster: Cluster, topic: str, notify: Callable[[str], None] = lambda sentence: None
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._persistent = KafkaTransport(cluster, topic, notify)
        if topic not in cluster.topics():
            raise ClusterError(f"topic {topic} does not exist on {cluster.servers}")

    def identity(self) -> str | None:
        return self._persistent.persistently(lambda: self._cluster.topic_identity(self._topic))

    def starts(self) -> Mapping[int, int]:
        found = self._persistent.persistently(lambda: self._cluster.start_offsets(self._topic))
        return dict(enumerate(found))

    def ends(self) -> Mapping[int, int]:
        found = self._persistent.persistently(lambda: self._cluster.end_offsets(self._topic))
        return dict(enumerate(found))

    def read(self, partition: int, start: int, stop: int) -> LogSlice:
        return self._persistent.persistently(lambda: self._slice(partition, start, stop))

    def _slice(self, partition: int, start: int, stop: int) -> LogSlice:
        records: list[LogRecord] = []
        size = 0
        for record in self._cluster.read(self._topic, partition, start, stop):
            records.append(record)
            size += len(record.value)
            if size >= _SLICE_BYTES or len(records) >= _SLICE_EVENTS:
                return LogSlice(tuple(records), record.offset + 1)
        return LogSlice(tuple(records), stop)
