"""The ACLs of a cluster: which there are, adding and removing them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from types import TracebackType
from typing import Any, Self

from kafka import KafkaAdminClient
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

from pipeline.kafka.cluster import CLIENT_ID
from pipeline.kafka.connection import Connection
from pipeline.kafka.errors import ClusterError, refused_kind
from pipeline.privileges.bindings import Binding
from pipeline.privileges.table import Kind, Operation, Resource

_ANY_HOST = "*"
_BOOTSTRAP_MILLISECONDS = 10_000


class NoAuthorizerError(ClusterError):
    """The cluster has no authorizer: everybody may do everything, whatever ACLs say."""


class ClusterAcls:
    """Looks at ACLs of a cluster and changes them.

    Raises:
        NoAuthorizerError: the cluster has none.
        ClusterError: it cannot be reached, or does not let us.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        try:
            self._admin = KafkaAdminClient(
                **{
                    "client_id": CLIENT_ID,
                    "bootstrap_timeout_ms": _BOOTSTRAP_MILLISECONDS,
                    **connection.kafka_python(),
                }
            )
        except KafkaError as error:
            raise self._problem(error, "look at ACLs") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._admin.close()

    def present(self, principals: Collection[str]) -> set[Binding]:
        """What is allowed to some principals, of what this software knows of.

        ACLs that are for some hosts alone are none of ours; nor are those that deny.
        """
        found: set[Binding] = set()
        for principal in principals:
            wanted = ACLFilter(
                principal,
                _ANY_HOST,
                ACLOperation.ANY,
                ACLPermissionType.ALLOW,
                ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY),
            )
            try:
                acls, _ = self._admin.describe_acls(wanted)
            except KafkaError as error:
                raise self._problem(error, "look at ACLs") from error
            found |= {each for each in map(_binding, acls) if each is not None}
        return found

    def add(self, bindings: Iterable[Binding]) -> None:
        """Add ACLs; one that is there already stays as it is."""
        wanted = [_acl(each) for each in bindings]
        if not wanted:
            return
        try:
            failed = self._admin.create_acls(wanted)["failed"]
        except KafkaError as error:
            raise self._problem(error, "add ACLs") from error
        for failure in failed:
            raise self._problem(failure, "add ACLs")

    def remove(self, bindings: Iterable[Binding]) -> None:
        """Remove ACLs; one that is not there is no error."""
        wanted = [_filter(each) for each in bindings]
        if not wanted:
            return
        try:
            answers = self._admin.delete_acls(wanted)
        except KafkaError as error:
            raise self._problem(error, "remove ACLs") from error
        for _, _, failure in answers:
            if failure is not None and failure.errno:
                raise self._problem(failure, "remove ACLs")

    def _problem(self, error: Any, doing: str) -> ClusterError:
        where = ", ".join(self._connection.bootstrap_servers)
        if getattr(error, "errno", None) == SecurityDisabledError.errno:
            return NoAuthorizerError(
                f"the cluster at {where} has no authorizer: everybody may do everything on it, and "
                "it keeps no ACLs; set authorizer.class.name on its brokers and controllers first"
            )
        if refused_kind(error) is not None:
            who = self._connection.principal or "this client"
            return ClusterError(
                f"{who} may not {doing} on {where}, which takes ALTER (to look, DESCRIBE) on the "
                "cluster: no role of a job has that; give the --kafka-config of whoever "
                "administers the cluster"
            )
        return ClusterError(f"cannot {doing} on {where}: {error}")


def _acl(binding: Binding) -> ACL:
    resource = binding.resource
    return ACL(
        binding.principal,
        _ANY_HOST,
        ACLOperation[binding.operation.name],
        ACLPermissionType.ALLOW,
        ResourcePattern(ResourceType[resource.kind.name], resource.name, _pattern(resource)),
    )


def _filter(binding: Binding) -> ACLFilter:
    resource = binding.resource
    return ACLFilter(
        binding.principal,
        _ANY_HOST,
        ACLOperation[binding.operation.name],
        ACLPermissionType.ALLOW,
        ResourcePatternFilter(ResourceType[resource.kind.name], resource.name, _pattern(resource)),
    )


def _pattern(resource: Resource) -> ACLResourcePatternType:
    return ACLResourcePatternType.PREFIXED if resource.prefixed else ACLResourcePatternType.LITERAL


def _binding(acl: ACL) -> Binding | None:
    """What an ACL allows; None if it is of a kind that no role has."""
    pattern = acl.resource_pattern
    try:
        return Binding(
            acl.principal,
            Resource(
                Kind[pattern.resource_type.name],
                pattern.resource_name,
                pattern.pattern_type == ACLResourcePatternType.PREFIXED,
            ),
            Operation[acl.operation.name],
        )
    except KeyError:
        return None
