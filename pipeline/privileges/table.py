"""The Kafka privileges that each role in a job needs, and no other privileges.

* Privileges depend on the job alone (a job file or a deployed job). Names of topics and consumer
  groups start with the job's name, so the privileges remain valid for its next deployment.
* An operation that Kafka derives from a listed operation is itself not listed (READ, WRITE, DELETE
  and ALTER imply DESCRIBE; ALTER_CONFIGS implies DESCRIBE_CONFIGS).
* Since Kafka 2.8, idempotent producers need no privilege beyond write access to a topic.
  Transactions are not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.stages.topic_uses import topic_uses
from dpstream.topics.names import JOBS_TOPIC, LEDGER_TOPIC, Role, topic_name


class ResourceKind(StrEnum):
    TOPIC = "topic"
    GROUP = "group"


class Operation(StrEnum):
    READ = "READ"
    WRITE = "WRITE"
    CREATE = "CREATE"
    DELETE = "DELETE"
    DESCRIBE = "DESCRIBE"
    DESCRIBE_CONFIGS = "DESCRIBE_CONFIGS"
    ALTER_CONFIGS = "ALTER_CONFIGS"


IMPLIED: Mapping[Operation, frozenset[Operation]] = {
    Operation.READ: frozenset({Operation.DESCRIBE}),
    Operation.WRITE: frozenset({Operation.DESCRIBE}),
    Operation.DELETE: frozenset({Operation.DESCRIBE}),
    Operation.ALTER_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS}),
}
"""Operations that Kafka implicitly allows along with each operation."""


@dataclass(frozen=True, slots=True, order=True)
class Resource:
    """A topic or group; if `prefixed`, all topics or groups whose names start with `name`."""

    kind: ResourceKind
    name: str
    prefixed: bool = False


@dataclass(frozen=True, slots=True)
class Privilege:
    """An operation that a role needs on a resource; `why` is the reason."""

    resource: Resource
    operation: Operation
    why: str


PRODUCER, COLLECTOR, PAGE, ANALYST, RECORDER, OPERATOR = (
    *("producer", "collector", "page"),
    *("analyst", "recorder", "operator"),
)

_JOBS = Resource(ResourceKind.TOPIC, JOBS_TOPIC)
_LEDGER = Resource(ResourceKind.TOPIC, LEDGER_TOPIC)


def roles_of(job: Job) -> tuple[str, ...]:
    if _is_replay(job):
        return (*_stages(job), PAGE, ANALYST, RECORDER, OPERATOR)
    reporting = PRODUCER if job.devices is None else COLLECTOR
    return (reporting, *_stages(job), PAGE, ANALYST, RECORDER, OPERATOR)


def privileges_of(job: Job, role: str) -> tuple[Privilege, ...]:
    if role not in roles_of(job):
        raise KeyError(role)
    if role in _stages(job):
        return tuple(_of_stage(job, role))
    named = {
        PRODUCER: _of_producer,
        COLLECTOR: _of_collector,
        PAGE: _of_page,
        ANALYST: _of_analyst,
        RECORDER: _of_recorder,
        OPERATOR: _of_operator,
    }
    return tuple(named[role](job))


def may(job: Job, role: str) -> frozenset[tuple[Resource, Operation]]:
    """Return all operations that a role may perform, including those that Kafka implies."""
    listed = {(each.resource, each.operation) for each in privileges_of(job, role)}
    implied = {
        (resource, other)
        for resource, operation in listed
        for other in IMPLIED.get(operation, frozenset())
    }
    return frozenset(listed | implied)


def _stages(job: Job) -> tuple[str, ...]:
    skipped = job.route.shuffled if _is_replay(job) else ()
    return tuple(stage for stage, role in job.route.stages.items() if role not in skipped)


def _is_replay(job: Job) -> bool:
    return isinstance(job, DeployedJob) and job.replay_of is not None


class _Grants:
    def __init__(self, job: Job) -> None:
        self._job = job
        self.roles = tuple(role for role in Role if role in job.topic_settings())

    def on(self, operation: Operation, why: str, *roles: Role) -> Iterator[Privilege]:
        for role in self.roles:
            if role in roles:
                resource = Resource(ResourceKind.TOPIC, topic_name(self._job.name, role))
                yield Privilege(resource, operation, why)


def _reads_jobs(why: str = "finds the deployed job") -> Privilege:
    return Privilege(_JOBS, Operation.READ, why)


def group_prefix(job: Job, stage: str = "") -> str:
    return f"{job.name}.{stage}." if stage else f"{job.name}."


def _of_stage(job: Job, stage: str) -> Iterator[Privilege]:
    grants, uses = _Grants(job), topic_uses(job, stage)
    yield _reads_jobs()
    group = Resource(ResourceKind.GROUP, group_prefix(job, stage), prefixed=True)
    yield Privilege(group, Operation.READ, "shares partitions and commits offsets")
    yield from grants.on(Operation.READ, "reads its input", *uses.reads)
    why = "checks that deleted reports were processed"
    yield from grants.on(Operation.READ, why, *(uses.checks - uses.reads))
    yield from grants.on(Operation.WRITE, "writes its output", *uses.writes)
    if uses.deletes is not None:
        yield from grants.on(Operation.DELETE, "deletes processed reports", uses.deletes)
    yield from grants.on(
        Operation.DESCRIBE_CONFIGS, "warns if a topic uses another clock", *uses.topics
    )


def _of_producer(job: Job) -> Iterator[Privilege]:
    grants = _Grants(job)
    yield _reads_jobs()
    yield from grants.on(Operation.WRITE, "sends reports", *job.route.reports)
    yield from grants.on(Operation.WRITE, "registers and deregisters", Role.PRODUCERS)
    yield from grants.on(Operation.READ, "checks that its registration is valid", Role.PRODUCERS)
    yield from grants.on(Operation.READ, "checks that its state is not an old copy", Role.MANIFESTS)


def _of_collector(job: Job) -> Iterator[Privilege]:
    grants = _Grants(job)
    yield _reads_jobs("finds the jobs whose reports it receives")
    yield from grants.on(Operation.WRITE, "writes reports and watermarks", *job.route.reports)
    yield from grants.on(Operation.WRITE, "writes enrollments", Role.DEVICES)
    yield from grants.on(Operation.WRITE, "writes heartbeats", Role.STATUS)


_WATCHED = (Role.MANIFESTS, Role.PARTIALS_A, Role.PARTIALS_B, Role.PARTIALS, Role.ESTIMATES)


def _of_page(job: Job) -> Iterator[Privilege]:
    grants = _Grants(job)
    read = (*_WATCHED, Role.PRODUCERS, Role.STATUS)
    yield _reads_jobs("finds the jobs it shows")
    yield Privilege(_LEDGER, Operation.READ, "shows privacy charges")
    yield from grants.on(Operation.READ, "shows estimates and the progress of stages", *read)
    others = [role for role in grants.roles if role not in read]
    yield from grants.on(Operation.DESCRIBE, "shows the lag of stages", *others)
    yield from grants.on(Operation.DESCRIBE_CONFIGS, "warns if a topic uses another clock", *Role)
    group = Resource(ResourceKind.GROUP, group_prefix(job), prefixed=True)
    yield Privilege(group, Operation.DESCRIBE, "shows the lag of stages")


def _of_analyst(job: Job) -> Iterator[Privilege]:
    grants = _Grants(job)
    yield _reads_jobs("finds the guarantee and the domain")
    published = (Role.ESTIMATES, Role.RESULTS)
    yield from grants.on(Operation.READ, "reads published estimates", *published)


def _of_recorder(job: Job) -> Iterator[Privilege]:
    grants = _Grants(job)
    yield _reads_jobs("finds the job it records")
    kept = (Role.MANIFESTS, Role.SHUFFLED, Role.PARTIALS, Role.ESTIMATES)
    yield from grants.on(Operation.READ, "record and replay read released windows", *kept)


def _of_operator(job: Job) -> Iterator[Privilege]:
    grants = _Grants(job)
    for operation, why in (
        (Operation.CREATE, "creates the jobs topic, once"),
        (Operation.READ, "reads deployments and charges"),
        (Operation.WRITE, "deploys, charges, pauses and undeploys"),
        (Operation.ALTER_CONFIGS, "sets the topic to the broker's clock"),
    ):
        yield Privilege(_JOBS, operation, why)
    # No operation that could revoke ledger entries: neither DELETE nor ALTER_CONFIGS.
    for operation, why in (
        (Operation.CREATE, "creates the ledger, once"),
        (Operation.READ, "reads privacy charges"),
        (Operation.WRITE, "charges users"),
        (Operation.DESCRIBE_CONFIGS, "checks that no setting rewrites the ledger"),
    ):
        yield Privilege(_LEDGER, operation, why)
    yield from grants.on(Operation.CREATE, "deploy creates the topics", *Role)
    yield from grants.on(Operation.DELETE, "undeploy --delete-topics", *Role)
    yield from grants.on(Operation.ALTER_CONFIGS, "deploy changes retention", *Role)
    read = (*_WATCHED, Role.PRODUCERS, Role.STATUS)
    yield from grants.on(Operation.READ, "status, drain, producers, ledger", *read)
    if _is_replay(job):
        windows = (Role.MANIFESTS, Role.SHUFFLED, Role.PARTIALS)
        yield from grants.on(Operation.WRITE, "replay writes the replayed windows", *windows)
        why = "replay continues after the windows it has written"
        yield from grants.on(Operation.READ, why, Role.SHUFFLED)
    else:
        yield from _of_operator_with_reports(job)
    yield from grants.on(Operation.READ, "dead-letters", Role.DEAD_LETTERS)
    yield from grants.on(Operation.WRITE, "dead-letters --redrive, --discard", Role.DEAD_LETTERS)
    group = Resource(ResourceKind.GROUP, group_prefix(job), prefixed=True)
    yield Privilege(group, Operation.DESCRIBE, "status and drain read the progress of stages")


def _of_operator_with_reports(job: Job) -> Iterator[Privilege]:
    grants = _Grants(job)
    if job.shuffle.instances > 1:
        why = "dead-letters --redrive checks that each shuffler received its part"
        yield from grants.on(Operation.READ, why, *job.route.reports)
    elif job.epochs.renew:
        yield from grants.on(Operation.READ, "deploy finds started horizons", Role.REPORTS)
    yield from grants.on(Operation.WRITE, "producers --retire, drain", Role.PRODUCERS)
    yield from grants.on(Operation.WRITE, "dead-letters --redrive", *job.route.reports)
