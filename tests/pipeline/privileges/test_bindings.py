"""Principals, Kafka's own command lines, and what a cluster has beside what is wanted."""

from __future__ import annotations

import shlex

import pytest

from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.privileges.bindings import (
    Binding,
    PrincipalError,
    bindings_of,
    principals_of,
    tool_lines,
)
from dpstream.pipeline.privileges.comparison import compare, removable
from dpstream.pipeline.privileges.table import Kind, Operation, Resource
from dpstream.topics.names import JOBS_TOPIC
from tests.support.small_run import job_text

JOB = parse_job(job_text())
ANN = "User:ann"
JOBS = Binding(ANN, Resource(Kind.TOPIC, JOBS_TOPIC), Operation.READ)
ESTIMATES = Binding(ANN, Resource(Kind.TOPIC, "small.estimates"), Operation.READ)
RESULTS = Binding(ANN, Resource(Kind.TOPIC, "small.results"), Operation.READ)
WANTED = tuple(bindings_of(JOB, principals_of(JOB, ["analyst"], [f"analyst={ANN}"])))


def test_roles_are_given_to_users_of_their_names_unless_others_are_named() -> None:
    given = principals_of(JOB, (), ["shuffle=User:a", "shuffle=User:b"])
    assert given["shuffle"] == ("User:a", "User:b")
    assert given["page"] == ("User:small-page",)
    assert WANTED == (JOBS, ESTIMATES, RESULTS)


@pytest.mark.parametrize(
    ("roles", "named", "said"),
    [
        ((), "shuffle", "give ROLE=User:NAME"),
        ((), "shuffle=ann", "give ROLE=User:NAME"),
        ((), "shuffle=User:*", "give ROLE=User:NAME"),
        ((), "collector=User:ann", "job small has no role collector: its roles are producer"),
        (("page",), "shuffle=User:ann", "--principal names shuffle, and --role asks for page"),
    ],
)
def test_what_is_no_role_or_no_principal_is_refused(
    roles: tuple[str, ...], named: str, said: str
) -> None:
    with pytest.raises(PrincipalError, match=r".*".join(map(str, [said.replace("*", ".")]))):
        principals_of(JOB, roles, [named])


def test_kafkas_own_tool_is_told_the_same() -> None:
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


def test_what_is_missing_and_what_is_too_much_is_found() -> None:
    everything = Binding(ANN, Resource(Kind.TOPIC, "*"), Operation.READ)
    prefix = Binding(ANN, Resource(Kind.TOPIC, "sma", prefixed=True), Operation.READ)
    reports = Binding(ANN, Resource(Kind.TOPIC, "small.reports"), Operation.READ)
    other = Binding(ANN, Resource(Kind.TOPIC, "small-2.reports"), Operation.READ)
    literal = Binding(ANN, Resource(Kind.TOPIC, "sma"), Operation.READ)
    found = compare(JOB, WANTED, {JOBS, everything, prefix, reports, other, literal})
    assert found.there == (JOBS,)
    assert found.missing == (ESTIMATES, RESULTS)
    assert set(found.beyond) == {everything, prefix, reports}


def test_who_works_for_another_job_goes_on_reading_the_topic_of_jobs() -> None:
    other = Binding(ANN, Resource(Kind.TOPIC, "other.estimates"), Operation.READ)
    assert removable(JOB, WANTED, {JOBS, ESTIMATES}) == (JOBS, ESTIMATES)
    assert removable(JOB, WANTED, {JOBS, ESTIMATES, other}) == (ESTIMATES,)
    another = Binding("User:bob", other.resource, Operation.READ)
    assert removable(JOB, WANTED, {JOBS, ESTIMATES, another}) == (JOBS, ESTIMATES)
