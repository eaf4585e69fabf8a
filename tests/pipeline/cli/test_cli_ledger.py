"""Test ledger output, budget changes, and the findings of --verify."""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.jobs_topic import JobsTopic
from dpstream.pipeline.jobs.replays import replayed_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import read_jobs
from dpstream.pipeline.ledger.entries import Draft, EntryKind
from dpstream.pipeline.ledger.ledger_topic import read_spending, write_entries
from dpstream.pipeline.ledger.spending import Spending
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.recording.replay.on_cluster import start_replay
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.randomizers.accounting.whole_streams import epsilon_of_streams
from dpstream.randomizers.guarantee import rounded_up
from dpstream.topics.manifests import Manifest, WindowStatus, encode_manifest
from dpstream.topics.names import JOBS_TOPIC, LEDGER_TOPIC, Role
from tests.support.budgeted_jobs import job_about
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster


def begin(cluster: MemoryCluster, name: str, budget: float | None = None) -> DeployedJob:
    job = job_about(name, budget)
    identity = name.encode().ljust(16, b".")
    return deploy(cast(Cluster, cluster), job, deployment=identity, now=5)


def decide(cluster: MemoryCluster, job: DeployedJob, epoch: int, devices: int) -> None:
    window_status = (
        WindowStatus.RELEASED
        if devices >= 100
        else WindowStatus.SUPPRESSED
        if devices
        else WindowStatus.EMPTY
    )
    populations = (devices,) if devices else ()
    manifest = Manifest(
        job.fingerprint,
        job.deployment,
        epoch,
        window_status,
        0,
        0,
        1,
        (True,) * len(populations),
        populations,
        devices,
        devices,
        5,
    )
    cluster.append(job.topic(Role.MANIFESTS), encode_manifest(manifest))


def publish(
    cluster: MemoryCluster, job: DeployedJob, epoch: int, window_status: WindowStatus
) -> None:
    devices = 0 if window_status is WindowStatus.EMPTY else 200
    guarantee = job.guarantee_at(epoch, 1).to_json()
    record = EstimateRecord(job.deployment, epoch, window_status, 5, devices, 200, None, guarantee)
    cluster.append(job.topic(Role.ESTIMATES), record.to_bytes())


def test_ledger_lists_charges_and_releases(dpstream: Commands, cluster: MemoryCluster) -> None:
    first = begin(cluster, "first", 2.5)
    for epoch, devices in enumerate((0, 20, 150, 180), 1):
        decide(cluster, first, epoch, devices)
        window_status = (
            WindowStatus.RELEASED
            if devices >= 100
            else WindowStatus.SUPPRESSED
            if devices
            else WindowStatus.EMPTY
        )
        publish(cluster, first, epoch, window_status)
    begin(cluster, "second")
    result = dpstream("ledger")
    assert result.code == 0, result.errors
    text = " ".join(result.output.split())
    name = first.deployment.hex()[:8]
    assert f"charge students 1 0 future_rand; job first, deployment {name}: deployed" in text
    assert "budget students 2.5 0 job first declared it" in text
    assert f"first {name} 2 released, 1 suppressed, 1 empty 150 to 180 epsilon 1 for a" in text
    assert "added epsilon 2, delta 0, by 2 deployments" in text
    assert "budget epsilon 2.5; 0.5 remaining; job first declared it" in text
    body = dpstream("ledger", "first", "--json").json
    (charge,) = body["charges"]
    assert charge["released"]["windows"] == {"released": 2, "suppressed": 1, "empty": 1}
    assert charge["released"]["contributors"] == [150, 180]
    assert charge["released"]["without_manifest"] == []
    assert body["populations"][0]["budget"]["epsilon"]["remaining"] == 0.5
    assert [entry["kind"] for entry in body["entries"]] == ["charge", "charge"]
    assert [entry["protocol"] for entry in body["entries"]] == ["future_rand"] * 2
    assert dpstream("ledger", "--population", "students", "--json").json["charges"][1:]
    assert dpstream("ledger", "--population", "others").output.startswith("no charges")
    assert "--population NAME" in dpstream("ledger", "students").output


