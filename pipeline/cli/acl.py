"""The command ``dpstream acl``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from dpstream.pipeline.cli.cluster_and_jobs import cluster_of, connection_of, find_job, job_of_file
from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.options import AsJson, JobName, KafkaConfig, Servers
from dpstream.pipeline.cli.output import (
    plural,
    print_json,
    print_line,
    print_table,
    print_text,
    silence,
    tell,
)
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.jobs.replays import deploy_replay, replayed_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.cluster_errors import ClusterError
from dpstream.pipeline.kafka.connection import Connection, NoClusterError
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.privileges.bindings import Binding, bindings_of, principals_of, tool_lines
from dpstream.pipeline.privileges.cluster_acls import ClusterAcls, Comparison, compare, removable
from dpstream.pipeline.privileges.table import Privilege, Resource, privileges_of

_NO_SERVERS = "HOST:PORT"


class AclFormat(StrEnum):
    table = "table"
    kafka_acls = "kafka-acls"
    json = "json"


def acl(
    job: JobName,
    role: Annotated[
        list[str] | None,
        typer.Option(
            "--role",
            metavar="ROLE",
            help="Restrict to this role. May be repeated. Default: all roles.",
        ),
    ] = None,
    principal: Annotated[
        list[str] | None,
        typer.Option(
            "--principal",
            metavar="ROLE=User:NAME",
            help="Principal of a role. May be repeated, also for the same role. Default: "
            "User:JOB-ROLE.",
        ),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Add missing ACLs; existing ones remain.")
    ] = False,
    revoke: Annotated[
        bool,
        typer.Option("--revoke", help="Remove the ACLs, for example after dpstream undeploy."),
    ] = False,
    form: Annotated[
        AclFormat,
        typer.Option(
            "--format",
            help="Output format. kafka-acls prints commands for Kafka's own tool that add the "
            "ACLs or, with --revoke, remove them.",
        ),
    ] = AclFormat.table,
    replay: Annotated[
        str | None,
        typer.Option(
            "--replay",
            metavar="NAME",
            help="Print the ACLs for a future replay of the deployed job under this name.",
        ),
    ] = None,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Print the minimal Kafka ACLs for each role of a job; --apply adds them.

    Without --apply or --revoke, only prints the required ACLs and, if the cluster allows reading
    ACLs, which of them exist. JOB can be a job file that is not deployed yet. --apply and --revoke
    require the permissions of a cluster administrator, which no role of a job has.
    """
    if apply and revoke:
        raise UsageProblem("--apply and --revoke are mutually exclusive")
    form = AclFormat.json if as_json else form
    if form is AclFormat.kafka_acls and apply:
        raise UsageProblem("--format kafka-acls only prints commands: remove --apply")
    silence("kafka")
    loaded, connection = _find(job, servers, kafka_config, replay, needed=apply or revoke)
    principals = principals_of(loaded, role or (), principal or ())
    required = tuple(bindings_of(loaded, principals))
    if form is AclFormat.kafka_acls:
        where = _NO_SERVERS if connection is None else ",".join(connection.bootstrap_servers)
        for line in tool_lines(required, where, remove=revoke):
            print_line(line)
        return
    found: Comparison | None
    if apply or revoke:
        assert connection is not None
        with Cluster(connection) as cluster:
            acls = ClusterAcls(cluster)
            present = acls.present(_all(principals))
            found = compared = compare(loaded, required, present)
            done = removable(loaded, required, present) if revoke else compared.missing
            (acls.remove if revoke else acls.add)(done)
        if form is AclFormat.json:
            changed = "removed" if revoke else "added"
            print_json(_json(loaded, principals, compared) | {changed: [*map(_acl_json, done)]})
            return
        _print_applied(loaded, compared, done, required, revoked=revoke)
    else:
        found = _look(loaded, connection, required, principals)
        if form is AclFormat.json:
            print_json(_json(loaded, principals, found))
            return
        _print_table(loaded, principals, found)
    if found is not None and not revoke:
        _warn_of_more(found)


def _find(
    job: str, servers: str | None, config: Path | None, replay: str | None, *, needed: bool
) -> tuple[Job, Connection | None]:
    if replay is not None:
        with cluster_of(servers, config) as cluster:
            original = find_job(cluster, job)
            named = replayed_job(original, name=replay)
            made = deploy_replay(original, named, deployment=original.deployment, deployed_at=0)
            return made, cluster.connection
    loaded = job_of_file(job)
    if loaded is None:
        with cluster_of(servers, config) as cluster:
            return find_deployed(cluster, job), cluster.connection
    try:
        return loaded, connection_of(servers, config)
    except NoClusterError:
        if needed:
            raise
        return loaded, None


