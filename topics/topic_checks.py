"""Check whether an existing topic can be used in place of one that a job would create.

Administrators, brokers that create topics on demand, or earlier jobs can have created such a topic.
Settings that would lose or reject records are rejected; replicas and retention are up to operators.
Deploying sets the clock (timestamp type) of topics; for a running job, it is only checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dpstream.topics.names import FOREVER, LOG_APPEND_TIME, TIMESTAMP_TYPE, TopicSettings

_PLAIN = {"uncompressed", "producer"}


def reject_topic(expected: TopicSettings, found: TopicSettings) -> str | None:
    """Return why a topic cannot be used as it is and how to fix it, or None if it can be used.

    >>> expected = TopicSettings("a.reports", 4, None, {"cleanup.policy": "delete"})
    >>> reject_topic(expected, TopicSettings("a.reports", 4, 1, {"cleanup.policy": "compact"}))
    'topic a.reports has cleanup.policy compact; expected delete. Set it, or delete the topic'
    """
    if found.partitions != expected.partitions:
        return (
            f"topic {expected.name} exists with {found.partitions} partitions; the job requires "
            f"{expected.partitions}. Undeploy the job with --delete-topics, or change the job file"
        )
    for key, value in expected.configs.items():
        has = found.configs.get(key)
        if has is not None and not _serves(key, has, value):
            return (
                f"topic {expected.name} has {key} {has}; expected {value}. Set it, or delete the "
                "topic"
            )
    return None


SETTINGS = ("cleanup.policy", "retention.ms", "retention.bytes", "max.message.bytes")
"""Settings of a topic in use that, if changed, could make the topic lose or reject records."""


def changed_settings(expected: TopicSettings, found: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each setting with which a topic in use loses or rejects records.

    Settings that are missing in `found` are not checked.

    >>> expected = TopicSettings("a.reports", 4, None, {"retention.ms": "3600000"})
    >>> list(changed_settings(expected, {"retention.ms": "-1"}))
    []
    >>> (said,) = changed_settings(expected, {"retention.ms": "1000"})
    >>> said.partition(". ")[0]
    'topic a.reports has retention.ms 1000; expected 3600000 or more'
    """
    for key in SETTINGS:
        value, has = expected.configs.get(key), found.get(key)
        if value is None or has is None or _keeps(key, has, value):
            continue
        more = "" if key == "cleanup.policy" or value == str(FOREVER) else " or more"
        does = "rejects" if key == "max.message.bytes" else "deletes"
        yield (
            f"topic {expected.name} has {key} {has}; expected {value}{more}. Kafka {does} required "
            f"records. Set it with kafka-configs.sh --alter --topic {expected.name} --add-config "
            f"{key}={value}"
        )


def wrong_clock(configs: Mapping[str, str]) -> str | None:
    """Return a topic's clock if it is not the broker's clock, LogAppendTime; otherwise None.

    A missing setting is not a problem.

    >>> wrong_clock({"message.timestamp.type": "CreateTime"})
    'CreateTime'
    """
    has = configs.get(TIMESTAMP_TYPE)
    return None if has in (None, LOG_APPEND_TIME) else has


def clock_problem(job: str, topics: Sequence[str]) -> str:
    return (
        f"{'topic' if len(topics) == 1 else 'topics'} {', '.join(topics)} of {job} "
        f"{'uses' if len(topics) == 1 else 'use'} the clocks of the clients ({TIMESTAMP_TYPE} "
        f"CreateTime), so clients decide what retention deletes. To set {LOG_APPEND_TIME}: "
        "'dpstream deploy JOBFILE'"
    )


def _keeps(key: str, has: str, value: str) -> bool:
    if key == "cleanup.policy":
        return has == value
    if key == "max.message.bytes":
        return int(has) >= int(value)
    # -1 is unlimited.
    return int(has) == FOREVER or (int(value) != FOREVER and int(has) >= int(value))


def _serves(key: str, has: str, value: str) -> bool:
    match key:
        case "cleanup.policy":
            return has == value
        case "compression.type":
            return has in _PLAIN
        case "max.message.bytes":
            return int(has) >= int(value)
        case _:
            return True
