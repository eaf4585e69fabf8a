"""Names and settings of a job's topics.

A setting that a delivery guarantee depends on is explicit even if it is Kafka's default: a cluster
can have other defaults. Every topic uses LogAppendTime: the broker determines when a record was
written. So no writer's clock decides what retention deletes, or what Kafka rejects.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

JOBS_TOPIC = "dpstream.jobs"
"""Topic of the deployed jobs, one for the whole cluster; keyed by job name, compacted."""

LEDGER_TOPIC = "dpstream.ledger"
"""Topic of the charges and budget limits of users, one for the whole cluster; never rewritten."""

BATCH_BYTES_MAX = 512 * 1024
"""Largest record batch that `reports` and `shuffled` accept; clients' batch sizes are smaller."""
KEPT_BATCH_BYTES_MAX = 1024 * 1024
"""Largest record batch that all other topics accept. A dead letter contains a record of `reports`
or `shuffled`, plus headers."""
FOREVER = -1
TIMESTAMP_TYPE = "message.timestamp.type"
"""Topic setting that selects the clock of timestamps."""
LOG_APPEND_TIME = "LogAppendTime"
"""The broker's clock."""


class Role(StrEnum):
    REPORTS = "reports"
    REPORTS_2 = "reports-2"
    REPORTS_3 = "reports-3"
    REPORTS_4 = "reports-4"
    HOP_1 = "hop-1"
    HOP_2 = "hop-2"
    MANIFESTS = "manifests"
    SHUFFLED = "shuffled"
    PARTIALS_A = "partials-a"
    PARTIALS_B = "partials-b"
    PARTIALS = "partials"
    ESTIMATES = "estimates"
    RESULTS = "results"
    PRODUCERS = "producers"
    DEVICES = "devices"
    STATUS = "status"
    DEAD_LETTERS = "dead-letters"


COMPACTED = frozenset({Role.RESULTS, Role.STATUS})
"""Topics that retain the last record of every key; earlier offsets can be missing."""

HOPS = (Role.HOP_1, Role.HOP_2)
"""Topics between chained shufflers."""

FURTHER_REPORTS = (Role.REPORTS_2, Role.REPORTS_3, Role.REPORTS_4)
"""Topics of device reports, one for each parallel shuffler after the first."""

SUMS = (Role.PARTIALS_A, Role.PARTIALS_B)
"""Topics for the sums of the two aggregators, one each, for tables in two shares."""

JOB_NAME_MAX = 249 - max(len(f".{role}") for role in Role)
"""Maximum length of a job name: Kafka allows 249 characters in a topic name."""

# No '.': in Kafka's metrics, 'a.b' and 'a_b' are the same topic. Because the only '.' in a topic
# name precedes its role, and no role has a '_', different topics remain different.
_JOB_NAME = re.compile(rf"[a-z0-9][a-z0-9_-]{{0,{JOB_NAME_MAX - 1}}}")

