"""ACLs that give privileges to principals, also in the form of commands for Kafka's own tools."""

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

# Exclude Kafka's wildcard `*`, which means every user.
_PRINCIPAL = re.compile(r"[A-Za-z]+:[^\s*][^\n]*")


_TOOL_OPERATIONS = {each: "".join(map(str.title, each.split("_"))) for each in Operation}


class PrincipalError(DpstreamError, ValueError):
    exit_code = WRONG_INPUT


@dataclass(frozen=True, slots=True, order=True)
class Binding:
    """One ACL: it allows a principal, ``User:NAME``, an operation from any host."""

    principal: str
    resource: Resource
    operation: Operation


def principals_of(
    job: Job, roles: Collection[str] = (), named: Iterable[str] = ()
) -> dict[str, tuple[str, ...]]:
    """Return the principals of each role in a job.

    `roles` restricts the result; empty means all roles. `named` contains ``ROLE=User:NAME``, where
    a role can occur several times. The default principal of a role is ``User:JOB-ROLE``. Raises
    PrincipalError for an unknown role or a malformed principal.
    """
    known = roles_of(job)
    given: dict[str, list[str]] = {}
    for text in named:
        role, equals, principal = text.partition("=")
        if not equals or not _PRINCIPAL.fullmatch(principal):
            raise PrincipalError(
                f"--principal: got {text!r}; expected ROLE=User:NAME, such as producer=User:gateway"
            )
        given.setdefault(role, []).append(principal)
    for role in (*roles, *given):
        if role not in known:
            raise PrincipalError(
                f"job {job.name} has no role {role}; expected one of {', '.join(known)}"
            )
    if roles and (others := [role for role in given if role not in roles]):
        raise PrincipalError(
            f"--principal sets {', '.join(others)}, but --role selects only {', '.join(roles)}"
        )
    return {
        role: tuple(given.get(role, [f"User:{job.name}-{role}"]))
        for role in known
        if not roles or role in roles
    }


def bindings_of(job: Job, principals: Mapping[str, Collection[str]]) -> dict[Binding, None]:
    return {
        Binding(principal, each.resource, each.operation): None
        for role, named in principals.items()
        for principal in named
        for each in privileges_of(job, role)
    }


def tool_lines(bindings: Iterable[Binding], servers: str, *, remove: bool = False) -> Iterator[str]:
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
