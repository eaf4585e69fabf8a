"""Test the privileges of each role, and the detection of excess ACLs on a cluster."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path

import pytest

from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.privileges.bindings import (
    Binding,
    PrincipalError,
    bindings_of,
    principals_of,
    tool_lines,
)
from dpstream.pipeline.privileges.cluster_acls import compare, removable
from dpstream.pipeline.privileges.table import (
    ANALYST,
    COLLECTOR,
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
from dpstream.topics.names import JOBS_TOPIC, LEDGER_TOPIC, Role
from tests.support.device_jobs import device_job
from tests.support.small_run import job_text

JOB = parse_job(job_text())
READ, WRITE = Operation.READ, Operation.WRITE


def topic(role: Role, job: str = "small") -> Resource:
    return Resource(ResourceKind.TOPIC, f"{job}.{role}")


def who_may(operation: Operation, role: Role) -> set[str]:
    return {each for each in roles_of(JOB) if (topic(role), operation) in may(JOB, each)}


@pytest.mark.parametrize(
    ("role", "readers", "writers"),
    [
        (Role.REPORTS, {"shuffle"}, {PRODUCER, OPERATOR}),
        (Role.DEAD_LETTERS, {OPERATOR}, {"shuffle", "aggregate", OPERATOR}),
        (Role.SHUFFLED, {"aggregate", RECORDER}, {"shuffle"}),
        (Role.PARTIALS, {"aggregate", "publish", PAGE, RECORDER, OPERATOR}, {"aggregate"}),
        (
            Role.MANIFESTS,
            {PRODUCER, "shuffle", "aggregate", "publish", PAGE, RECORDER, OPERATOR},
            {"shuffle"},
        ),
        (Role.PRODUCERS, {PRODUCER, "shuffle", PAGE, OPERATOR}, {PRODUCER, OPERATOR}),
        (
            Role.ESTIMATES,
            {"shuffle", "aggregate", "publish", PAGE, ANALYST, RECORDER, OPERATOR},
            {"publish"},
        ),
        (Role.RESULTS, {"publish", ANALYST}, {"publish"}),
        (Role.STATUS, {PAGE, OPERATOR}, {"shuffle", "aggregate", "publish"}),
    ],
)
def test_topic_is_accessible_only_to_its_roles(
    role: Role, readers: set[str], writers: set[str]
) -> None:
    assert who_may(READ, role) == readers
    assert who_may(WRITE, role) == writers


def test_consumer_group_prefix_of_a_job_matches_no_job_with_a_longer_name() -> None:
    groups = {
        each: {
            resource
            for resource, operation in may(JOB, each)
            if resource.kind is ResourceKind.GROUP and operation is READ
        }
        for each in roles_of(JOB)
    }
    assert groups == {
        each: (
            {Resource(ResourceKind.GROUP, f"small.{each}.", prefixed=True)}
            if each in JOB.route.stages
            else set()
        )
        for each in roles_of(JOB)
    }
    assert group_prefix(JOB) == "small."


def test_no_role_gets_cluster_or_wildcard_access() -> None:
    for role in roles_of(JOB):
        for each in privileges_of(JOB, role):
            shared = (JOBS_TOPIC, LEDGER_TOPIC)
            own = each.resource.name.startswith("small.") or each.resource.name in shared
            assert own, each
            assert "*" not in each.resource.name
            assert each.why
            assert not (each.resource.prefixed and each.resource.kind is ResourceKind.TOPIC)


def test_no_role_can_delete_ledger_records() -> None:
    ledger = Resource(ResourceKind.TOPIC, LEDGER_TOPIC)
    allowed = {
        operation for each in roles_of(JOB) for on, operation in may(JOB, each) if on == ledger
    }
    assert not allowed & {Operation.DELETE, Operation.ALTER_CONFIGS}
    assert [each for each in roles_of(JOB) if (ledger, WRITE) in may(JOB, each)] == [OPERATOR]
    assert {each for each in roles_of(JOB) if (ledger, READ) in may(JOB, each)} == {PAGE, OPERATOR}


def test_documentation_lists_the_privilege_table() -> None:
    page = Path(str(files("dpstream.pipeline.privileges").joinpath("README.md"))).read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.partition("\n\nAll roles read")[0].splitlines()
        if line.startswith("| ") and not line.startswith("| role")
    ]
    jobs = dict.fromkeys(roles_of(JOB), JOB) | {COLLECTOR: device_job()}
    assert [role for role, *_ in rows] == [
        PRODUCER,
        COLLECTOR,
        *(each for each in roles_of(JOB) if each != PRODUCER),
    ]
    for role, reads, writes in rows:
        job = jobs[role]
        for operation, said in ((READ, reads), (WRITE, writes)):
            names = [
                each.resource.name.removeprefix(f"{job.name}.")
                for each in privileges_of(job, role)
                if each.operation is operation and each.resource.name.startswith(f"{job.name}.")
                if each.resource.kind is ResourceKind.TOPIC
            ]
            assert set(said.split(", ")) - {""} == set(names), (role, operation)


ANN = "User:ann"
JOBS = Binding(ANN, Resource(ResourceKind.TOPIC, JOBS_TOPIC), Operation.READ)
ESTIMATES = Binding(ANN, Resource(ResourceKind.TOPIC, "small.estimates"), Operation.READ)
RESULTS = Binding(ANN, Resource(ResourceKind.TOPIC, "small.results"), Operation.READ)
WANTED = tuple(bindings_of(JOB, principals_of(JOB, ["analyst"], [f"analyst={ANN}"])))


def test_principal_of_a_role_defaults_to_the_job_and_role_names() -> None:
    given = principals_of(JOB, (), ["shuffle=User:a", "shuffle=User:b"])
    assert given["shuffle"] == ("User:a", "User:b")
    assert given["page"] == ("User:small-page",)
    assert WANTED == (JOBS, ESTIMATES, RESULTS)


@pytest.mark.parametrize(
    ("roles", "named", "said"),
    [
        ((), "shuffle", "expected ROLE=User:NAME"),
        ((), "shuffle=ann", "expected ROLE=User:NAME"),
        ((), "shuffle=User:*", "expected ROLE=User:NAME"),
        ((), "collector=User:ann", "job small has no role collector; expected one of producer"),
        (("page",), "shuffle=User:ann", "but --role selects only page"),
    ],
)
def test_invalid_role_or_principal_is_rejected(
    roles: tuple[str, ...], named: str, said: str
) -> None:
    with pytest.raises(PrincipalError, match=r".*".join(map(str, [said.replace("*", ".")]))):
        principals_of(JOB, roles, [named])


def test_kafka_acls_commands_match_the_table() -> None:
    lines = [shlex.split(line) for line in tool_lines(WANTED, "broker:9093")]
    assert lines[1] == [
        *("kafka-acls.sh", "--bootstrap-server", "broker:9093"),
        *("--command-config", "admin.properties", "--add", "--allow-principal", ANN),
        *("--operation", "Read", "--topic", "small.estimates"),
    ]
    shuffle = bindings_of(JOB, principals_of(JOB, ["shuffle"]))
    text = "\n".join(tool_lines(shuffle, "b:1", remove=True))
    assert "--remove --force" in text
    assert "--operation DescribeConfigs" in text
    assert "--group small.shuffle. --resource-pattern-type prefixed" in text
    assert sum(line.count("--operation") for line in text.splitlines()) == len(shuffle)


def test_missing_and_excess_acls_are_found() -> None:
    everything = Binding(ANN, Resource(ResourceKind.TOPIC, "*"), Operation.READ)
    prefix = Binding(ANN, Resource(ResourceKind.TOPIC, "sma", prefixed=True), Operation.READ)
    reports = Binding(ANN, Resource(ResourceKind.TOPIC, "small.reports"), Operation.READ)
    other = Binding(ANN, Resource(ResourceKind.TOPIC, "small-2.reports"), Operation.READ)
    literal = Binding(ANN, Resource(ResourceKind.TOPIC, "sma"), Operation.READ)
    found = compare(JOB, WANTED, {JOBS, everything, prefix, reports, other, literal})
    assert found.there == (JOBS,)
    assert found.missing == (ESTIMATES, RESULTS)
    assert set(found.beyond) == {everything, prefix, reports}


def test_principal_of_another_job_keeps_access_to_the_jobs_topic() -> None:
    other = Binding(ANN, Resource(ResourceKind.TOPIC, "other.estimates"), Operation.READ)
    assert removable(JOB, WANTED, {JOBS, ESTIMATES}) == (JOBS, ESTIMATES)
    assert removable(JOB, WANTED, {JOBS, ESTIMATES, other}) == (ESTIMATES,)
    another = Binding("User:bob", other.resource, Operation.READ)
    assert removable(JOB, WANTED, {JOBS, ESTIMATES, another}) == (JOBS, ESTIMATES)