def _all(principals: Mapping[str, tuple[str, ...]]) -> list[str]:
    return [*dict.fromkeys(each for named in principals.values() for each in named)]


def _look(
    job: Job,
    connection: Connection | None,
    required: tuple[Binding, ...],
    principals: Mapping[str, tuple[str, ...]],
) -> Comparison | None:
    if connection is None:
        tell("no cluster specified: existing ACLs are not shown")
        return None
    try:
        with Cluster(connection) as cluster:
            return compare(job, required, ClusterAcls(cluster).present(_all(principals)))
    except ClusterError as error:
        tell(f"existing ACLs are not shown: {error}")
        return None


def _print_table(
    job: Job, principals: Mapping[str, tuple[str, ...]], found: Comparison | None
) -> None:
    for role, named in principals.items():
        print_text(f"{role}: {', '.join(named)}", "bold")
        grouped: dict[Resource, list[Privilege]] = {}
        for each in privileges_of(job, role):
            grouped.setdefault(each.resource, []).append(each)
        columns = ["=on", "may", "because it"]
        if found is not None:
            columns.append("there")
        print_table(
            columns,
            (
                (
                    f"  {_name(resource)}",
                    ", ".join(each.operation for each in privileges),
                    "; ".join(dict.fromkeys(each.why for each in privileges)),
                    *(() if found is None else (_state(resource, privileges, named, found),)),
                )
                for resource, privileges in grouped.items()
            ),
        )
        print_text()
    if found is None:
        return
    missing, there = len(found.missing), len(found.there)
    print_text(
        f"{plural(missing, 'ACL')} missing, {there} present"
        + (". To add them: --apply" * bool(missing))
    )


def _name(resource: Resource) -> str:
    return f"{resource.kind} {resource.name}{'*' * resource.prefixed}"


def _state(
    resource: Resource, privileges: Iterable[Privilege], named: tuple[str, ...], found: Comparison
) -> str:
    required = {
        Binding(principal, resource, each.operation) for each in privileges for principal in named
    }
    there = required & set(found.there)
    return "yes" if there == required else "partly" if there else "no"


def _print_applied(
    job: Job,
    found: Comparison,
    done: tuple[Binding, ...],
    required: tuple[Binding, ...],
    *,
    revoked: bool,
) -> None:
    sign = "-" if revoked else "+"
    for each in done:
        print_text(f"{sign} {each.principal} {each.operation} {_name(each.resource)}", whole=True)
    if revoked:
        kept = len(found.there) - len(done)
        others = f"; kept {kept} that the same principals need for other jobs" if kept else ""
        print_text(f"{plural(len(done), 'ACL')} of {job.name} removed{others}")
    else:
        print_text(f"{plural(len(done), 'ACL')} added, {len(required) - len(done)} already present")


def _warn_of_more(found: Comparison) -> None:
    for each in found.beyond:
        tell(
            f"WARNING: {each.principal} also has permission {each.operation} on "
            f"{_name(each.resource)}, which the job's roles do not need. Remove the permission "
            "with kafka-acls.sh, or, if the principal has another role, add --principal for that "
            "role"
        )


def _json(
    job: Job, principals: Mapping[str, tuple[str, ...]], found: Comparison | None
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "job": job.name,
        "roles": [
            {
                "role": role,
                "principals": list(named),
                "privileges": [
                    {
                        **_resource_json(each.resource),
                        "operation": each.operation,
                        "why": each.why,
                    }
                    for each in privileges_of(job, role)
                ],
            }
            for role, named in principals.items()
        ],
    }
    if found is not None:
        body |= {
            "there": [*map(_acl_json, found.there)],
            "missing": [*map(_acl_json, found.missing)],
            "beyond": [*map(_acl_json, found.beyond)],
        }
    return body


def _acl_json(binding: Binding) -> dict[str, str]:
    return {
        "principal": binding.principal,
        **_resource_json(binding.resource),
        "operation": binding.operation,
    }


def _resource_json(resource: Resource) -> dict[str, str]:
    return {
        "kind": resource.kind,
        "name": resource.name,
        "pattern": "prefixed" if resource.prefixed else "literal",
    }
