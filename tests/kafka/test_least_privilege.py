"""Test a job on a broker that grants only the ACLs of ``dpstream acl``, over TLS and SCRAM.

Every role has its own user. The broker's authorization log contains the requests of each user, and
whether they were allowed.
"""

from __future__ import annotations

import http.client
import json
import re
import secrets
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dpstream.pipeline.actions import Append
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import load_job
from dpstream.pipeline.kafka.broker_clock import own_milliseconds
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.cluster_errors import AccessError
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.kafka.memory import MemoryLog, MemoryWorker
from dpstream.pipeline.kafka.topic_reader import read_registry
from dpstream.pipeline.ledger.ledger_topic import read_spending
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.operations.status.collection import gather_status
from dpstream.pipeline.privileges.bindings import Binding
from dpstream.pipeline.privileges.cluster_acls import ClusterAcls
from dpstream.pipeline.privileges.table import Operation, Resource, ResourceKind, roles_of
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.stage_builder import build_stage, stages_after_release
from dpstream.topics.envelopes import CONTENT_TYPE
from dpstream.topics.names import Role, topic_name
from dpstream.topics.records import Deregistration, Drain
from tests.support.commands import Commands
from tests.support.device_jobs import body, envelope
from tests.support.least_privilege import (
    TIMEOUT,
    SecuredJob,
    is_for_another_day,
    running,
    secured_job,
    wait_for,
)
from tests.support.secured_kafka import SecuredKafka
from tests.support.small_run import EPOCHS, USERS, job_text, write_changes

NAME = "small"
# Topics of another job, whose name starts with the name of this job.
OTHER = ("small-2.reports", "small-2.estimates", "events")


@pytest.fixture(scope="module")
def job_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "job.yaml"
    path.write_text(job_text(NAME) + "shuffle: {minimum: 10}\n")
    return path


@pytest.fixture(scope="module")
def secured(secured_kafka: SecuredKafka, job_file: Path) -> SecuredJob:
    made = secured_job(secured_kafka, load_job(job_file))
    with made.cluster("operator") as operator:
        deploy(operator, made.job, deployment=secrets.token_bytes(16), now=own_milliseconds())
    return made


