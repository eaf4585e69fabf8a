"""Who may do what, for which principals, and what a cluster has beside that."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path

import pytest

from dpstream.pipeline.jobs.deployed_job import Origin, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.privileges.bindings import (
    Binding,
    PrincipalError,
    bindings_of,
    principals_of,
    tool_lines,
)
from dpstream.pipeline.privileges.comparison import compare, removable
from dpstream.pipeline.privileges.table import (
    ANALYST,
    COLLECTOR,
    OPERATOR,
    PAGE,
    PRODUCER,
    RECORDER,
    Kind,
    Operation,
    Resource,
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
    return Resource(Kind.TOPIC, f"{job}.{role}")


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
def test_a_topic_is_read_and_written_by_whom_it_is_for(
    role: Role, readers: set[str], writers: set[str]
) -> None:
    assert who_may(READ, role) == readers
    assert who_may(WRITE, role) == writers


def test_only_the_shuffle_stage_and_the_operator_delete() -> None:
    for role in Role:
        assert who_may(Operation.DELETE, role) <= {"shuffle", OPERATOR}
    assert who_may(Operation.DELETE, Role.REPORTS) == {"shuffle", OPERATOR}
    assert who_may(Operation.DELETE, Role.MANIFESTS) == {OPERATOR}


def test_groups_are_of_one_stage_and_of_no_job_whose_name_begins_alike() -> None:
    groups = {
        each: {
            resource
            for resource, operation in may(JOB, each)
            if resource.kind is Kind.GROUP and operation is READ
        }
        for each in roles_of(JOB)
    }
    assert groups == {
        each: (
            {Resource(Kind.GROUP, f"small.{each}.", prefixed=True)} if each in JOB.stages else set()
        )
        for each in roles_of(JOB)
    }
    assert group_prefix(JOB) == "small."


def test_nobody_is_given_the_cluster_or_all_of_anything() -> None:
    for role in roles_of(JOB):
        for each in privileges_of(JOB, role):
            shared = (JOBS_TOPIC, LEDGER_TOPIC)
            own = each.resource.name.startswith("small.") or each.resource.name in shared
            assert own, each
            assert "*" not in each.resource.name
            assert each.why
            assert not (each.resource.prefixed and each.resource.kind is Kind.TOPIC)


def test_the_jobs_topic_is_written_by_the_operator_alone() -> None:
    jobs = Resource(Kind.TOPIC, JOBS_TOPIC)
    assert [each for each in roles_of(JOB) if (jobs, WRITE) in may(JOB, each)] == [OPERATOR]
    assert all((jobs, READ) in may(JOB, each) for each in roles_of(JOB))


def test_nobody_may_take_back_what_the_ledger_says() -> None:
    ledger = Resource(Kind.TOPIC, LEDGER_TOPIC)
    allowed = {
        operation for each in roles_of(JOB) for on, operation in may(JOB, each) if on == ledger
    }
    assert not allowed & {Operation.DELETE, Operation.ALTER_CONFIGS}
    assert [each for each in roles_of(JOB) if (ledger, WRITE) in may(JOB, each)] == [OPERATOR]
    assert {each for each in roles_of(JOB) if (ledger, READ) in may(JOB, each)} == {PAGE, OPERATOR}


def test_no_privilege_is_listed_twice() -> None:
    for role in roles_of(JOB):
        listed = [(each.resource, each.operation) for each in privileges_of(JOB, role)]
        assert len(listed) == len(set(listed)), role


def test_a_job_whose_devices_report_for_themselves_has_collectors() -> None:
    job = device_job()
    assert COLLECTOR in roles_of(job)
    assert PRODUCER not in roles_of(job)
    collector = may(job, COLLECTOR)
    for role in (Role.REPORTS, Role.DEVICES, Role.STATUS):
        assert (topic(role, "phones"), WRITE) in collector
        assert (topic(role, "phones"), READ) not in collector
    shuffle = may(job, "shuffle")
    assert {(topic(Role.DEVICES, "phones"), READ), (topic(Role.STATUS, "phones"), READ)} <= shuffle


def test_a_replay_has_no_reports_and_nobody_who_reads_them() -> None:
    job = deploy_job(JOB, deployed_at=0)
    replay = job.model_copy(
        update={"replay_of": Origin.model_validate({"job": "first", "deployment": "00" * 16})}
    )
    assert set(roles_of(replay)) == {
        *("aggregate", "publish", PAGE),
        *(ANALYST, RECORDER, OPERATOR),
    }
    with pytest.raises(KeyError):
        privileges_of(replay, "shuffle")
    for reported in (Role.REPORTS, Role.PRODUCERS):
        assert (topic(reported), WRITE) not in may(replay, OPERATOR)
    assert (topic(Role.REPORTS), READ) not in may(replay, OPERATOR)


def test_an_operator_reads_reports_only_of_a_job_that_renews_or_has_instances() -> None:
    renewing = parse_job(job_text(more=", renew: true"))
    assert (topic(Role.REPORTS), READ) in may(renewing, OPERATOR)
    assert (topic(Role.REPORTS), READ) not in may(JOB, OPERATOR)
    asked = "protocol: fragments\nparameters: {epsilon: 2, delta: 1e-3, domain: [a, b], reports: 2}"
    divided = parse_job(f"{job_text(asked=asked)}shuffle: {{instances: 2, minimum: 100}}\n")
    for role in (Role.REPORTS, Role.REPORTS_2):
        assert (topic(role), READ) in may(divided, OPERATOR)
        readers = {each for each in roles_of(divided) if (topic(role), READ) in may(divided, each)}
        stage = next(stage for stage, read in divided.stages.items() if read is role)
        assert readers == {stage, OPERATOR}, "no other instance"


def test_the_operator_of_a_replay_writes_what_is_replayed_and_no_other_does() -> None:
    job = deploy_job(JOB, deployed_at=0)
    replay = job.model_copy(
        update={"replay_of": Origin.model_validate({"job": "first", "deployment": "00" * 16})}
    )
    for role in (Role.MANIFESTS, Role.SHUFFLED, Role.PARTIALS):
        assert (topic(role), WRITE) in may(replay, OPERATOR)
        assert (topic(role), WRITE) not in may(job, OPERATOR)
        # One that was stopped goes on behind what is there.
        assert (topic(role), READ) in may(replay, OPERATOR)
    assert (topic(Role.ESTIMATES), WRITE) not in may(replay, OPERATOR)


def test_a_recorder_writes_nothing_and_reads_no_report() -> None:
    listed = privileges_of(JOB, RECORDER)
    assert {each.operation for each in listed} == {READ}
    assert topic(Role.REPORTS) not in {each.resource for each in listed}
    assert topic(Role.DEAD_LETTERS) not in {each.resource for each in listed}


def test_the_page_lists_what_the_table_says() -> None:
    page = Path(str(files("dpstream.pipeline.privileges").joinpath("README.md"))).read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.partition("\n\nAll read")[0].splitlines()
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
                if each.resource.kind is Kind.TOPIC
            ]
            assert set(said.split(", ")) - {""} == set(names), (role, operation)


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