def test_ledger_reports_a_charge_without_a_deployment(
    dpstream: Commands, cluster: MemoryCluster, tmp_path: Path
) -> None:
    """A process killed between the two writes charges too much, never too little."""
    append = cluster.append

    def dies(topic: str, value: bytes | None, key: bytes | None = None) -> int:
        if topic == JOBS_TOPIC:
            raise KeyboardInterrupt
        return append(topic, value, key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "append", dies)
        with pytest.raises(KeyboardInterrupt):
            begin(cluster, "first", 2)
    assert "job first, deployment" in dpstream("ledger").output
    assert "charged, never deployed" in dpstream("ledger").output
    assert dpstream("ledger", "--verify").code == 0
    begin(cluster, "second")
    result = dpstream("deploy", job_file(tmp_path), "--json", "--yes")
    assert "if the users agree, raise the budget: --set-budget" in result.errors


def job_file(folder: Path) -> Path:
    path = folder / "third.yaml"
    path.write_text(
        "name: third\nprotocol: future_rand\nparameters: {epsilon: 1, max_changes: 2}\n"
        "epochs: {count: 8}\npopulation: students\n"
    )
    return path


def test_budget_change_requires_a_reason(
    dpstream: Commands, cluster: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(cluster, "first", 1)
    path = job_file(tmp_path)
    assert "budget of population students is epsilon 1" in dpstream("deploy", path).errors
    assert "1; 0 remaining; job first declared it" in dpstream("budget", "students").output
    change = ("budget", "students", "--epsilon", "2", "--reason", "ticket 12")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    result = dpstream(*change)
    assert (result.code, len(read_spending(cast(Cluster, cluster)).chain.entries)) == (2, 1)
    assert "add --yes" in result.errors
    result = dpstream(*change, "--yes")
    assert result.code == 0, result.errors
    assert "the budget of population students is epsilon 2, delta 0, for all jobs" in result.output
    entry = dpstream("ledger", "--json").json["budgets"][-1]
    assert "an operator set it with 'dpstream budget' (" in entry["by"]
    assert ": ticket 12)" in entry["by"]
    assert dpstream("deploy", path, "--yes").code == 0
    rejected = dpstream("deploy", path, "--replace", "--yes")
    assert "as an operator set it with 'dpstream budget'" in rejected.errors
    lifted = ("budget", "students", "--remove", "--reason", "these people have left", "--yes")
    assert "is removed, for all jobs: recorded" in dpstream(*lifted).output
    assert (
        "none declared: any job may charge this population" in dpstream("budget", "students").output
    )
    assert dpstream("deploy", path, "--replace", "--yes").code == 0
    assert dpstream("ledger", "--verify").code == 0
    declared = JobsTopic()
    for record in cluster.records[JOBS_TOPIC, 0]:
        declared.apply(record.key, record.value)
    assert [each.operator for each in declared.declared] == [False, True, True], "the copy has all"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epsilon", "2"], "--reason is required"),
        (["--remove"], "--reason is required"),
        (["--epsilon", "0", "--reason", "a"], "--epsilon: got 0"),
        (["--epsilon", "nan", "--reason", "a"], "--epsilon: got nan"),
        (["--epsilon", "1", "--delta", "1", "--reason", "a"], "--delta: got 1"),
        (["--remove", "--epsilon", "1", "--reason", "a"], "--remove cannot be combined"),
        (["--remove", "--per", "P1Y", "--reason", "a"], "--remove cannot be combined"),
        (["--per", "P1Y"], "--per requires --epsilon"),
        (["--epsilon", "1", "--per", "often", "--reason", "a"], "--per: "),
        (["--epsilon", "1", "--per", "P1Y", "--compose", "--reason", "a"], "--per excludes"),
        (["--epsilon", "1", "--compose", "--reason", "a", "--yes"], "--compose requires a delta"),
    ],
)
def test_budget_rejects_invalid_limits(
    dpstream: Commands, cluster: MemoryCluster, options: list[str], message: str
) -> None:
    result = dpstream("budget", "students", *options)
    assert (result.code, result.errors.count("\n")) == (2, 1)
    assert message in result.errors
    assert not cluster.records


