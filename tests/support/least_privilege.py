"""Job with its users, on a broker that grants only the ACLs of ``dpstream acl``."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.privileges.bindings import bindings_of, principals_of
from dpstream.pipeline.privileges.cluster_acls import ClusterAcls
from dpstream.pipeline.privileges.table import (
    ANALYST,
    OPERATOR,
    PAGE,
    PRODUCER,
    RECORDER,
    Operation,
    Resource,
    ResourceKind,
    group_prefix,
    may,
    privileges_of,
    roles_of,
)
from dpstream.topics.names import JOBS_TOPIC, LEDGER_TOPIC, Role, TopicSettings, topic_name
from tests.support.attempts import (
    CLUSTER_OPERATIONS,
    GROUP_OPERATIONS,
    TOPIC_OPERATIONS,
    Attempts,
)
from tests.support.processes import start_command
from tests.support.secured_kafka import AclRequest, SecuredKafka

TIMEOUT = 300.0
"""Seconds; far longer than any expected wait."""
_PLAIN = {"cleanup.policy": "delete"}


@dataclass(frozen=True)
class SecuredJob:
    """Broker of a job, with its users by role."""

    kafka: SecuredKafka
    job: Job
    users: Mapping[str, Path]

    def cluster(self, role: str) -> Cluster:
        config = self.kafka.admin if role == "admin" else self.users[role]
        return Cluster(self.kafka.connection(config))

    def worker(self, stage: str, *more: object) -> AbstractContextManager[subprocess.Popen[str]]:
        own = ("--name", stage, "--kafka-config", self.users[stage], *more)
        return running("run", stage, self.job.name, *own)

    @contextmanager
    def workers(self, keys: Mapping[str, Path] | None = None) -> Iterator[None]:
        with ExitStack() as stack:
            for stage in self.job.route.stages:
                if stage in self.users:
                    own = ("--keys", keys[stage]) if keys and stage in keys else ()
                    stack.enter_context(self.worker(stage, *own))
            yield

    def written(self, role: Role, records: int, reader: str = "operator") -> None:
        topic = topic_name(self.job.name, role)
        with self.cluster(reader) as cluster:
            wait_for(lambda: cluster.end_offsets(topic)[0] >= records)

    def as_role(self, role: str, *line: object) -> list[object]:
        """Return a command line for the user of a role or for the administrator."""
        return [*line, "--kafka-config", self.kafka.admin if role == "admin" else self.users[role]]

    def principal(self, role: str) -> str:
        principal = self.kafka.connection(self.users[role]).principal
        assert principal is not None
        return principal

    def denied(self, since: int = 0) -> set[AclRequest]:
        """Return the requests denied to users of this job, since an offset of the log.

        Two documented requests are omitted: producers try to read reports to detect an old copy of
        their state, and the page tries to read dead letters to count them.
        """
        _, denied = self.kafka.decisions(since)
        own = {self.principal(role) for role in self.users}
        requested = {
            AclRequest(
                self.principal(role),
                Operation.READ.value,
                ResourceKind.TOPIC.value,
                topic_name(self.job.name, topic),
            )
            for role, topic in ((PRODUCER, Role.REPORTS), (PAGE, Role.DEAD_LETTERS))
            if role in self.users
        }
        return {each for each in denied - requested if each.principal in own}

    @contextmanager
    def nothing_denied(self) -> Iterator[None]:
        """Check that no request of this job's users is denied within the context."""
        since = self.kafka.written()
        yield
        denied = self.denied(since)
        assert not denied, sorted(denied)

    def unused(self) -> set[tuple[str, str, str]]:
        """Return the granted permissions that were never used: role, operation, resource name."""
        allowed, _ = self.kafka.decisions()
        return {
            (role, each.operation.value, each.resource.name.removeprefix(f"{self.job.name}."))
            for role in self.users
            for each in privileges_of(self.job, role)
            if not _was_used(allowed, self.principal(role), each.resource, each.operation)
        }

    def let(
        self,
        others: Collection[str] = (),
        more: Mapping[str, Collection[tuple[Resource, Operation]]] = MappingProxyType({}),
    ) -> tuple[list[tuple[str, str, str]], int]:
        """Try all operations not in the permissions table, on this job and on other jobs' topics.

        Returns role, operation and resource name of allowed attempts, and the number of attempts.
        """
        job = self.job
        own = [settings.name for settings in job.topic_settings().values()]
        with self.cluster("admin") as admin:
            missing = set(others) - admin.topics()
            admin.create_topics(TopicSettings(name, 1, 1, _PLAIN) for name in sorted(missing))
            # Write records to be read.
            for topic in (*others, *own):
                admin.append(topic, b"x", key=b"x")
        topics = [JOBS_TOPIC, LEDGER_TOPIC, *own, *others]
        groups = [f"{group_prefix(job, stage)}x" for stage in job.route.stages]
        groups += [f"{job.name}-2.shuffle.x", f"{job.name}.x", "x"]
        let: list[tuple[str, str, str]] = []
        tried = 0
        for role in self.users:
            allowed = may(job, role) | set(more.get(role, ()))
            with Attempts(self.kafka.connection(self.users[role])) as attempts:
                for topic in topics:
                    for operation in TOPIC_OPERATIONS:
                        if (Resource(ResourceKind.TOPIC, topic), operation) not in allowed:
                            tried += 1
                            if not attempts.topic(operation, topic):
                                let.append((role, operation, topic))
                for group in groups:
                    for operation in GROUP_OPERATIONS:
                        if not _may_on_group(allowed, operation, group):
                            tried += 1
                            if not attempts.group(operation, group, own[0]):
                                let.append((role, operation, group))
                for operation in CLUSTER_OPERATIONS:
                    tried += 1
                    if not attempts.cluster(operation):
                        let.append((role, operation, "cluster"))
                tried += 1
                if not attempts.transaction(f"{job.name}-{role}"):
                    let.append((role, "WRITE", "transactional id"))
        return let, tried


