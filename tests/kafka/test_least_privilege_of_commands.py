"""Test that commands, the page and every kind of job need only the permissions of their users."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import aiohttp
import pytest

from dpstream.pipeline.actions import Append, Flush, Steps
from dpstream.pipeline.connect import open_producer
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import Job, load_job
from dpstream.pipeline.jobs.replays import deploy_replay, replayed_job
from dpstream.pipeline.jobs.routes import SHARERS
from dpstream.pipeline.kafka.broker_clock import own_milliseconds
from dpstream.pipeline.kafka.cluster import KafkaTransport
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.pipeline.ledger.ledger_topic import read_spending
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.privileges.table import (
    ANALYST,
    OPERATOR,
    PAGE,
    PRODUCER,
    RECORDER,
    Operation,
    Resource,
    ResourceKind,
    may,
    roles_of,
)
from dpstream.topics.names import JOBS_TOPIC, LEDGER_TOPIC, Role
from tests.support.commands import Commands, Result
from tests.support.least_privilege import (
    COMPARED,
    TIMEOUT,
    SecuredJob,
    is_for_another_day,
    running,
    secured_job,
    wait_for,
)
from tests.support.live_page import messages
from tests.support.new_jobs import new_job
from tests.support.public_view import api_paths
from tests.support.replays import ORIGINAL, LiveRun
from tests.support.secured_kafka import SecuredKafka

pytestmark = pytest.mark.verify

WATCHED, ORIGIN, AGAIN, STOLEN = "watched", "origin", "again", "stolen"
# Topics of a job that keep all records; compacted topics are excluded.
KEPT = (Role.PRODUCERS, Role.MANIFESTS, Role.SHUFFLED, Role.PARTIALS, Role.ESTIMATES)
HALF = 20
LAST = 8
JOB = f"""\
name: {WATCHED}
protocol: future_rand
parameters: {{epsilon: 2, max_changes: 2}}
epochs: {{count: 12}}
shuffle: {{minimum: 10, grace: 1h, producers: 2}}
topics: {{partitions: 2}}
"""
_REJECTED = re.compile(
    r"error: Kafka does not allow (\S+) to (.+?) (topic|group) ([^ ,]+?)[.,]? .*: "
    r"'dpstream acl (\S+)(?: --replay (\S+))? --role (\S+) --principal "
)
_OPERATIONS = {
    "read": Operation.READ,
    "see": Operation.DESCRIBE,
    "write": Operation.WRITE,
    "create": Operation.CREATE,
    "change": Operation.ALTER_CONFIGS,
    "delete": Operation.DELETE,
}


@pytest.fixture
def dpstream(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Commands:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DPSTREAM_BOOTSTRAP_SERVERS", raising=False)
    return Commands(capsys)


@pytest.fixture(scope="module")
def origin(secured_kafka: SecuredKafka) -> SecuredJob:
    """Completed job run in memory, with its topic contents on the broker."""
    job = new_job(
        ORIGIN,
        "future_rand",
        {"epsilon": 2, "max_changes": 2},
        count=LAST,
        minimum=10,
        partitions=2,
    )
    run = LiveRun.of(job, epochs=LAST, small={3})
    made = secured_job(secured_kafka, job)
    with made.cluster(OPERATOR) as operator:
        deployed = deploy(operator, job, deployment=ORIGINAL, now=own_milliseconds())
    assert deployed.fingerprint == run.job.fingerprint

    def left() -> Steps[None]:
        for role in KEPT:
            for partition in range(len(deployed.start_offsets[role])):
                for value in run.log.values(role, partition):
                    yield Append(role, partition, value)
        yield Flush()

    with made.cluster("admin") as admin:
        KafkaTransport(admin, ORIGIN).run(left())
        # A rejected record, so that there is a dead letter to read.
        admin.append(f"{ORIGIN}.{Role.DEAD_LETTERS}", b"broken")
    return SecuredJob(secured_kafka, deployed, made.users)


def test_operator_commands_work_with_operator_permissions(
    secured_kafka: SecuredKafka, dpstream: Commands, tmp_path: Path
) -> None:
    job_file = tmp_path / "job.yaml"
    job_file.write_text(JOB)
    secured = secured_job(secured_kafka, load_job(job_file))

    def give(role: str, *line: object) -> Result:
        said = dpstream(*secured.as_role(role, *line))
        assert said.code == 0, said.errors
        return said

    with secured.nothing_denied():
        give(OPERATOR, "deploy", job_file, "--dry-run")
        give(OPERATOR, "deploy", job_file)
        job_file.write_text(JOB.replace("partitions: 2", "partitions: 2, retention: 8d"))
        assert "7 d -> 8 d" in give(OPERATOR, "deploy", job_file).output
        with secured.cluster(OPERATOR) as operator:
            job = find_deployed(operator, WATCHED)
        south = report(secured, job, tmp_path)
        with secured.workers():
            requeue(secured, south, dpstream)
            # Wait until the worker has reported the open windows.
            wait_for(lambda: open_windows(secured, dpstream) == {3: ["south"]})
            over = give(OPERATOR, "drain", WATCHED, "--timeout", "5min").output
            assert "is drained: open epochs are published" in over
            with running(
                *secured.as_role(PAGE, "serve", WATCHED, "--port", "0"),
            ) as served:
                assert served.stdout is not None
                address = served.stdout.readline().rpartition(" ")[2].strip()
                wait_for(lambda: WATCHED in requested(address, "api/jobs"))
                viewer = asyncio.wait_for(seen_by_a_viewer(address), TIMEOUT)
                shown = asyncio.run(viewer)
            assert [each["stage"] for each in shown["stages"]] == list(job.route.stages)
            assert all(each["workers"] for each in shown["stages"])
        give(OPERATOR, "resume", WATCHED)
        # A supervisor starts its worker, which reads its earlier output, and exits.
        supervised = ("run", "publish", "--jobs", WATCHED, "--name", "again")
        with running(*secured.as_role("publish", *supervised)):
            wait_for(lambda: ("publish", "READ", Role.RESULTS) not in secured.unused())
            give(OPERATOR, "pause", WATCHED)
        assert [each["job"] for each in give(OPERATOR, "list", "--json").json].count(WATCHED) == 1
        retired = give(OPERATOR, "producers", WATCHED, "--retire", "south", "--json").json
        assert retired == {"producer": "south", "last_epoch": 3}
        registered = give(OPERATOR, "producers", WATCHED, "--json").json
        assert [each["name"] for each in registered] == ["north", "south"]
        give(OPERATOR, "budget", WATCHED, "--epsilon", "9", "--reason", "agreed", "--yes")
        give(OPERATOR, "ledger", WATCHED)
        give(OPERATOR, "ledger", "--verify")
        read_results(secured, dpstream, tmp_path)
        with secured.cluster("admin") as admin:
            assert {job.topic(role) for role in job.start_offsets} <= admin.topics()
            give(OPERATOR, "undeploy", WATCHED, "--delete-topics", "--yes")
            wait_for(lambda: not {job.topic(role) for role in Role} & admin.topics())
    # All permissions of an operator were used.
    assert {each for each in secured.unused() if not is_used_by_other_jobs(*each)} == set()


def is_used_by_other_jobs(role: str, operation: str, name: str) -> bool:
    """Return whether a permission is for events outside this job; see `is_for_another_day`."""
    return (
        # Workers poll settings periodically.
        operation == "DESCRIBE_CONFIGS"
        # Created by the first deployment on a cluster.
        or (operation == "CREATE" and name in (JOBS_TOPIC, LEDGER_TOPIC))
        # Only topics with settings that deploy has to change.
        or (role == OPERATOR and operation == "ALTER_CONFIGS")
        # These topics have no rejected records.
        or (role, operation, name) == ("aggregate", "WRITE", Role.DEAD_LETTERS)
        # Workers that start before windows are finalized do not compare.
        or (operation == "READ" and (role, name) in COMPARED)
        # These are for a restarted producer, and for other programs of an analyst.
        or (role == PRODUCER and operation == "READ" and name in (JOBS_TOPIC, Role.MANIFESTS))
        or (role, operation, name) == (ANALYST, "READ", Role.RESULTS)
    )


def report(secured: SecuredJob, job: DeployedJob, folder: Path) -> MemoryLog:
    """Report as both producers, the south without its registration, and send a malformed record.

    Return the south's records, including its registration.
    """
    users = {f"{number}": number % 2 for number in range(HALF)}
    with (
        secured.cluster(PRODUCER) as cluster,
        open_producer(cluster, job, folder / "north", name="north") as north,
    ):
        north.enroll([f"north{user}" for user in users])
        for epoch in (1, 2, 3):
            north.report(epoch, {f"north{user}": value for user, value in users.items()})
            north.close(epoch)
    south = MemoryLog()
    with Producer(job, None, name="south", transport=MemoryDriver(south)) as producer:
        producer.enroll([f"south{user}" for user in users])
        for epoch in (1, 2):
            producer.report(epoch, {f"south{user}": value for user, value in users.items()})
            producer.close(epoch)

    def sent() -> Steps[None]:
        for partition in range(job.topics.partitions):
            for value in south.values(Role.REPORTS, partition):
                yield Append(Role.REPORTS, partition, value)
        yield Append(Role.REPORTS, 0, b"broken")
        yield Flush()

    with secured.cluster(PRODUCER) as cluster:
        KafkaTransport(cluster, job.name).run(sent())
    return south


def requeue(secured: SecuredJob, south: MemoryLog, dpstream: Commands) -> None:
    """Inspect rejected records; requeue them once the south is registered, or discard them."""
    sent = sum(len(south.values(Role.REPORTS, partition)) for partition in range(2))
    secured.written(Role.DEAD_LETTERS, sent + 1)

    def dead_letters(*options: str) -> Any:
        return dpstream(*secured.as_role(OPERATOR, "dead-letters", WATCHED, *options, "--json"))

    assert len(dead_letters("--limit", "100").json) == sent + 1
    assert dead_letters("--redrive", "--dry-run").json["requeued"] == {}
    (registration,) = south.values(Role.PRODUCERS)
    with secured.cluster(PRODUCER) as cluster:
        cluster.append(f"{WATCHED}.{Role.PRODUCERS}", registration)
    done = dead_letters("--redrive").json
    assert (sum(done["requeued"].values()), sum(done["kept"].values())) == (sent, 1)
    secured.written(Role.ESTIMATES, 2)
    assert dead_letters("--discard").json == {"discarded": 1}


def open_windows(secured: SecuredJob, dpstream: Commands) -> dict[int, list[str]]:
    """Return, by epoch, the producers that open windows of the shuffler wait for."""
    said = dpstream(*secured.as_role(OPERATOR, "status", WATCHED, "--json"))
    workers = json.loads(said.output)["stages"][0]["workers"]
    return {
        window["epoch"]: window["waits_for"] for worker in workers for window in worker["windows"]
    }


def requested(address: str, path: str) -> str:
    with urlopen(address + path) as answer:
        return str(answer.read().decode())


async def seen_by_a_viewer(address: str) -> dict[str, Any]:
    async with aiohttp.ClientSession(address.rstrip("/")) as client:
        async with client.ws_connect(f"/ws?job={WATCHED}") as viewer:
            epochs = [(await messages(viewer, "epoch"))["epoch"] for _ in range(3)]
            pipeline = await messages(viewer, "pipeline")
        assert epochs == [1, 2, 3]
        for path in api_paths(WATCHED):
            async with client.get(path) as answer:
                # Some queries do not apply to every protocol.
                assert answer.status in (200, 400, 404), await answer.text()
                text = await answer.text(errors="replace")
                if path.endswith(("/pipeline", "/curve")) or "estimates" in path:
                    assert answer.status == 200, text
    return pipeline


def read_results(secured: SecuredJob, dpstream: Commands, folder: Path) -> None:
    def give(role: str, *line: object) -> Result:
        return dpstream(*secured.as_role(role, *line))

    published = give(ANALYST, "estimates", WATCHED, "--json").output.splitlines()
    found = {each["epoch"]: each["contributors"] for each in map(json.loads, published)}
    assert found == {1: 2 * HALF, 2: 2 * HALF, 3: HALF}
    kept = give(RECORDER, "record", WATCHED, "--output", folder / "kept", "--json").json
    assert (kept["last_epoch"], kept["reports_added"] > 0) == (3, True)
    assert give(RECORDER, "diff", WATCHED, WATCHED).code == 0
    assert give(RECORDER, "estimates", WATCHED, "--smoothed").code == 0
    assert give(PAGE, "status", WATCHED, "--json").output


def test_interrupted_replay_resumes(origin: SecuredJob, dpstream: Commands, tmp_path: Path) -> None:
    kafka = origin.kafka
    # The replay's operator can read only the replayed topics of that job.
    ann = kafka.users("ann")["ann"]
    for line in (
        ("--role", RECORDER, "--principal", f"{RECORDER}=User:ann"),
        ("--replay", AGAIN, "--principal", f"{OPERATOR}=User:ann"),
    ):
        added = dpstream(*origin.as_role("admin", "acl", ORIGIN, *line, "--apply"))
        assert added.code == 0, added.errors
    planned = planned_replay(origin, AGAIN)
    names = {role: f"{AGAIN}-{role}" for role in roles_of(planned) if role != OPERATOR}
    made = kafka.users(*names.values())
    users = {role: made[name] for role, name in names.items()} | {OPERATOR: ann}
    again = SecuredJob(kafka, planned, users)

    command = again.as_role(OPERATOR, "replay", ORIGIN, "--new-name", AGAIN, "--no-workers")
    with again.nothing_denied(), again.cluster("admin") as admin:
        shuffled, estimates = (f"{AGAIN}.{role}" for role in (Role.SHUFFLED, Role.ESTIMATES))
        # After the first epoch, it would wait for 15 minutes.
        with running(*command, "--speed", "0.001") as stopped:
            wait_for(lambda: shuffled in admin.topics() and any(admin.end_offsets(shuffled)))
            stopped.kill()
        done = dpstream(*command)
        assert done.code == 0, done.errors
        assert "continues: an unfinished replay of" in done.errors
        with again.workers():
            wait_for(lambda: admin.end_offsets(estimates) == [LAST])
            status = dpstream(*again.as_role(OPERATOR, "status", AGAIN, "--json"))
            assert status.json["replay_of"] == ORIGIN
        same = dpstream(*again.as_role(OPERATOR, "diff", ORIGIN, AGAIN))
        assert same.code == 0, same.output
        published = dpstream(*again.as_role(ANALYST, "estimates", AGAIN, "--json")).output
        assert len(published.splitlines()) == LAST
        looked = dpstream(*again.as_role(PAGE, "status", AGAIN, "--json"))
        assert looked.json["windows"]["released"] == LAST - 1
        kept = ("record", AGAIN, "--output", tmp_path / "kept", "--json")
        assert dpstream(*again.as_role(RECORDER, *kept)).json["complete"]
    assert {each for each in again.unused() if not is_for_other_replays(*each)} == set()

    # No user of the replay, including its operator, sees a report of the original job.
    theirs = [settings.name for settings in origin.job.topic_settings().values()]
    let, tried = again.let(theirs, {OPERATOR: may(origin.job, RECORDER)})
    assert let == []
    assert tried > 900
    with again.nothing_denied(), again.cluster("admin") as admin:
        ended = again.as_role(OPERATOR, "undeploy", AGAIN, "--delete-topics", "--yes")
        assert dpstream(*ended).code == 0
        wait_for(lambda: not {f"{AGAIN}.{role}" for role in Role} & admin.topics())
        assert f"{ORIGIN}.{Role.REPORTS}" in admin.topics()


def planned_replay(origin: SecuredJob, name: str) -> DeployedJob:
    """Return the planned replay, as ``dpstream acl --replay`` sees it."""
    assert isinstance(origin.job, DeployedJob)
    job = replayed_job(origin.job, name=name)
    return deploy_replay(origin.job, job, deployment=ORIGINAL, deployed_at=0)


def is_for_other_replays(role: str, operation: str, name: str) -> bool:
    """Return whether a permission is for events outside this replay."""
    return (
        is_for_another_day(role, operation, name)
        # A replay has no producers, and ledger entries are tested elsewhere.
        or (role in (PAGE, OPERATOR) and (operation, name) == ("READ", Role.PRODUCERS))
        or (role, operation, name) == (PAGE, "READ", LEDGER_TOPIC)
        # Partials are copied only if the replay starts later. Other programs read results.
        or (role, operation, name) == (OPERATOR, "WRITE", Role.PARTIALS)
        or (role, operation, name) == (ANALYST, "READ", Role.RESULTS)
    )


# Commands, and the roles (except stages) that can run them. Draining is not tried as a producer,
# which has write access to the whole topic of producers.
COMMANDS = {
    ("status", ORIGIN): {PAGE, OPERATOR},
    ("producers", ORIGIN): {PRODUCER, PAGE, OPERATOR},
    ("dead-letters", ORIGIN): {OPERATOR},
    ("dead-letters", ORIGIN, "--redrive"): {OPERATOR},
    ("dead-letters", ORIGIN, "--discard"): {OPERATOR},
    ("drain", ORIGIN, "--timeout", "1s"): {OPERATOR, PRODUCER},
    ("pause", ORIGIN): {OPERATOR},
    ("undeploy", ORIGIN, "--delete-topics", "--yes"): {OPERATOR},
    ("budget", ORIGIN, "--epsilon", "99", "--reason", "mine", "--yes"): {OPERATOR},
    ("ledger", ORIGIN): {PAGE, OPERATOR},
    ("ledger", "--verify"): {PAGE, OPERATOR},
    ("estimates", ORIGIN): {PAGE, ANALYST, RECORDER, OPERATOR},
    ("estimates", ORIGIN, "--smoothed"): {PAGE, RECORDER, OPERATOR},
    ("diff", ORIGIN, ORIGIN): {PAGE, RECORDER, OPERATOR},
    ("record", ORIGIN, "--output", "kept"): {RECORDER},
    ("replay", ORIGIN, "--in-memory"): {RECORDER},
    ("replay", ORIGIN, "--new-name", STOLEN, "--no-workers"): set(),
}


def test_denied_commands_report_the_missing_permission(
    origin: SecuredJob, dpstream: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asking = (PRODUCER, PAGE, ANALYST, RECORDER, OPERATOR)
    with origin.cluster("admin") as admin:

        def state() -> dict[str, list[int]]:
            names = [each for each in admin.topics() if each.startswith(("dpstream.", ORIGIN))]
            return {each: admin.end_offsets(each) for each in names}

        before = state()
        wrong = []
        for line, allowed in COMMANDS.items():
            for role in asking:
                if role not in allowed:
                    said = dpstream(*origin.as_role(role, *line))
                    if not reports_missing_permission(origin, role, said):
                        wrong.append(f"{role}: {' '.join(line)}: {said}")
        assert not wrong, "\n".join(wrong)
        # The rejected attempts had no effect.
        assert state() == before
    # Read-only commands succeed for the roles that need them.
    for line, allowed in COMMANDS.items():
        if line[0] in ("status", "producers", "ledger", "estimates", "diff"):
            for role in allowed:
                said = dpstream(*origin.as_role(role, *line))
                assert "does not allow" not in said.errors, (role, line)


def reports_missing_permission(origin: SecuredJob, role: str, said: Result) -> bool:
    """Return whether a rejection mentions a role that has the missing permission."""
    found = _REJECTED.search(said.errors)
    if said.code != 1 or found is None:
        return False
    principal, action, kind, name, job, replay, wanted = found.groups()
    resource, operation = Resource(ResourceKind(kind), name), _OPERATIONS[action.partition(" ")[0]]
    requested = origin.job if replay is None else planned_replay(origin, STOLEN)
    return (
        principal == origin.principal(role)
        and job in (ORIGIN, "JOB")
        and wanted in roles_of(requested)
        and allows(requested, wanted, resource, operation)
        and not allows(origin.job, role, resource, operation)
    )


def allows(job: Job, role: str, resource: Resource, operation: Operation) -> bool:
    return any(
        held == operation
        and each.kind is resource.kind
        and (resource.name.startswith(each.name) if each.prefixed else resource.name == each.name)
        for each, held in may(job, role)
    )


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
}
"""Job file of each kind of job, and the party that runs each stage with keys."""


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
        producer.enroll(list(users))
        for epoch in epochs:
            producer.report(epoch, users)
            producer.close(epoch)
    return notices


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
        assert len(list(analyst.read(f"{name}.{Role.RESULTS}"))) == EPOCHS
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
    job_file.write_text(SERIES.replace("NAME", job_name))
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