def test_budget_with_composition_admits_many_small_charges(
    dpstream: Commands, cluster: MemoryCluster, tmp_path: Path
) -> None:
    """A hundred charges of epsilon 1/4 in a budget of 17: their sum would be 25."""
    people = "students"
    result = dpstream(
        *("budget", people, "--epsilon", "17", "--delta", "1e-6", "--compose"),
        *("--reason", "many weeks", "--yes"),
    )
    assert result.code == 0, result.errors
    for number in range(100):
        other = Charge(people, "weekly", f"{number:032x}", 0.25, 0.0, 5)
        cluster.append(JOBS_TOPIC, other.to_bytes(), key=other.key)
    plan = dpstream("deploy", job_file(tmp_path), "--dry-run")
    assert plan.code == 0, plan.errors
    assert "composed by the budget's filter" in plan.output
    assert dpstream("deploy", job_file(tmp_path), "--yes").code == 0
    body = dpstream("budget", people, "--json").json
    assert body["charged"]["epsilon"] == 26
    assert body["composed"]["epsilon"] < body["filtered"]["epsilon"] < 17
    assert body["budget"]["epsilon"]["remaining"] == pytest.approx(17 - body["filtered"]["epsilon"])
    for number in range(100, 140):
        other = Charge(people, "weekly", f"{number:032x}", 0.25, 0.0, 5)
        cluster.append(JOBS_TOPIC, other.to_bytes(), key=other.key)
    rejected = dpstream("deploy", job_file(tmp_path), "--replace", "--yes")
    assert "and this one would charge 1 (composed: " in rejected.errors
    assert dpstream("ledger", "--verify").code == 0


def _charging(state: Spending, charge: Charge) -> Draft | None:
    charged = charge.deployment in state.written_charges
    return None if charged else Draft(EntryKind.CHARGE, charge.at, (charge,))


def test_verify_detects_an_uncharged_job(dpstream: Commands, cluster: MemoryCluster) -> None:
    begin(cluster, "first")
    stray = deploy_job(job_about("stray"), deployed_at=5, deployment=b"s" * 16)
    cluster.append(JOBS_TOPIC, stray.to_bytes(), key=b"stray")
    result = dpstream("ledger", "--verify")
    assert result.code == 1
    assert (
        "job stray runs as deployment 73737373, which is not charged to any population"
    ) in result.output
    less = replace(Charge.of(stray), epsilon=0.5)
    write_entries(cast(Cluster, cluster), lambda state: _charging(state, less))
    assert "and costs its users more than they are charged" in dpstream("ledger", "--verify").output


def test_replay_is_listed_in_the_ledger_without_a_charge(
    dpstream: Commands, cluster: MemoryCluster
) -> None:
    first = begin(cluster, "first")
    again = start_replay(
        cast(Cluster, cluster), first, replayed_job(first), deployment=b"r" * 16, now=5
    )
    decide(cluster, again, 1, 150)
    publish(cluster, again, 1, WindowStatus.RELEASED)
    body = dpstream("ledger", "--json").json
    assert [each["kind"] for each in body["entries"]] == ["charge", "replay"]
    assert [each["epsilon"] for each in body["charges"]] == [1]
    assert "a replay of 66697273: no charge" in dpstream("ledger").output
    assert dpstream("ledger", "--verify").code == 0
    assert dpstream("undeploy", again.name, "--yes").code == 0
    assert dpstream("ledger", "--verify").code == 0


def test_verify_detects_an_estimate_without_a_manifest(
    dpstream: Commands, cluster: MemoryCluster
) -> None:
    job = begin(cluster, "first")
    decide(cluster, job, 1, 150)
    publish(cluster, job, 1, WindowStatus.RELEASED)
    decide(cluster, job, 2, 20)
    publish(cluster, job, 2, WindowStatus.SUPPRESSED)
    assert dpstream("ledger", "--verify").code == 0
    decide(cluster, job, 3, 20)
    publish(cluster, job, 3, WindowStatus.RELEASED)
    publish(cluster, job, 4, WindowStatus.EMPTY)
    result = dpstream("ledger", "--verify")
    assert result.code == 1
    assert (
        "epoch 3, at offset 2 of its topic, is published, but its manifest states suppressed"
    ) in result.output
    assert "epoch 4, at offset 3 of its topic, has no manifest" in result.output
    stray = deploy_job(job_about("first"), deployed_at=5, deployment=b"s" * 16)
    decide(cluster, stray, 1, 150)
    result = dpstream("ledger", "--verify")
    assert (
        "deployment 73737373 of job first has published but is not charged to any" in result.output
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [("cleanup.policy", "compact"), ("retention.ms", "604800000"), ("retention.bytes", "1000")],
)
def test_verify_detects_retention_and_compaction_of_the_ledger_topic(
    dpstream: Commands, cluster: MemoryCluster, key: str, value: str
) -> None:
    begin(cluster, "first")
    found = cluster.settings[LEDGER_TOPIC]
    assert found.configs[key] != value
    cluster.settings[LEDGER_TOPIC] = replace(found, configs={**found.configs, key: value})
    result = dpstream("ledger", "--verify")
    assert result.code == 1
    assert f"topic dpstream.ledger has {key}={value}" in result.output


