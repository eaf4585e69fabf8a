"""Test ``deploy`` over a running name, ``--dry-run``, ``undeploy`` and the phases of a job."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.jobs.deployed_job import DeployedJob, Origin
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.jobs.jobs_topic import JobsTopic
from dpstream.pipeline.jobs.listed_jobs import RECEIPT_KEY
from dpstream.pipeline.ledger.chain import Chain
from dpstream.pipeline.ledger.entries import Draft, EntryKind
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import Manifest, WindowStatus, encode_manifest
from dpstream.topics.names import JOBS_TOPIC, LEDGER_TOPIC, Role, TopicSettings
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster
from tests.support.small_run import job_text, write_changes

WEEK = 7 * 24 * 3_600_000


def jobs(cluster: MemoryCluster) -> JobsTopic:
    state = JobsTopic()
    for record in cluster.records[JOBS_TOPIC, 0]:
        state.apply(record.key, record.value)
    return state


def deployed(cluster: MemoryCluster, name: str = "small") -> DeployedJob:
    return jobs(cluster).jobs[name]


def retention(cluster: MemoryCluster, role: Role) -> int:
    return int(cluster.settings[f"small.{role}"].configs["retention.ms"])


def snapshot(cluster: MemoryCluster) -> tuple[dict[Any, list[LogRecord]], dict[str, TopicSettings]]:
    held = {place: list(records) for place, records in cluster.records.items() if records}
    return held, dict(cluster.settings)


def publish(cluster: MemoryCluster, epochs: int) -> None:
    job = deployed(cluster)
    for epoch in range(1, epochs + 1):
        record = EstimateRecord(job.deployment, epoch, WindowStatus.EMPTY, 5, 0, 0, None, {})
        for _ in range(2):
            cluster.append(job.topic(Role.ESTIMATES), record.to_bytes())


OPERATORS = (
    "shuffle: {grace: 5min}\ntopics: {partitions: 2, retention: 14d}\nbudget: {epsilon: 9}\n"
)


def with_operators_keys(path: Path, keys: str = OPERATORS, **changes: Any) -> Path:
    path.write_text(job_text(**changes).replace("topics: {partitions: 2}\n", "") + keys)
    return path


def test_deploy_changes_operational_settings_in_place(
    dpstream: Commands, cluster: MemoryCluster, job_file: Path
) -> None:
    assert dpstream("deploy", job_file).code == 0
    before, charges = deployed(cluster), jobs(cluster).charges
    result = dpstream("deploy", with_operators_keys(job_file))
    assert result.code == 0, result.errors
    assert f"small continues as deployment {before.deployment.hex()[:8]}" in result.output
    for line in (
        "shuffle.grace: 1 min -> 5 min",
        "topics.retention: 7 d -> 14 d",
        "budget.epsilon: left out -> 9",
        "topic small.reports: retention: 7 d -> 14 d",
        "topic small.dead-letters: retention: 7 d -> 14 d",
        "supervised workers restart automatically",
    ):
        assert line in result.output, line
    after = deployed(cluster)
    assert (after.deployment, after.fingerprint) == (before.deployment, before.fingerprint)
    assert (after.start_offsets, after.constants) == (before.start_offsets, before.constants)
    assert (after.shuffle.grace, after.topics.retention) == (300.0, 14 * 86_400.0)
    assert after.budget is not None
    assert retention(cluster, Role.REPORTS) == retention(cluster, Role.SHUFFLED) == 2 * WEEK
    assert retention(cluster, Role.DEAD_LETTERS) == 2 * WEEK
    assert retention(cluster, Role.MANIFESTS) == retention(cluster, Role.ESTIMATES) == -1
    assert jobs(cluster).charges == charges, "no second charge"


@pytest.mark.parametrize(
    ("changes", "keys", "difference"),
    [
        ({"epochs": 13}, OPERATORS, "epochs.count: 12 -> 13"),
        ({}, "shuffle: {grace: 5min, order: random}\ntopics: {partitions: 2}\n", "shuffle.order"),
        ({}, "topics: {partitions: 3}\n", "topics.partitions: 2 -> 3"),
        ({}, "population: others\ntopics: {partitions: 2}\n", "population: left out"),
    ],
)
def test_deploy_rejects_non_operational_changes_without_writing(
    dpstream: Commands,
    cluster: MemoryCluster,
    job_file: Path,
    changes: dict[str, Any],
    keys: str,
    difference: str,
) -> None:
    assert dpstream("deploy", job_file).code == 0
    before = snapshot(cluster)
    with_operators_keys(job_file, keys, **changes)
    for arguments in ((), ("--dry-run",)):
        result = dpstream("deploy", job_file, *arguments)
        assert result.code == 1
        assert result.errors.count("\n") == 1
        assert difference in result.errors
        assert snapshot(cluster) == before


def test_deploy_rejects_a_budget_below_earlier_charges(
    dpstream: Commands, cluster: MemoryCluster, job_file: Path
) -> None:
    assert dpstream("deploy", job_file).code == 0
    for epsilon, code in ((1.9, 1), (2, 0)):
        keys = f"topics: {{partitions: 2}}\nbudget: {{epsilon: {epsilon}}}\n"
        result = dpstream("deploy", with_operators_keys(job_file, keys))
        assert result.code == code
        assert (result.code == 0) or (
            "if the users agree, raise the budget: --set-budget"
        ) in result.errors
    assert deployed(cluster).budget is not None


def renewing(path: Path, budget: float | None) -> Path:
    keys = "topics: {partitions: 2}\npopulation: people\n"
    declared = "" if budget is None else f"budget: {{epsilon: {budget}}}\n"
    return with_operators_keys(path, keys + declared, more=", renew: true")


def charged(cluster: MemoryCluster) -> list[int | None]:
    return [charge.horizons for charge in jobs(cluster).charges]


def order_of_last_writes(cluster: MemoryCluster) -> list[str]:
    keys = [record.key or b"" for record in cluster.records[JOBS_TOPIC, 0]]
    return [key.decode().partition("/")[0] for key in keys if not key.startswith(RECEIPT_KEY)][-2:]


def decide(cluster: MemoryCluster, epoch: int) -> None:
    job = deployed(cluster)
    manifest = Manifest(
        job.fingerprint, job.deployment, epoch, WindowStatus.EMPTY, 0, 0, epoch, (), (), 0, 0, 5
    )
    cluster.append(job.topic(Role.MANIFESTS), encode_manifest(manifest))


def test_deploy_adjusts_the_number_of_horizons_to_a_new_budget(
    dpstream: Commands, cluster: MemoryCluster, job_file: Path
) -> None:
    assert dpstream("deploy", renewing(job_file, 6)).code == 0
    assert (deployed(cluster).horizons, charged(cluster)) == (3, [3])
    result = dpstream("deploy", renewing(job_file, 11), "--set-budget", "people=11", "--yes")
    assert result.code == 0, result.errors
    assert "now 5 horizons of 12 epochs" in result.output
    assert (deployed(cluster).horizons, charged(cluster)) == (5, [5])
    assert "WARNING" not in result.errors
    result = dpstream("deploy", renewing(job_file, 4), "--json")
    assert result.code == 0
    assert "continue beyond 2 horizons, although no further horizons are charged" in result.errors
    assert (deployed(cluster).horizons, charged(cluster)) == (2, [2])

    assert dpstream("deploy", renewing(job_file, None)).code == 0
    assert (deployed(cluster).horizons, charged(cluster)) == (2, [2]), "what was declared binds"
    result = dpstream("deploy", job_file, "--set-budget", "people=none", "--yes")
    assert result.code == 0, result.errors
    assert (
        "is a recurring job without a budget, so population people is charged without limit"
    ) in result.errors
    assert (deployed(cluster).horizons, charged(cluster)) == (None, [None])
    assert order_of_last_writes(cluster) == ["charge", "small"], "charged before it may cost more"
    decide(cluster, 25)
    result = dpstream("deploy", renewing(job_file, 4))
    assert result.code == 1
    assert "if the users agree, raise the budget: --set-budget" in (result.errors)
    assert (deployed(cluster).horizons, charged(cluster)) == (None, [None])
    assert dpstream("deploy", renewing(job_file, 7)).code == 0
    assert (deployed(cluster).horizons, charged(cluster)) == (3, [3])
    assert order_of_last_writes(cluster) == ["small", "charge"], "charged until it costs less"


@pytest.mark.parametrize(("budget", "horizons"), [(4, 2), (8, 4)], ids=["lowered", "raised"])
@pytest.mark.parametrize("writes", range(7))
def test_interrupted_deploy_never_undercharges_and_can_be_repeated(
    dpstream: Commands,
    cluster: MemoryCluster,
    job_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    budget: int,
    horizons: int,
    writes: int,
) -> None:
    assert dpstream("deploy", renewing(job_file, 6)).code == 0
    left, append = [writes], cluster.append

    def few(topic: str, value: bytes | None, key: bytes | None = None) -> int:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return append(topic, value, key=key)

    again = ("deploy", renewing(job_file, budget), "--set-budget", f"people={budget}", "--yes")
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "append", few)
        assert dpstream(*again).code == 130
    (for_horizons,) = charged(cluster)
    assert (for_horizons or 0) >= (deployed(cluster).horizons or 0), "never too little"
    assert dpstream(*again).code == 0
    assert (deployed(cluster).horizons, charged(cluster)) == (horizons, [horizons])


@pytest.mark.parametrize("running", [False, True])
def test_concurrent_deploys_never_exceed_the_budget(
    dpstream: Commands,
    cluster: MemoryCluster,
    job_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    running: bool,
) -> None:
    """The other deployment's charge arrives after planning, and before this one's charge."""
    if running:
        assert dpstream("deploy", renewing(job_file, 3)).code == 0
    append, others = cluster.append, [Charge("people", "other", "ab" * 16, 5.0, 0.0, 5)]

    def race(topic: str, value: bytes | None, key: bytes | None = None) -> int:
        while others:
            entry = Draft(EntryKind.CHARGE, 5, (others.pop(),))
            ledger = Chain()
            for record in cluster.records[LEDGER_TOPIC, 0]:
                ledger.apply(record.offset, record.value or b"")
            append(LEDGER_TOPIC, entry.under(ledger.head, nonce="other", software="0"))
        return append(topic, value, key=key)

    monkeypatch.setattr(cluster, "append", race)
    result = dpstream("deploy", renewing(job_file, 8))
    assert (result.code, result.errors.count("\n")) == (1, 1)
    assert "if the users agree, raise the budget: --set-budget" in result.errors
    total = sum(charge.epsilon * (charge.horizons or 1) for charge in jobs(cluster).charges)
    assert total == pytest.approx(2.0 * running)
    assert ("small" in jobs(cluster).jobs) == running


def test_dry_run_prints_the_plan_and_writes_nothing(
    dpstream: Commands, cluster: MemoryCluster, job_file: Path, home: Path
) -> None:
    job_file.write_text(job_text() + "population: people\nbudget: {epsilon: 5}\n")
    other = Charge("people", "other", "ab" * 16, 1.5, 0.0, 5)
    cluster.append(JOBS_TOPIC, other.to_bytes(), key=other.key)
    cluster.partitions[JOBS_TOPIC] = 1
    before = snapshot(cluster)
    result = dpstream("deploy", job_file, "--dry-run")
    assert result.code == 0, result.errors
    text = " ".join(result.output.split())
    assert "a deployment would start" in text
    assert "reports 2 7 d to be created" in text
    assert "epsilon 2 by this deployment, 1.5 by others; the budget is 5, 1.5 of it remain" in text
    body = dpstream("deploy", job_file, "--dry-run", "--json").json
    assert (body["step"], body["rejection"], body["difference"]) == ("start", None, [])
    said_by = body["budget"]["epsilon"].pop("declared_by")
    assert (said_by["job"], said_by["operator"]) == ("small", False)
    assert body["budget"]["epsilon"] == {
        "allowed_before": None,
        "allowed": 5.0,
        "charged": 2.0,
        "charged_by_others": 1.5,
        "remaining": 1.5,
    }
    assert {topic["action"] for topic in body["topics"]} == {"create"}
    assert snapshot(cluster) == before
    assert not home.exists()


def test_dry_run_predicts_rejection_and_exit_code(
    dpstream: Commands, cluster: MemoryCluster, job_file: Path
) -> None:
    def expect(reason: str) -> None:
        before = snapshot(cluster)
        dry, real = dpstream("deploy", job_file, "--dry-run"), dpstream("deploy", job_file)
        assert (dry.code, dry.errors) == (real.code, real.errors) == (1, dry.errors)
        assert reason in dry.errors
        assert "it would be rejected; nothing would be done" in dry.output
        body = dpstream("deploy", job_file, "--dry-run", "--json")
        assert json.loads(body.output)["rejection"] == dry.errors.strip().removeprefix("error: ")
        assert snapshot(cluster) == before

    job_file.write_text(job_text() + "budget: {epsilon: 1}\n")
    expect("if the users agree, raise the budget: --set-budget")
    odd = TopicSettings("small.reports", 3, 1, {"retention.ms": "5"})
    cluster.create_topics([odd])
    job_file.write_text(job_text())
    expect("topic small.reports exists with 3 partitions; the job requires")
    cluster.delete_topics(["small.reports"])
    assert dpstream("deploy", job_file).code == 0
    job_file.write_text(job_text(epochs=13))
    expect("reports have another meaning (epochs.count: 12 -> 13)")
    output = dpstream("deploy", job_file, "--dry-run").output
    assert "small (already deployed): future_rand, 12 epochs" in output
    assert "privacy of the running job" in output


def test_dry_run_without_a_broker_assumes_an_empty_cluster(
    dpstream: Commands, job_file: Path, home: Path
) -> None:
    result = dpstream("deploy", job_file, "--dry-run")
    assert result.code == 0
    assert "no local Kafka is running; deploy would start one" in result.errors
    assert "a deployment would start" in result.output
    assert not home.exists()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def typing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda text: monkeypatch.setattr("sys.stdin", Terminal(text))


def test_undeploy_deletes_topics_only_when_confirmed(
    dpstream: Commands, cluster: MemoryCluster, job_file: Path, typing: Callable[[str], None]
) -> None:
    assert dpstream("deploy", job_file).code == 0
    publish(cluster, 7)
    typing("n\n")
    result = dpstream("undeploy", "small", "--delete-topics")
    assert result.code == 1
    assert "its topics are permanently deleted, with 7 epochs of estimates" in result.errors
    assert "nothing is changed; small is still deployed" in result.errors
    assert list(jobs(cluster).jobs) == ["small"]
    assert "small.estimates" in cluster.partitions
    typing("y\n")
    result = dpstream("undeploy", "small", "--delete-topics")
    assert result.code == 0
    assert "its topics are deleted, with 7 epochs of estimates" in result.output
    assert not jobs(cluster).jobs
    assert list(cluster.partitions) == [JOBS_TOPIC, LEDGER_TOPIC]


@pytest.mark.parametrize("command", [("deploy", "--replace"), ("undeploy",)])
def test_undeploy_without_a_terminal_requires_the_yes_option(
    dpstream: Commands,
    cluster: MemoryCluster,
    job_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert dpstream("deploy", job_file).code == 0
    before = len(cluster.records[JOBS_TOPIC, 0])
    subcommand, *options = command
    result = dpstream(subcommand, job_file, *options)
    assert (result.code, result.output, result.errors.count("\n")) == (2, "", 1)
    assert result.errors.endswith("confirmation requires a terminal: add --yes\n")
    assert len(cluster.records[JOBS_TOPIC, 0]) == before
    assert dpstream(subcommand, job_file, *options, "--yes").code == 0


def test_pause_and_resume_are_reported_and_listed(
    dpstream: Commands, cluster: MemoryCluster, job_file: Path
) -> None:
    assert dpstream("deploy", job_file).code == 0

    def phase() -> Phase:
        (listed,) = dpstream("list", "--json").json
        row = dpstream("list").output.splitlines()[1].split()
        assert listed["phase"] in row
        return Phase(listed["phase"])

    assert phase() is Phase.RUNNING
    assert "small is already running" in dpstream("resume", "small").output
    result = dpstream("pause", job_file)
    assert result.code == 0
    assert "supervisors stop its workers" in result.output
    assert "are stored for at most 7 d. To continue: 'dpstream resume small'" in result.output
    assert phase() is Phase.PAUSED
    records = len(cluster.records[JOBS_TOPIC, 0])
    assert "small is already paused" in dpstream("pause", "small").output
    assert len(cluster.records[JOBS_TOPIC, 0]) == records
    result = dpstream("resume", "small", "--json")
    assert (result.json["phase"], result.json["before"]) == ("running", "paused")
    assert phase() is Phase.RUNNING

    dpstream("pause", "small")
    assert dpstream("deploy", job_file, "--replace", "--yes").code == 0
    assert phase() is Phase.RUNNING, "a phase says nothing of a later deployment"
    dpstream("pause", "small")
    assert dpstream("deploy", with_operators_keys(job_file)).code == 0
    assert phase() is Phase.PAUSED, "the deployment keeps its phase"
    assert dpstream("pause", "other").code == 1


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        ("future_rand\nparameters: {epsilon: 2, max_changes: 2}", "17 records"),
        ("shuffled_counts\nparameters: {epsilon: 1, delta: 1e-6}", "records"),
    ],
)
def test_drain_reports_progress_without_secret_counts(
    dpstream: Commands, cluster: MemoryCluster, job_file: Path, protocol: str, message: str
) -> None:
    job_file.write_text(
        f"name: small\nprotocol: {protocol}\nepochs: {{count: 4}}\n"
        "shuffle: {minimum: 1000}\ntopics: {partitions: 2}\n"
    )
    assert dpstream("deploy", job_file).code == 0
    for _ in range(17):
        cluster.append("small.reports", b"report")
    drained = dpstream("drain", "small", "--timeout", "1ms")
    assert drained.code == 1
    assert drained.errors.startswith(
        f"{message} to process in the reports topics; the drain waits for a worker of shuffle,"
    )


def test_replay_job_accepts_no_reports_and_cannot_be_drained(
    dpstream: Commands, cluster: MemoryCluster, job_file: Path, tmp_path: Path
) -> None:
    assert dpstream("deploy", job_file).code == 0
    job = deployed(cluster)
    replay = job.model_copy(
        update={"replay_of": Origin.model_validate({"job": "original", "deployment": "00" * 16})}
    )
    cluster.append(JOBS_TOPIC, replay.to_bytes(), key=b"small")
    before = snapshot(cluster)
    changes = write_changes(tmp_path / "changes.csv")
    for arguments in (
        ("run", "shuffle", "small"),
        ("produce", "small", "--input", changes),
        ("drain", "small"),
    ):
        result = dpstream(*arguments)
        assert result.code == 1, arguments
        assert "its windows are already finalized" in result.errors
    result = dpstream("deploy", with_operators_keys(job_file))
    assert result.code == 1
    assert "is already deployed as a replay of original" in result.errors
    assert snapshot(cluster) == before


def test_deploy_rejects_a_name_used_by_another_version(
    dpstream: Commands, cluster: MemoryCluster, job_file: Path
) -> None:
    assert dpstream("deploy", job_file).code == 0
    later = json.loads(deployed(cluster).to_bytes()) | {"version": 2}
    cluster.append(JOBS_TOPIC, json.dumps(later).encode(), key=b"small")
    result = dpstream("deploy", job_file)
    assert result.code == 1
    assert "was deployed by an incompatible version of dpstream" in result.errors
    assert "job small was deployed by an incompatible version" in dpstream("list").errors
    for command in ("undeploy", "estimates", "pause"):
        result = dpstream(command, "small")
        assert result.code == 1
        assert (
            "error: job small was deployed by an incompatible version of dpstream" in result.errors
        )
    assert dpstream("deploy", job_file, "--replace", "--yes").code == 0


def test_deploy_removes_size_limits_from_its_topics(
    dpstream: Commands, cluster: MemoryCluster, job_file: Path
) -> None:
    """The topics were created with a size limit, which would delete even recent decisions."""
    assert dpstream("deploy", job_file).code == 0
    assert dpstream("undeploy", "small", "--yes").code == 0
    limited = {f"small.{role}": {"retention.bytes": "1000"} for role in (Role.MANIFESTS, "reports")}
    cluster.alter_topics(limited)
    result = dpstream("deploy", job_file, "--dry-run")
    assert "keeps records regardless of their total size" in result.output, result
    assert dpstream("deploy", job_file, "--yes").code == 0
    for name, topic in cluster.settings.items():
        expected = None if topic.configs["cleanup.policy"] == "compact" else "-1"
        assert topic.configs.get("retention.bytes") == expected, name