@pytest.fixture
def dpstream(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Commands:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DPSTREAM_BOOTSTRAP_SERVERS", raising=False)
    return Commands(capsys)


def recomputed(cluster: Cluster, job: DeployedJob) -> list[bytes]:
    """Return the estimates computed from the manifests and released windows in the topics."""
    log = MemoryLog()
    for role in (Role.MANIFESTS, Role.SHUFFLED):
        for partition in range(len(job.start_offsets[role])):
            for record in cluster.read(job.topic(role), partition):
                log.append(Append(role, partition, record.value))
    for name in stages_after_release(job):
        held = MemoryWorker(build_stage(job, name, Environment()), log)
        for partition in range(len(job.start_offsets[held.stage.role])):
            held.run(held.assign(partition))
        held.run(held.drain())
    return log.values(Role.ESTIMATES)


def test_roles_need_only_their_own_permissions(
    secured: SecuredJob, job_file: Path, dpstream: Commands, tmp_path: Path
) -> None:
    as_role = secured.as_role
    longer = tmp_path / "job.yaml"
    longer.write_text(job_file.read_text().replace("partitions: 2", "partitions: 2, retention: 8d"))
    assert "7 d -> 8 d" in dpstream(*as_role("operator", "deploy", longer)).output
    with secured.cluster("operator") as operator:
        reports = topic_name(NAME, Role.REPORTS)
        configs = operator.existing_topics([reports])[reports].configs
        assert configs["retention.ms"] == f"{8 * 86_400_000}"
        assert configs["message.timestamp.type"] == "LogAppendTime"
    changes = write_changes(tmp_path / "changes.csv")
    produce = as_role("producer", "produce", NAME, "--input", changes, "--json")
    assert dpstream(*produce, "--to-epoch", 3).json["closed_epoch"] == 3
    with (
        secured.workers(),
        secured.cluster("analyst") as analyst,
    ):
        wait_for(lambda: analyst.end_offsets(topic_name(NAME, Role.ESTIMATES)) == [3])
        # The producer compares its state with the manifests.
        assert dpstream(*produce).json["closed_epoch"] == EPOCHS
        wait_for(lambda: analyst.end_offsets(topic_name(NAME, Role.RESULTS)) == [EPOCHS])
        assert len(list(analyst.read(topic_name(NAME, Role.RESULTS)))) == EPOCHS
        status = dpstream(*as_role("operator", "status", NAME, "--json"))
        assert status.json["dead_letters"] == {}, status
    kept = dpstream(*as_role("recorder", "record", NAME, "--output", tmp_path / "kept", "--json"))
    assert kept.json["complete"]
    results = dpstream(*as_role("analyst", "estimates", NAME, "--format", "json")).output
    published = [json.loads(line) for line in results.splitlines()]
    assert [each["epoch"] for each in published] == [*range(1, EPOCHS + 1)]
    assert all(each["population"] == USERS for each in published)

    with secured.cluster("admin") as admin:
        job = find_deployed(admin, NAME)
        held = [record.value for record in admin.read(job.topic(Role.ESTIMATES))]
        assert held == recomputed(admin, job)
    with secured.cluster("page") as page:
        seen = gather_status(page, find_deployed(page, NAME), own_milliseconds())
        assert seen.finished
        assert {stage.stage for stage in seen.stages} == {"shuffle", "aggregate", "publish"}
        assert read_spending(page).charges
    # All work succeeded with the granted permissions, and no request was denied. Listing topics
    # requests all of them, and leaves out those without permission.
    assert secured.denied() == set()
    # Almost every granted permission was used.
    assert {each for each in secured.unused() if not is_for_another_day(*each)} == set()


def test_acls_are_added_once_and_revoked(
    secured: SecuredJob, job_file: Path, dpstream: Commands, tmp_path: Path
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(job_text("other"))
    # One user has roles in two jobs, one of which ends.
    line = ("acl", other, "--role", "analyst", "--principal", f"analyst=User:{NAME}-analyst")
    as_admin = (*line, "--kafka-config", secured.kafka.admin)
    assert len(dpstream(*as_admin, "--json").json["missing"]) == 2
    added = dpstream(*as_admin, "--apply")
    assert added.output.endswith("2 ACLs added, 1 already present\n"), added
    assert dpstream(*as_admin, "--apply").output == "0 ACLs added, 3 already present\n"
    assert dpstream(*as_admin, "--json").json["missing"] == []
    removed = dpstream(*as_admin, "--revoke")
    assert (
        "2 ACLs of other removed; kept 1 that the same principals need for other jobs"
        in removed.output
    )
    with secured.cluster("analyst") as analyst:
        assert find_deployed(analyst, NAME).name == NAME

    more = (*as_admin, "--principal", f"analyst=User:{NAME}-page", "--json")
    beyond = dpstream("acl", job_file, *more[2:]).json["beyond"]
    assert {"manifests", "partials", "reports"} <= {each["name"].split(".")[-1] for each in beyond}

    rejected = dpstream(*line, "--kafka-config", secured.users["operator"], "--apply")
    assert rejected.code == 1
    assert "does not allow User:small-operator to view ACLs of cluster" in rejected.errors


def test_operations_outside_the_privilege_table_are_denied(secured: SecuredJob) -> None:
    let, tried = secured.let(OTHER)
    assert let == []
    assert tried > 800


@pytest.mark.verify
def test_device_reports_arrive_with_every_kind_of_login(
    secured: SecuredJob, dpstream: Commands, tmp_path: Path
) -> None:
    kafka = secured.kafka
    name = "phones"
    begun = datetime.now(UTC) - timedelta(seconds=3_520)
    values = {
        "name": name,
        "protocol": "future_rand",
        "parameters": {"epsilon": 1, "max_changes": 2},
        "epochs": {"count": 16, "start": begun.isoformat(), "length": "1h"},
        "shuffle": {"grace": "20s", "minimum": 5},
        "devices": {"late": "5s"},
        "topics": {"partitions": 2},
    }
    job_file = tmp_path / "phones.yaml"
    job_file.write_text(json.dumps(values))
    roles = roles_of(load_job(job_file))
    users = {role: kafka.users(f"{name}-{role}")[f"{name}-{role}"] for role in roles}
    users |= {"shuffle": kafka.users(f"{name}-sha", mechanism="SCRAM-SHA-256")[f"{name}-sha"]}
    users |= {"aggregate": kafka.certified(f"{name}-aggregate")}
    added = dpstream(
        *("acl", job_file, "--apply", "--kafka-config", kafka.admin),
        *("--principal", f"shuffle=User:{name}-sha"),
        *("--principal", f"aggregate=User:CN={name}-aggregate"),
    )
    assert added.code == 0, added
    assert dpstream("deploy", job_file, "--kafka-config", users["operator"]).code == 0
    with Cluster(kafka.connection(users["analyst"])) as analyst:
        job = find_deployed(analyst, name)
        stages = ("shuffle", "aggregate", "publish")
        with ExitStack() as stack:
            for stage in stages:
                stack.enter_context(running("run", stage, name, "--kafka-config", users[stage]))
            collector = stack.enter_context(
                running(
                    *("collect", "--job", name, "--bind", "127.0.0.1:0"),
                    *("--kafka-config", users["collector"]),
                )
            )
            assert collector.stdout is not None
            port = int(collector.stdout.readline().rpartition(":")[2])
            for number in range(8):
                data = body(job, 1, [envelope(job, 1, [number % 2])])
                wait_for(lambda data=data: posted(port, name, data))  # type: ignore[misc]
            wait_for(lambda: analyst.end_offsets(job.topic(Role.ESTIMATES)) == [1])
    said = dpstream("estimates", name, "--format", "json", "--kafka-config", users["analyst"])
    (published,) = map(json.loads, said.output.splitlines())
    assert (published["epoch"], published["population"]) == (1, 8)
    _, denied = kafka.decisions()
    assert not [each for each in denied if f"{name}-" in each.principal]
    let, tried = SecuredJob(kafka, job, users).let(OTHER)
    assert let == []
    assert tried > 900


def posted(port: int, job: str, data: bytes) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    try:
        headers = {"Content-Type": CONTENT_TYPE}
        connection.request("POST", f"/v1/jobs/{job}/reports", data, headers)
        status = connection.getresponse().status
    finally:
        connection.close()
    assert status in (202, 404, 503), status
    return status == 202


@pytest.mark.verify
def test_registered_producer_needs_no_permission_to_register(
    secured_kafka: SecuredKafka, dpstream: Commands, tmp_path: Path
) -> None:
    name = "registered"
    job_file = tmp_path / "job.yaml"
    job_file.write_text(job_text(name) + "shuffle: {minimum: 10}\n")
    made = secured_job(secured_kafka, load_job(job_file))
    assert dpstream(*made.as_role("operator", "deploy", job_file)).code == 0
    changes = write_changes(tmp_path / "changes.csv")
    produce = made.as_role("producer", "produce", name, "--input", changes, "--json")
    assert dpstream(*produce, "--to-epoch", 3).json["closed_epoch"] == 3

    producers = Resource(ResourceKind.TOPIC, topic_name(name, Role.PRODUCERS))
    right = Binding(made.principal("producer"), producers, Operation.WRITE)
    with made.cluster("admin") as admin:
        ClusterAcls(admin).remove([right])
        job = find_deployed(admin, name)
        (registered,) = read_registry(admin, job)
    with made.cluster("producer") as producer:
        for record in (
            Deregistration(job.deployment, registered.enrollment, 1),
            Drain(job.deployment, 0, 1),
        ):
            with pytest.raises(AccessError, match="does not allow"):
                producer.append(producers.name, record.to_bytes())

    with made.workers(), made.cluster("analyst") as analyst:
        assert dpstream(*produce).json["closed_epoch"] == EPOCHS
        wait_for(lambda: analyst.end_offsets(topic_name(name, Role.ESTIMATES)) == [EPOCHS])
    ended = dpstream(*made.as_role("operator", "producers", name, "--retire", registered.name))
    assert ended.code == 0, ended


@pytest.mark.verify
def test_cluster_rejects_wrong_credentials(secured: SecuredJob, tmp_path: Path) -> None:
    config = secured.users["analyst"].read_text()
    servers = next(line for line in config.splitlines() if line.startswith("bootstrap.servers"))
    # The certificate is only valid for a broker at 127.0.0.1.
    elsewhere = tmp_path / "elsewhere.properties"
    elsewhere.write_text(config.replace(servers, servers.replace("127.0.0.1", "localhost")))
    guessed = tmp_path / "guessed.properties"
    guessed.write_text(re.sub('password="[^"]*"', 'password="guess"', config))
    for file in (elsewhere, guessed):
        file.chmod(0o600)
        with running("list", "--kafka-config", file) as process:
            assert process.wait(TIMEOUT) == 1
            assert process.stderr is not None
            said = process.stderr.read()
        assert "cannot reach Kafka" in said
        assert "Traceback" not in said


@pytest.mark.verify
@pytest.mark.parametrize("stage", ["shuffle", "aggregate", "publish"])
def test_worker_reports_missing_permissions_and_exits(secured: SecuredJob, stage: str) -> None:
    with running("run", stage, NAME, "--kafka-config", secured.users["analyst"]) as process:
        assert process.wait(TIMEOUT) == 1
        assert process.stderr is not None
        last = process.stderr.read().strip().splitlines()[-1]
    assert "Kafka does not allow User:small-analyst to" in last
    assert f"dpstream acl {NAME} --role {stage} --principal {stage}=User:small-analyst" in last
