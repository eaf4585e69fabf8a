"""What a cluster refuses: topics that are not there, and rights that a login has not.

Kafka's clients come in two families, kafka-python and aiokafka, whose errors share numbers: those
are what is looked at here.
"""

from __future__ import annotations

from dpstream.pipeline.errors import DpstreamError
from dpstream.topics.names import JOBS_TOPIC, LEDGER_TOPIC, Role

# Kafka's numbers of refusals, by the kind of what they are about.
_REFUSED = {29: "topic", 30: "group", 31: "cluster"}
# Of a record that a topic or a broker is set up to refuse for its size.
_TOO_LARGE = frozenset({10, 18})
# Of a login that the cluster does not know.
_UNKNOWN_LOGIN = 58
ANY_ROLE = "ROLE"
"""Stands for a role in what is to be typed, where nobody knows which one it is."""


class ClusterError(DpstreamError):
    """The cluster cannot be reached or refuses; the message says what to do."""


class BrokerAwayError(ClusterError):
    """No broker answers."""


class NoTopicError(ClusterError):
    """There is no such topic."""


class AccessError(ClusterError):
    """Kafka does not allow this login what it takes.

    Attributes:
        principal: who asked, as Kafka calls it; None where only the cluster knows, by certificate.
        action: a verb: read, write, see, create, change, delete.
        kind: of what: topic, group or cluster.
        name: of it.
    """

    def __init__(self, principal: str | None, action: str, kind: str, name: str) -> None:
        self.principal, self.action, self.kind, self.name = principal, action, kind, name
        super().__init__(self.asking_for(ANY_ROLE))

    def asking_for(self, role: str, job: str | None = None) -> str:
        """The message to somebody whose role is known; in which job, if it is not plain."""
        return access_problem(self.principal, self.action, self.kind, self.name, role, job)


class RecordTooLargeError(ClusterError):
    """A topic, or its brokers, refuse a record for its size."""

    def __init__(self, topic: str, size: int) -> None:
        job = topic.partition(".")[0]
        super().__init__(
            f"topic {topic} refuses a record of {size:,} bytes: its max.message.bytes, or "
            f"message.max.bytes of its brokers, was made smaller than the job needs. Set it back "
            f"(dpstream status {job} names the value of the topic), and run the same again: what "
            "was to be written is kept"
        )


def access_problem(
    principal: str | None,
    action: str,
    kind: str,
    name: str,
    role: str = ANY_ROLE,
    job: str | None = None,
) -> str:
    """What is not allowed to whom, and by which command it is.

    Args:
        principal: who asks, as of `AccessError`; and so `action`, `kind` and `name`.
        action: a verb.
        kind: of what.
        name: of it; of several, separated by commas, the first one tells the job.
        role: in the job.
        job: arguments of `dpstream acl` that say the job; default: it is told by the name.

    >>> access_problem("User:ann", "read", "topic", "small.reports", "shuffle")
    'Kafka does not allow User:ann to read topic small.reports: dpstream acl small --role shuffle \
--principal shuffle=User:ann --apply, run by whoever administers the cluster, allows it'
    """
    who = principal or "this client"
    said = f"Kafka does not allow {who} to {action} {kind} {name}".rstrip()
    first, *_ = name.split(", ")
    own, _, rest = first.partition(".")
    if first in (JOBS_TOPIC, LEDGER_TOPIC):
        own = "JOB"
    elif not (kind == "group" or rest in frozenset(Role)):
        if kind == "cluster":
            return (
                f"{said}: no role of a job has that right; give the --kafka-config of whoever "
                "administers the cluster"
            )
        return f"{said}: ask whoever administers the cluster for that right"
    named = principal or "User:NAME"
    return (
        f"{said}: dpstream acl {job or own} --role {role} --principal {role}={named} --apply, "
        "run by whoever administers the cluster, allows it"
    )


def refused_kind(error: BaseException) -> str | None:
    """What an error of Kafka's says that nobody allows: topic, group or cluster; None: no such."""
    code = getattr(error, "errno", None)
    return _REFUSED.get(code) if isinstance(code, int) else None


def is_too_large(error: BaseException | None) -> bool:
    """Whether an error says that a record is too large for its topic."""
    return getattr(error, "errno", None) in _TOO_LARGE


def may_not_write(error: BaseException) -> bool:
    """Whether an error of a producer says that nobody allows it to write.

    One that may write to no topic at all is refused the identity of an idempotent producer, which
    kafka-python tells in words alone.
    """
    return refused_kind(error) is not None or "ClusterAuthorizationFailed" in str(error)


def is_unknown_login(error: BaseException) -> bool:
    """Whether the cluster does not know the login, or its password is another one."""
    return getattr(error, "errno", None) == _UNKNOWN_LOGIN


class WorkerError(DpstreamError):
    """The worker cannot go on; the message says why and what to do."""


class PositionDeletedError(WorkerError):
    """Records that a stage still needs are no longer in their topic."""

    def __init__(
        self, topic: str, partition: int, wanted: int, first: int, *, hole: bool = False
    ) -> None:
        why = (
            f"goes on at {first}): its cleanup.policy was changed, see dpstream status"
            if hole
            else f"begins at {first}): the outage was longer than the retention"
        )
        super().__init__(
            f"{topic}, partition {partition}: offsets {wanted} to {first - 1} are needed and were "
            f"deleted (the log {why}"
        )
        self.partition = partition

    def naming(self, unfinished: str) -> WorkerError:
        """The same error, with the epochs that are lost by it."""
        return WorkerError(
            f"{self}; {unfinished} cannot be released: to begin anew, "
            "dpstream deploy JOBFILE --replace"
        )


class AbandonedError(Exception):
    """The assignment under which a stage was working has ended, and its work with it."""
