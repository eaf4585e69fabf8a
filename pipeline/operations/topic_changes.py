"""Effect of a deployment on a topic: the topic is created, kept, changed or rejected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from dpstream.pipeline.values.durations import Duration
from dpstream.topics.names import FOREVER, TIMESTAMP_TYPE, TopicSettings
from dpstream.topics.topic_checks import reject_topic, wrong_clock

_RETENTION = "retention.ms"
# Size limit of one partition, which deletes even records that must be kept.
_RETAINED_BYTES = "retention.bytes"
# Delays until deleted records leave the disks; not used by compacted topics.
_ERASING = ("segment.ms", "file.delete.delay.ms")


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A topic's target settings, and its existing settings (None if it does not exist)."""

    wanted: TopicSettings
    found: TopicSettings | None

    @property
    def action(self) -> str:
        if self.found is None:
            return "create"
        if self.rejection is not None:
            return "reject"
        return "change" if self.configs else "keep"

    @property
    def rejection(self) -> str | None:
        return None if self.found is None else reject_topic(self.wanted, self.found)

    @property
    def configs(self) -> dict[str, str]:
        if self.found is None:
            return {}
        found = self.found.configs
        erasing = _ERASING if _RETENTION in self.wanted.configs else ()
        changed = {
            key: value
            for key, value in self.wanted.configs.items()
            if key in (_RETENTION, _RETAINED_BYTES, *erasing) and found.get(key) != value
        }
        if wrong_clock(found) is not None:
            changed[TIMESTAMP_TYPE] = self.wanted.configs[TIMESTAMP_TYPE]
        return changed

    @property
    def retention_in_words(self) -> str:
        return _retention(self.wanted.configs)

    @property
    def action_text(self) -> str:
        if self.found is None:
            return "to be created"
        if self.rejection is not None:
            return "cannot be used"
        if self.configs:
            changes = []
            if _RETENTION in self.configs:
                kept = _retention(self.found.configs)
                changes.append(f"retention: {kept} -> {self.retention_in_words}")
            elif self.configs.keys() & set(_ERASING):
                changes.append("deleted records leave the disks sooner")
            if _RETAINED_BYTES in self.configs:
                changes.append("keeps records regardless of their total size")
            if TIMESTAMP_TYPE in self.configs:
                changes.append("uses the broker's clock")
            return ", ".join(changes)
        if self.wanted.replication not in (None, self.found.replication):
            return f"unchanged, with replication {self.found.replication}"
        return "unchanged"

    def to_json(self) -> dict[str, Any]:
        return {"topic": self.wanted.name, "action": self.action, **_settings(self.wanted)} | (
            {} if self.found is None else {"found": _settings(self.found)}
        )


def _retention(configs: Mapping[str, str]) -> str:
    milliseconds = int(configs.get(_RETENTION, FOREVER))
    if configs.get("cleanup.policy") == "compact":
        return "latest record of each key"
    if milliseconds == FOREVER:
        return "forever"
    return Duration(exact=timedelta(milliseconds=milliseconds)).in_words()


def _settings(topic: TopicSettings) -> dict[str, Any]:
    retention = topic.configs.get(_RETENTION)
    return {
        "partitions": topic.partitions,
        "replication": topic.replication,
        "retention_ms": None if retention is None else int(retention),
    }
