"""A topic of events, as a producer reads it: by offsets that it keeps itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dpstream.pipeline.actions import LogRecord, LogSlice
from dpstream.pipeline.kafka.cluster import Cluster, ClusterError, KafkaTransport

_SLICE_BYTES = 1 << 21
_SLICE_EVENTS = 10_000


class EventTopic:
    """Reads a topic; while the cluster is away it waits, and says so once.

    No consumer group is joined, and no offset is committed.

    Args:
        cluster: where the topic is; of one that reads what is committed.
        topic: its name.
        notify: is told when the cluster is away, and back.

    Raises:
        ClusterError: there is no such topic, or the cluster stays away for ten minutes.
    """

    def __init__(
        self, cluster: Cluster, topic: str, notify: Callable[[str], None] = lambda sentence: None
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._patient = KafkaTransport(cluster, topic, notify)
        if topic not in cluster.topics():
            raise ClusterError(f"there is no topic {topic} on {cluster.servers}")

    def identity(self) -> str | None:
        """What no other topic of this name is called that was made before or after it."""
        return self._patient.persistently(lambda: self._cluster.topic_identity(self._topic))

    def starts(self) -> Mapping[int, int]:
        """See `dpstream.pipeline.devices.topic_input.EventLog`."""
        found = self._patient.persistently(lambda: self._cluster.start_offsets(self._topic))
        return dict(enumerate(found))

    def ends(self) -> Mapping[int, int]:
        """See `dpstream.pipeline.devices.topic_input.EventLog`."""
        found = self._patient.persistently(lambda: self._cluster.end_offsets(self._topic))
        return dict(enumerate(found))

    def read(self, partition: int, start: int, stop: int) -> LogSlice:
        """See `dpstream.pipeline.devices.topic_input.EventLog`: some MiB."""
        return self._patient.persistently(lambda: self._slice(partition, start, stop))

    def _slice(self, partition: int, start: int, stop: int) -> LogSlice:
        records: list[LogRecord] = []
        size = 0
        for record in self._cluster.read(self._topic, partition, start, stop):
            records.append(record)
            size += len(record.value)
            if size >= _SLICE_BYTES or len(records) >= _SLICE_EVENTS:
                return LogSlice(tuple(records), record.offset + 1)
        return LogSlice(tuple(records), stop)
