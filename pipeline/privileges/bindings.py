"""ACLs: privileges with the principals they are given to, and how Kafka's own tools say them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from dpstream.pipeline.errors import WRONG_INPUT, DpstreamError
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.privileges.table import (
    Operation,
    Resource,
    ResourceKind,
    privileges_of,
    roles_of,
)

# Kafka's wildcard would be everybody.
_PRINCIPAL = re.compile(r"[A-Za-z]+:[^\s*][^\n]*")


_TOOL_OPERATIONS = {each: "".join(map(str.title, each.split("_"))) for each in Operation}


class PrincipalError(DpstreamError, ValueError):
    """Who is to be given privileges is not said as Kafka does; the message says how."""

    exit_code = WRONG_INPUT


@dataclass(frozen=True, slots=True, order=True)
class Binding:
    """One ACL that allows something, from any host.

    Attributes:
        principal: as ``User:NAME``.
        resource: to what.
        operation: what.
    """

    principal: str
    resource: Resource
    operation: Operation


def principals_of(
    job: Job, roles: Collection[str] = (), named: Iterable[str] = ()
) -> dict[str, tuple[str, ...]]:
    """Who is given each role of a job.

    Args:
        job: deployed, or to be.
        roles: that are asked for; none: all.
        named: ``ROLE=User:NAME``, several for one role if need be. A role that is not named is
            given to ``User:JOB-ROLE``.

    Raises:
        PrincipalError: a role or a principal is none.
    """
    known = roles_of(job)
    given: dict[str, list[str]] = {}
    for text in named:
        role, equals, principal = text.partition("=")
        if not equals or not _PRINCIPAL.fullmatch(principal):
            raise PrincipalError(
                f"--principal is {text}: give ROLE=User:NAME, such as producer=User:gateway"
            )
        given.setdefault(role, []).append(principal)
    for role in (*roles, *given):
        if role not in known:
            raise PrincipalError(
                f"job {job.name} has no role {role}: its roles are {', '.join(known)}"
            )
    if roles and (others := [role for role in given if role not in roles]):
        raise PrincipalError(
            f"--principal names {', '.join(others)}, and --role asks for {', '.join(roles)} alone"
        )
    return {
        role: tuple(given.get(role, [f"User:{job.name}-{role}"]))
        for role in known
        if not roles or role in roles
    }


def bindings_of(job: Job, principals: Mapping[str, Collection[str]]) -> dict[Binding, None]:
    """The ACLs of some roles, each once, in the order of the table."""
    return {
        Binding(principal, each.resource, each.operation): None
        for role, named in principals.items()
        for principal in named
        for each in privileges_of(job, role)
    }


def tool_lines(bindings: Iterable[Binding], servers: str, *, remove: bool = False) -> Iterator[str]:
    """Command lines of Kafka's ``kafka-acls.sh``, one for each principal and resource."""
    operations: dict[tuple[str, Resource], list[Operation]] = {}
    for each in bindings:
        operations.setdefault((each.principal, each.resource), []).append(each.operation)
    for (principal, resource), allowed in operations.items():
        words = [
            *("kafka-acls.sh", "--bootstrap-server", servers),
            *("--command-config", "admin.properties"),
            *(("--remove", "--force") if remove else ("--add",)),
            *("--allow-principal", principal),
            *(word for each in allowed for word in ("--operation", _TOOL_OPERATIONS[each])),
            *("--topic" if resource.kind is ResourceKind.TOPIC else "--group", resource.name),
            *(("--resource-pattern-type", "prefixed") if resource.prefixed else ()),
        ]
        yield shlex.join(words)