def test_deleted_ledger_records_block_deploy_until_accepted(
    dpstream: Commands, cluster: MemoryCluster, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        begin(cluster, name, 9)
    cluster.delete_below(LEDGER_TOPIC, 1)
    assert "offset 1: records before it no longer exist" in dpstream("ledger", "--verify").output
    path = job_file(tmp_path)
    result = dpstream("deploy", path, "--yes")
    assert (result.code, result.errors.count("\n")) == (1, 1)
    assert "dpstream.ledger is damaged (" in result.errors
    assert "--accept-loss REASON" in result.errors
    assert (
        "), so no charge was written and no budget was set. To find the damage: 'dpstream"
    ) in dpstream("deploy", path, "--dry-run").errors
    assert "third" not in read_jobs(cast(Cluster, cluster)).jobs
    cluster.delete_below(LEDGER_TOPIC, 2)
    assert "the records before offset 2 no longer exist" in dpstream("ledger", "--verify").output
    assert dpstream("ledger", "--accept-loss", " ", "--yes").code == 2
    reopened = dpstream("ledger", "--accept-loss", "a disk was lost", "--yes")
    assert reopened.code == 0, reopened.errors
    assert "a disk was lost" in reopened.output
    assert dpstream("deploy", path, "--yes").code == 0
    result = dpstream("ledger", "--verify", "--json")
    assert result.code == 1, "the error is still reported"
    body = json.loads(result.output)
    assert [each["epsilon"] for each in body["charges"]] == [1, 1, 1]
    assert {each["epsilon"] for each in body["budgets"]} == {9}
    kinds = [each["kind"] for each in body["entries"]]
    assert kinds == ["reopened", "carried", "charge"]


def test_budget_for_a_year_admits_a_recurring_job_forever(
    dpstream: Commands, cluster: MemoryCluster, tmp_path: Path
) -> None:
    """A year overlaps two horizons of 52 weeks; a second job would exceed the year's budget."""
    for name, epsilon in (("weekly", 2), ("another", 1)):
        (tmp_path / f"{name}.yaml").write_text(
            f"name: {name}\nprotocol: sampled_response\nparameters: {{epsilon: {epsilon}}}\n"
            "epochs: {count: 52, renew: true, start: 2024-01-01, length: P1W}\n"
            "population: students\nbudget: {epsilon: 4, per: P1Y}\n"
        )
    weekly, another = str(tmp_path / "weekly.yaml"), str(tmp_path / "another.yaml")
    planned = dpstream("plan", weekly).output
    assert "epsilon 4 in any year: this job counts as 4, for 2 horizons" in planned
    assert "its guarantee is for one horizon, not epsilon 2 for any 52 consecutive" in planned
    once = tmp_path / "once.yaml"
    once.write_text((tmp_path / "weekly.yaml").read_text().replace(", renew: true", ""))
    assert "epsilon 4 in any year: this job counts as 2; earlier" in dpstream("plan", once).output
    shown = dpstream("deploy", weekly, "--dry-run").output
    assert "epsilon 2 for any 52 consecutive epochs, forever" in shown
    assert "the budget is epsilon 4 in any year: charges count as 4; 0 remaining" in shown
    result = dpstream("deploy", weekly, "--yes")
    assert result.code == 0, result.errors
    assert "unlimited horizons of 52 epochs" in result.output
    rejected = dpstream("deploy", another, "--yes")
    assert rejected.code != 0
    assert "epsilon 1 in each of the 2 horizons that can count toward a period" in rejected.errors
    shown = dpstream("budget", "students").output
    assert "unlimited, by 1 deployment" in shown
    assert "epsilon 4 in any year" in shown
    body = dpstream("budget", "students", "--json").json
    assert (body["budget"], body["charged"]["epsilon"]) == (None, None)
    (period,) = body["periods"]
    assert period[0] == "epsilon 4 in any year"
    raised = ("--epsilon", "9", "--per", "P1Y", "--reason", "they were asked", "--yes")
    assert dpstream("budget", "students", *raised).code == 0
    third = tmp_path / "third.yaml"
    third.write_text((tmp_path / "another.yaml").read_text().replace("another", "third"))
    third.write_text(third.read_text().replace("budget: {epsilon: 4", "budget: {epsilon: 9"))
    asked = dpstream("deploy", str(third)).errors
    assert "charged again: epsilon without limit in total; epsilon 9 in any year: charges" in asked


ENROLLED = (300, 200, 100)


def begin_stream(cluster: MemoryCluster, **keys: Any) -> DeployedJob:
    job = job_about("first", **{"epochs": {"count": 8}, **keys})
    return deploy(cast(Cluster, cluster), job, deployment=secrets.token_bytes(16), now=5)


def decide_stream(
    cluster: MemoryCluster,
    job: DeployedJob,
    epoch: int,
    inside: Sequence[bool],
    *,
    absent: int = 0,
    enrolled: Sequence[int] = ENROLLED,
    window_status: WindowStatus = WindowStatus.RELEASED,
) -> None:
    populations = tuple(n for n, is_in in zip(enrolled, inside, strict=True) if is_in)
    manifest = Manifest(
        job.fingerprint, job.deployment, epoch, window_status, 0, 0, 1, tuple(inside),
        populations, sum(populations) - absent, sum(enrolled), 5,
    )  # fmt: skip
    cluster.append(job.topic(Role.MANIFESTS), encode_manifest(manifest))


def streams(dpstream: Commands) -> list[dict[str, Any]]:
    (charge,) = dpstream("ledger", "first", "--json").json["charges"]
    found: list[dict[str, Any]] = charge["released"]["streams"]
    return found


def test_devices_present_in_all_windows_have_a_smaller_privacy_loss(
    dpstream: Commands, cluster: MemoryCluster
) -> None:
    """The second producer misses one window; ten unidentified devices miss another."""
    job = begin_stream(cluster)
    decide_stream(cluster, job, 1, (True, True, True))
    decide_stream(cluster, job, 2, (True, False, True))
    decide_stream(cluster, job, 3, (True, True, True), absent=10)
    amplified = epsilon_of_streams(1.0, 390, 1e-6)
    assert streams(dpstream) == [
        {
            "horizon": 1,
            "windows": 3,
            "devices": 390,
            "producers": 2,
            "epsilon": amplified,
            "delta": 1e-6,
            "other_producers": 1,
            "other_epsilon": 1.0,
        }
    ]
    assert amplified < 0.4
    result = dpstream("ledger", "first")
    assert result.code == 0
    text = " ".join(result.output.split())
    name = f"first {job.deployment.hex()[:8]}"
    assert f"{name} 3 390 2 {rounded_up(amplified)} 1e-06 1 1 " in text
    assert "the shuffler shuffles" in text
    assert "added epsilon 1, delta 0, by 1 deployment" in text, "the full charge"


def test_continuous_participation_is_determined_per_horizon(
    dpstream: Commands, cluster: MemoryCluster
) -> None:
    job = begin_stream(cluster, epochs={"count": 2, "renew": True}, budget=9)
    for epoch in (1, 2):
        decide_stream(cluster, job, epoch, (True, True, True))
    decide_stream(cluster, job, 3, (True, True, False))
    decide_stream(cluster, job, 3, (False, True, False))  # The first manifest of an epoch counts.
    found = streams(dpstream)
    assert [(each["horizon"], each["devices"], each["producers"]) for each in found] == [
        (1, 600, 3),
        (2, 500, 2),
    ]
    assert f"first {job.deployment.hex()[:8]}, horizon 2 1 500 2" in " ".join(
        dpstream("ledger").output.split()
    )