# Kafka deletes whole segments, but never the active one. Expired records leave the brokers' disks
# in three steps. First, their segment is rolled, at the first record after this time. Next, the
# brokers check (log.retention.check.interval.ms, 5 minutes). Then the delete delay passes.
_SEGMENT_MS = 3_600_000
_SEGMENTS_OF_A_RETENTION = 8
_SHORTEST_SEGMENT_MS = 60_000
_DELETED_AFTER_MS = 1_000


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Name and settings of a topic to create.

    `replication` is the number of copies of every partition. None as `replication`, and settings
    that `configs` omits, use the cluster's defaults.
    """

    name: str
    partitions: int
    replication: int | None
    configs: Mapping[str, str]


def validate_job_name(name: str) -> None:
    """Raise `ValueError` for an invalid job name; the message describes valid ones."""
    if not _JOB_NAME.fullmatch(name):
        raise ValueError(
            f"job name {name!r} is invalid; expected 1 to {JOB_NAME_MAX} lower-case letters, "
            "digits, '-' and '_', starting with a letter or digit"
        )


def topic_name(job: str, role: Role) -> str:
    """Return the name of a job's topic.

    >>> topic_name("students", Role.DEAD_LETTERS)
    'students.dead-letters'
    """
    validate_job_name(job)
    return f"{job}.{role}"


def job_topics(
    job: str,
    partitions: int,
    replication: int | None,
    retention_ms: int,
    *,
    hops: Collection[Role] = (),
    further_reports: Collection[Role] = (),
    shared: bool = False,
    devices: bool = False,
) -> dict[Role, TopicSettings]:
    """Return the settings of all topics of a job.

    Epoch e is in partition e mod `partitions` of `reports`, `hop-...` and `shuffled`; all other
    topics have one partition. `retention_ms` bounds the longest outage; -1 is unlimited. `hops` are
    the topics between chained shufflers, `further_reports` those of parallel shufflers after the
    first. `shared` is True if two aggregators each sum one share, `devices` if devices report
    directly.
    """
    if retention_ms != FOREVER and retention_ms < 1:
        raise ValueError(f"retention is {retention_ms} ms; expected at least 1, or -1 for no limit")
    passing = _deleted(retention_ms, BATCH_BYTES_MAX)
    kept = _deleted(FOREVER, KEPT_BATCH_BYTES_MAX)
    configs = {
        **{role: {**passing, **_erased(retention_ms)} for role in (Role.REPORTS, *further_reports)},
        **dict.fromkeys(hops, passing),
        Role.MANIFESTS: kept,
        Role.SHUFFLED: passing,
        **(dict.fromkeys(SUMS, kept) if shared else {}),
        Role.PARTIALS: kept,
        Role.ESTIMATES: kept,
        Role.RESULTS: _compacted(),
        Role.PRODUCERS: kept,
        **({Role.DEVICES: kept} if devices else {}),
        Role.STATUS: _compacted(),
        Role.DEAD_LETTERS: {
            **_deleted(retention_ms, KEPT_BATCH_BYTES_MAX),
            **_erased(retention_ms),
        },
    }
    spread = (Role.REPORTS, *FURTHER_REPORTS, *HOPS, Role.SHUFFLED)
    return {
        role: _settings(
            topic_name(job, role), partitions if role in spread else 1, replication, configs[role]
        )
        for role in configs
    }


def jobs_topic(replication: int | None) -> TopicSettings:
    return _settings(JOBS_TOPIC, 1, replication, _compacted())


def ledger_topic(replication: int | None) -> TopicSettings:
    """Return the topic of users' charges and budget limits: unlimited retention, no compaction."""
    return _settings(LEDGER_TOPIC, 1, replication, _deleted(FOREVER, KEPT_BATCH_BYTES_MAX))


def _settings(
    name: str, partitions: int, replication: int | None, configs: Mapping[str, str]
) -> TopicSettings:
    if partitions < 1:
        raise ValueError(f"topic {name} has {partitions} partitions; expected at least 1")
    if replication is not None and replication < 1:
        raise ValueError(f"topic {name} has replication {replication}; expected at least 1")
    # With three copies one broker can fail; an acknowledged record is then still on another.
    durable = {"min.insync.replicas": "2"} if replication is not None and replication >= 3 else {}
    # Stored uncompressed: these clients might not support a cluster's default codec, and a small
    # compressed batch can exceed any reader's memory limit.
    plain = {"compression.type": "uncompressed"}
    return TopicSettings(name, partitions, replication, {**configs, **durable, **plain})


def _deleted(retention_ms: int, batch_bytes: int) -> dict[str, str]:
    return {
        "cleanup.policy": "delete",
        "retention.ms": str(retention_ms),
        "retention.bytes": "-1",
        "max.message.bytes": str(batch_bytes),
        TIMESTAMP_TYPE: LOG_APPEND_TIME,
    }


def segment_ms(retention_ms: int) -> int:
    """Return milliseconds until a segment of users' reports is rolled and can be deleted.

    >>> segment_ms(FOREVER), segment_ms(7 * 24 * 3_600_000), segment_ms(8 * 90_000)
    (3600000, 3600000, 90000)
    """
    longest = _SEGMENT_MS
    if retention_ms != FOREVER:
        longest = min(longest, retention_ms // _SEGMENTS_OF_A_RETENTION)
    return max(longest, _SHORTEST_SEGMENT_MS)


def _erased(retention_ms: int) -> dict[str, str]:
    return {
        "segment.ms": str(segment_ms(retention_ms)),
        "file.delete.delay.ms": str(_DELETED_AFTER_MS),
    }


def _compacted() -> dict[str, str]:
    # Readers read these topics completely. Only rolled segments are compacted: roll them soon.
    return {
        "cleanup.policy": "compact",
        "segment.ms": "60000",
        "min.cleanable.dirty.ratio": "0.1",
        "max.message.bytes": str(KEPT_BATCH_BYTES_MAX),
        TIMESTAMP_TYPE: LOG_APPEND_TIME,
    }