def secured_job(kafka: SecuredKafka, job: Job) -> SecuredJob:
    roles = roles_of(job)
    users = kafka.users(*(f"{job.name}-{role}" for role in roles))
    made = SecuredJob(kafka, job, {role: users[f"{job.name}-{role}"] for role in roles})
    with made.cluster("admin") as admin:
        ClusterAcls(admin).add(bindings_of(job, principals_of(job)))
    return made


_ADDING = ("aggregate", "aggregate-a", "aggregate-b", "shuffle-2", "shuffle-3")
COMPARED = {(role, name) for role in _ADDING for name in (Role.MANIFESTS, Role.ESTIMATES)} | {
    (role, Role.ESTIMATES) for role in ("shuffle", "instance-2", "instance-3", "instance-4")
}
"""Topics read by workers that start after windows were finalized."""


def is_for_another_day(role: str, operation: str, name: str) -> bool:
    """Return whether a permission is for an event that does not occur in every run."""
    return (
        # Dead letters, which do not occur.
        (name == Role.DEAD_LETTERS and (role == OPERATOR or _writes(role, operation)))
        # Created by the first deployment on a cluster.
        or (operation == "CREATE" and name in (JOBS_TOPIC, LEDGER_TOPIC))
        # Read by a worker that continues the output of another one.
        or (role, operation, name) == ("publish", "READ", Role.RESULTS)
        or (operation == "READ" and (role, name) in COMPARED)
        # Workers poll settings every five seconds, and many runs are shorter.
        or operation == "DESCRIBE_CONFIGS"
        # Used by undeploy, drain, retirement of a producer, and requeued records.
        or (role == OPERATOR and operation == "DELETE")
        or (role == OPERATOR and operation == "WRITE" and name == Role.PRODUCERS)
        or (role == OPERATOR and operation == "WRITE" and name.startswith(Role.REPORTS))
        # Used only for topics with settings that deploy has to change.
        or (role == OPERATOR and operation == "ALTER_CONFIGS")
    )


def _writes(role: str, operation: str) -> bool:
    return operation == "WRITE" and role not in (PAGE, ANALYST, RECORDER)


@contextmanager
def running(*line: object) -> Iterator[subprocess.Popen[str]]:
    process = start_command(*line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    failed = True
    try:
        yield process
        failed = False
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=TIMEOUT)
        if failed:
            print(*line, errors[-2_000:], sep="\n")


def wait_for(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _was_used(
    allowed: Collection[AclRequest], principal: str, resource: Resource, operation: Operation
) -> bool:
    return any(
        (each.principal, each.operation, each.kind) == (principal, operation, resource.kind)
        and (
            each.name.startswith(resource.name) if resource.prefixed else each.name == resource.name
        )
        for each in allowed
    )


def _may_on_group(
    allowed: frozenset[tuple[Resource, Operation]], operation: str, group: str
) -> bool:
    return any(
        resource.kind is ResourceKind.GROUP
        and held == operation
        and group.startswith(resource.name)
        for resource, held in allowed
    )
