"""Test that every kind of job works with exactly the permissions of ``dpstream acl``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from dpstream.pipeline.connect import open_producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import load_job
from dpstream.pipeline.jobs.routes import SHARERS
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.ledger.ledger_topic import read_spending
from dpstream.topics.names import Role
from tests.support.commands import Commands
from tests.support.least_privilege import (
    TIMEOUT,
    SecuredJob,
    is_for_another_day,
    running,
    secured_job,
)
from tests.support.secured_kafka import SecuredKafka

pytestmark = pytest.mark.verify

# A topic outside these jobs.
OTHER = ("events",)
EPOCHS = 2
USERS = 60
FRAGMENTS = """\
name: NAME
protocol: fragments
parameters: {epsilon: 4, delta: 1e-3, domain: [ash, oak], reports: 2}
epochs: {count: 2}
topics: {partitions: 1}
shuffle: {minimum: 100, producers: 2MORE}
"""
LEARNING = """\
name: NAME
protocol: ldp_sgd
parameters: {epsilon: 6, delta: 1e-3, features: 2, classes: 2, rate: 4, groups: 1}
epochs: {count: 2}
topics: {partitions: 1}
shuffle: {minimum: 20, producers: 2, grace: 1h}
"""
SERIES = FRAGMENTS.replace("MORE", "")
INSTANCES = FRAGMENTS.replace("MORE", ", instances: 2")
KINDS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "series": (
        SERIES
        + "sealed: {aggregate: aggregator.pub, stages: [first.pub, second.pub, third.pub]}\n",
        {
            "shuffle": "first",
            "shuffle-2": "second",
            "shuffle-3": "third",
            "aggregate": "aggregator",
        },
    ),
    "instances": (INSTANCES, {}),
    "sealed-instances": (
        INSTANCES + "sealed: {aggregate: aggregator.pub, stages: [first.pub, second.pub]}\n",
        {"shuffle": "first", "instance-2": "second", "aggregate": "aggregator"},
    ),
    "shares": (
        SERIES.replace("epsilon: 4", "epsilon: 8").replace(", reports: 2", "")
        + "sealed: {shares: [aggregate-a.pub, aggregate-b.pub]}\n",
        {party: party for party in SHARERS},
    ),
    "learning": (LEARNING, {}),
}
"""Job file of each kind of job, and the party that runs each stage with keys."""


@pytest.fixture
def dpstream(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Commands:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DPSTREAM_BOOTSTRAP_SERVERS", raising=False)
    return Commands(capsys)


def send(
    secured: SecuredJob,
    job: DeployedJob,
    folder: Path,
    name: str,
    epochs: Iterable[int],
) -> list[str]:
    """Report as a gateway of many users, and return the printed messages."""
    notices: list[str] = []
    value = "ash" if job.protocol == "fragments" else 1
    users = {f"{name}{number}": value for number in range(USERS)}
    with (
        secured.cluster("producer") as cluster,
        open_producer(cluster, job, folder / name, name=name, notify=notices.append) as producer,
    ):
        if job.protocol != "ldp_sgd":
            producer.enroll(list(users))
            for epoch in epochs:
                producer.report(epoch, users)
                producer.close(epoch)
    return notices


def write_examples(folder: Path, name: str) -> Path:
    """Write examples of two classes, on either side of 0."""
    path = folder / f"{name}.csv"
    rows = (f"{name}{user},{user % 2},{user % 2 - 0.5},1\n" for user in range(USERS))
    path.write_text("user,class,x,one\n" + "".join(rows))
    return path


@pytest.mark.parametrize("kind", list(KINDS))
def test_roles_of_every_job_kind_have_only_required_permissions(
    kind: str,
    secured_kafka: SecuredKafka,
    dpstream: Commands,
    tmp_path: Path,
) -> None:
    text, parties = KINDS[kind]
    for party in set(parties.values()):
        assert dpstream("keygen", party, "--keys", tmp_path / party).code == 0
    job_file = tmp_path / "job.yaml"
    job_file.write_text(text.replace("NAME", kind))
    secured = secured_job(secured_kafka, load_job(job_file))

    as_role = secured.as_role
    assert dpstream(*as_role("operator", "deploy", job_file)).code == 0
    with secured.cluster("producer") as producer:
        job = find_deployed(producer, kind)
    keys = {stage: tmp_path / party for stage, party in parties.items()}
    if kind == "learning":
        inputs = [write_examples(tmp_path, name) for name in ("north", "south")]
        with secured.workers(keys):
            with running(
                *as_role("producer", "produce", kind, "--name", "north", "--input", inputs[0])
            ) as north:
                said = dpstream(
                    *as_role("producer", "produce", kind, "--name", "south", "--input", inputs[1])
                )
                assert said.code == 0, said.errors
                assert north.wait(TIMEOUT) == 0
            secured.written(Role.ESTIMATES, EPOCHS)
            secured.written(Role.RESULTS, EPOCHS, "analyst")
    else:
        for name in ("north", "south"):
            send(secured, job, tmp_path, name, range(1, EPOCHS + 1))
        # The topic now also has reports of another producer, which this one must not read.
        notices = send(secured, job, tmp_path, "south", ())
        assert "never start it with a copy of an earlier state" in " ".join(notices)
        # With parallel shufflers, redrive checks that each shuffler has its part.
        fed = dpstream(*as_role("operator", "dead-letters", kind, "--redrive"))
        assert fed.output == "nothing was requeued\n", fed
        with secured.workers(keys):
            secured.written(Role.ESTIMATES, EPOCHS)
            secured.written(Role.RESULTS, EPOCHS, "analyst")
    # A restarted producer compares its state with the manifests.
    if kind == "learning":
        said = dpstream(
            *as_role("producer", "produce", kind, "--name", "north", "--input", inputs[0])
        )
        assert said.code == 0, said.errors
    else:
        send(secured, job, tmp_path, "north", ())
    check_readers(secured, dpstream, tmp_path)

    assert secured.denied() == set()
    assert {each for each in secured.unused() if not is_for_another_day(*each)} == set()
    let, tried = secured.let(OTHER)
    assert let == []
    assert tried > 700


def check_readers(secured: SecuredJob, dpstream: Commands, folder: Path) -> None:
    name, as_role = secured.job.name, secured.as_role
    kept = dpstream(*as_role("recorder", "record", name, "--output", folder / "kept", "--json"))
    assert (kept.json["complete"], kept.json["last_epoch"]) == (True, EPOCHS), kept
    published = dpstream(*as_role("analyst", "estimates", name, "--format", "json"))
    statuses = [json.loads(line)["window_status"] for line in published.output.splitlines()]
    assert statuses == ["released"] * EPOCHS
    with secured.cluster("analyst") as analyst:
        for role in (Role.RESULTS, Role.MODEL):
            if role in secured.job.topic_settings():
                topic = f"{name}.{role}"
                assert len(list(analyst.read(topic))) == EPOCHS
    for looking in ("page", "operator"):
        status = dpstream(*as_role(looking, "status", name, "--json"))
        body = json.loads(status.output)
        assert [each["stage"] for each in body["stages"]] == list(secured.job.route.stages), status
        assert body["windows"]["released"] == EPOCHS
    assert dpstream(*as_role("operator", "ledger", name)).code == 0
    with secured.cluster("page") as page:
        assert read_spending(page).charges


def test_acl_command_explains_a_missing_authorizer(
    bootstrap_servers: str, job_name: str, dpstream: Commands, tmp_path: Path
) -> None:
    job_file = tmp_path / "job.yaml"
    job_file.write_text(LEARNING.replace("NAME", job_name))
    said = (
        f"the cluster at {bootstrap_servers} has no authorizer: it allows every operation "
        "and stores no ACLs. First set authorizer.class.name on its brokers and controllers"
    )
    line = ("acl", job_file, "--bootstrap-servers", bootstrap_servers)
    for change in ("--apply", "--revoke"):
        rejected = dpstream(*line, change)
        assert (rejected.code, rejected.errors) == (1, f"error: {said}\n")
    looked = dpstream(*line)
    assert looked.code == 0
    assert f"existing ACLs are not shown: {said}" in looked.errors
    assert "shuffle: " in looked.output
