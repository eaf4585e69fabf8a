"""Whether a topic that exists can take the place of one that a job would create.

Others may have made it: an administrator, a broker that creates topics when they are asked for, an
earlier job. What would lose records, refuse them or tell when they were sent is refused; replicas
and retention are the operators' business.
"""

from __future__ import annotations

from topics.names import TopicSettings

_PLAIN = {"uncompressed", "producer"}


def refuse_topic(wanted: TopicSettings, found: TopicSettings) -> str | None:
    """Why a topic cannot be used as it is, and what to do; None if it can.

    Args:
        wanted: as the job would create it.
        found: as it is, with all its settings; what is not among them is not checked.

    >>> wanted = TopicSettings("a.reports", 4, None, {"cleanup.policy": "delete"})
    >>> refuse_topic(wanted, TopicSettings("a.reports", 4, 1, {"cleanup.policy": "compact"}))
    'topic a.reports has cleanup.policy compact, needed is delete: set it so, or delete the topic'
    """
    if found.partitions != wanted.partitions:
        return (
            f"topic {wanted.name} exists with {found.partitions} partitions, the job wants "
            f"{wanted.partitions}: undeploy it with --delete-topics, or change the job file"
        )
    for key, value in wanted.configs.items():
        has = found.configs.get(key)
        if has is not None and not _serves(key, has, value):
            return (
                f"topic {wanted.name} has {key} {has}, needed is {value}: "
                "set it so, or delete the topic"
            )
    return None


def _serves(key: str, has: str, value: str) -> bool:
    match key:
        case "cleanup.policy" | "message.timestamp.type":
            return has == value
        case "compression.type":
            return has in _PLAIN
        case "max.message.bytes":
            return int(has) >= int(value)
        case _:
            return True
