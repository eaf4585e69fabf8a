"""Compare, add and remove the ACLs of a cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.errors import KafkaError, SecurityDisabledError

from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.cluster_errors import ClusterError
from dpstream.pipeline.privileges.bindings import Binding
from dpstream.pipeline.privileges.table import (
    Operation,
    Resource,
    ResourceKind,
    group_prefix,
)
from dpstream.topics.names import JOBS_TOPIC, LEDGER_TOPIC

_EVERYTHING = "*"
_SHARED = (JOBS_TOPIC, LEDGER_TOPIC)


@dataclass(frozen=True, slots=True)
class Comparison:
    """ACLs that a job's roles need; `beyond` are other ACLs of theirs that concern the job."""

    there: tuple[Binding, ...]
    missing: tuple[Binding, ...]
    beyond: tuple[Binding, ...]


def compare(job: Job, wanted: Iterable[Binding], present: Collection[Binding]) -> Comparison:
    ordered = tuple(wanted)
    known = frozenset(ordered)
    return Comparison(
        tuple(each for each in ordered if each in present),
        tuple(each for each in ordered if each not in present),
        tuple(
            sorted(each for each in present if each not in known and concerns(each.resource, job))
        ),
    )


def concerns(resource: Resource, job: Job) -> bool:
    own = group_prefix(job)
    if resource.name in (_EVERYTHING, *_SHARED):
        return True
    if resource.prefixed and any(each.startswith(resource.name) for each in (own, *_SHARED)):
        return True
    return resource.name.startswith(own)


def removable(
    job: Job, wanted: Iterable[Binding], present: Collection[Binding]
) -> tuple[Binding, ...]:
    """Return the present ACLs that are wanted for this job and needed by no other job."""
    elsewhere = {each.principal for each in present if not concerns(each.resource, job)}
    return tuple(
        each
        for each in wanted
        if each in present and not (each.resource.name in _SHARED and each.principal in elsewhere)
    )


_ANY_HOST = "*"


class NoAuthorizerError(ClusterError):
    pass


class ClusterAcls:
    """Read and change the ACLs of a cluster.

    Every method raises NoAuthorizerError if the cluster has no authorizer, AccessError if access is
    denied, and ClusterError if the cluster is unreachable or rejects an ACL.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def present(self, principals: Collection[str]) -> set[Binding]:
        """Return the principals' ACLs that allow an operation of dpstream from any host."""
        found: set[Binding] = set()
        for principal in principals:
            wanted = ACLFilter(
                principal,
                _ANY_HOST,
                ACLOperation.ANY,
                ACLPermissionType.ALLOW,
                ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY),
            )
            with self._asking("view"):
                acls, _ = self._cluster.admin.describe_acls(wanted)
            found |= {each for each in map(_binding, acls) if each is not None}
        return found

    def add(self, bindings: Iterable[Binding]) -> None:
        wanted = [_acl(each) for each in bindings]
        if not wanted:
            return
        with self._asking("add"):
            for failure in self._cluster.admin.create_acls(wanted)["failed"]:
                raise failure

    def remove(self, bindings: Iterable[Binding]) -> None:
        # An ACL is a filter that matches only itself.
        wanted = [_acl(each) for each in bindings]
        if not wanted:
            return
        with self._asking("remove"):
            for _, _, failure in self._cluster.admin.delete_acls(wanted):
                if failure.errno:
                    raise failure

    @contextmanager
    def _asking(self, action: str) -> Iterator[None]:
        where = self._cluster.servers
        try:
            with self._cluster.asking(f"{action} ACLs of", where):
                yield
        except SecurityDisabledError as error:
            raise NoAuthorizerError(
                f"the cluster at {where} has no authorizer: it allows every operation and "
                "stores no ACLs. First set authorizer.class.name on its brokers and controllers"
            ) from error
        except KafkaError as error:
            raise ClusterError(
                f"cannot {action} ACLs on the cluster at {where}: {error}"
            ) from error


def _acl(binding: Binding) -> ACL:
    resource = binding.resource
    return ACL(
        binding.principal,
        _ANY_HOST,
        ACLOperation[binding.operation.name],
        ACLPermissionType.ALLOW,
        ResourcePattern(ResourceType[resource.kind.name], resource.name, _pattern(resource)),
    )


def _pattern(resource: Resource) -> ACLResourcePatternType:
    return ACLResourcePatternType.PREFIXED if resource.prefixed else ACLResourcePatternType.LITERAL


def _binding(acl: ACL) -> Binding | None:
    pattern = acl.resource_pattern
    try:
        return Binding(
            acl.principal,
            Resource(
                ResourceKind[pattern.resource_type.name],
                pattern.resource_name,
                pattern.pattern_type == ACLResourcePatternType.PREFIXED,
            ),
            Operation[acl.operation.name],
        )
    except KeyError:
        return None
