"""The ACLs of a cluster: which there are, adding and removing them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

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

from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.errors import ClusterError
from dpstream.pipeline.privileges.bindings import Binding
from dpstream.pipeline.privileges.table import Kind, Operation, Resource

_ANY_HOST = "*"


class NoAuthorizerError(ClusterError):
    """The cluster has no authorizer: everybody may do everything, whatever ACLs say."""


class ClusterAcls:
    """Looks at ACLs of a cluster and changes them.

    Every method raises:
        NoAuthorizerError: the cluster has none.
        AccessError: it does not let us.
        ClusterError: it cannot be reached, or takes an ACL for none.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

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
            with self._asking("look at"):
                acls, _ = self._cluster.admin.describe_acls(wanted)
            found |= {each for each in map(_binding, acls) if each is not None}
        return found

    def add(self, bindings: Iterable[Binding]) -> None:
        """Add ACLs; one that is there already stays as it is."""
        wanted = [_acl(each) for each in bindings]
        if not wanted:
            return
        with self._asking("add"):
            for failure in self._cluster.admin.create_acls(wanted)["failed"]:
                raise failure

    def remove(self, bindings: Iterable[Binding]) -> None:
        """Remove ACLs; one that is not there is no error."""
        # An ACL is a filter, which itself alone passes.
        wanted = [_acl(each) for each in bindings]
        if not wanted:
            return
        with self._asking("remove"):
            for _, _, failure in self._cluster.admin.delete_acls(wanted):
                if failure.errno:
                    raise failure

    @contextmanager
    def _asking(self, action: str) -> Iterator[None]:
        """Say of a refusal what it is about."""
        where = self._cluster.servers
        try:
            with self._cluster.asking(f"{action} ACLs of", where):
                yield
        except SecurityDisabledError as error:
            raise NoAuthorizerError(
                f"the cluster at {where} has no authorizer: everybody may do everything on it, and "
                "it keeps no ACLs; set authorizer.class.name on its brokers and controllers first"
            ) from error
        except KafkaError as error:
            raise ClusterError(
                f"cannot {action} ACLs of the cluster at {where}: {error}"
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
