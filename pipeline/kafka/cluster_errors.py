"""Errors from a cluster: missing topics and missing permissions."""

from __future__ import annotations

from dpstream.pipeline.errors import DpstreamError
from dpstream.topics.names import JOBS_TOPIC, LEDGER_TOPIC, Role

# Kafka's error codes for denied access, each with the kind of resource.
_REJECTED = {29: "topic", 30: "group", 31: "cluster"}
# A record exceeds the size limit of its topic or broker.
_TOO_LARGE = frozenset({10, 18})
# The cluster rejects the login.
_UNKNOWN_LOGIN = 58
ANY_ROLE = "ROLE"
"""Placeholder for an unknown role in a suggested command."""


class ClusterError(DpstreamError):
    pass


class BrokerAwayError(ClusterError):
    pass


class NoTopicError(ClusterError):
    pass


class AccessError(ClusterError):
    """Kafka denies a request from this login.

    `principal` is Kafka's name for the login; None for a certificate, whose name only the cluster
    knows. `action` is a verb: read, write, see, create, change or delete. `kind` is the kind of
    resource (topic, group or cluster), and `name` is its name.
    """

    def __init__(self, principal: str | None, action: str, kind: str, name: str) -> None:
        self.principal, self.action, self.kind, self.name = principal, action, kind, name
        super().__init__(self.asking_for(ANY_ROLE))

    def asking_for(self, role: str, job: str | None = None) -> str:
        return access_problem(self.principal, self.action, self.kind, self.name, role, job)


class RecordTooLargeError(ClusterError):
    def __init__(self, topic: str, size: int) -> None:
        job = topic.partition(".")[0]
        super().__init__(
            f"topic {topic} rejects a record of {size:,} bytes: max.message.bytes of the topic, "
            "or message.max.bytes of the brokers, is lower than the job needs. Restore the value "
            f"(see 'dpstream status {job}') and run the same command again; no record is lost"
        )


def access_problem(
    principal: str | None,
    action: str,
    kind: str,
    name: str,
    role: str = ANY_ROLE,
    job: str | None = None,
) -> str:
    """Return the message for a denied request, with the command that allows the request.

    `principal`, `action`, `kind` and `name` are as in `AccessError`. If `name` lists several names,
    separated by commas, the first one determines the job. `job` contains the arguments of
    'dpstream acl' that select the job; by default, they are derived from `name`.

    >>> access_problem("User:ann", "read", "topic", "small.reports", "shuffle")
    "Kafka does not allow User:ann to read topic small.reports. \
To allow it, as cluster administrator: 'dpstream acl small --role shuffle \
--principal shuffle=User:ann --apply'"
    """
    who = principal or "this client"
    sentence = f"Kafka does not allow {who} to {action} {kind} {name}".rstrip()
    first, *_ = name.split(", ")
    own, _, rest = first.partition(".")
    if first in (JOBS_TOPIC, LEDGER_TOPIC):
        own = "JOB"
    elif not (kind == "group" or rest in frozenset(Role)):
        if kind == "cluster":
            return (
                f"{sentence}: no role of a job has that permission. Use the --kafka-config "
                "of the cluster administrator"
            )
        return f"{sentence}: request that permission from the cluster administrator"
    named = principal or "User:NAME"
    return (
        f"{sentence}. To allow it, as cluster administrator: 'dpstream acl {job or own} --role "
        f"{role} --principal {role}={named} --apply'"
    )


def rejected_kind(error: BaseException) -> str | None:
    code = getattr(error, "errno", None)
    return _REJECTED.get(code) if isinstance(code, int) else None


def is_too_large(error: BaseException | None) -> bool:
    return getattr(error, "errno", None) in _TOO_LARGE


def may_not_write(error: BaseException) -> bool:
    """Return whether a producer's error denies write access.

    To an idempotent producer without write access to any topic, Kafka denies a producer ID.
    kafka-python reports this only as text.
    """
    return rejected_kind(error) is not None or "ClusterAuthorizationFailed" in str(error)


def is_unknown_login(error: BaseException) -> bool:
    return getattr(error, "errno", None) == _UNKNOWN_LOGIN


class WorkerError(DpstreamError):
    pass


class PositionDeletedError(WorkerError):
    def __init__(
        self, topic: str, partition: int, wanted: int, first: int, *, hole: bool = False
    ) -> None:
        why = (
            f"continues at {first}): its cleanup.policy was changed, see 'dpstream status'"
            if hole
            else f"starts at {first}): the outage was longer than the retention"
        )
        super().__init__(
            f"{topic}, partition {partition}: offsets {wanted} to {first - 1} are needed but "
            f"were deleted (the log {why}"
        )
        self.partition = partition

    def naming(self, unfinished: str) -> WorkerError:
        return WorkerError(
            f"{self}; {unfinished} cannot be released. To start over: 'dpstream deploy JOBFILE "
            "--replace'"
        )


class AbandonedError(Exception):
    """A stage's partition assignment has ended, so its current work is aborted."""
