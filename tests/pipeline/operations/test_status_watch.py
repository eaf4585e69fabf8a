"""Test ``dpstream status``, once and repeatedly."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from kafka.errors import KafkaConnectionError

from dpstream.pipeline.cli.status import Statuses, watch_status
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.jobs.routes import Route
from dpstream.pipeline.kafka.cluster import AccessError
from dpstream.pipeline.kafka.deployed_jobs import DeploymentError
from dpstream.pipeline.operations.status.facts import (
    JobStatus,
    OpenWindowStatus,
    StageStatus,
    WorkerStatus,
)
from dpstream.topics.names import JOBS_TOPIC
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster, use_memory_cluster
from tests.support.small_run import job_text

NOW = 1_700_000_000_000


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MemoryCluster:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    return use_memory_cluster(monkeypatch)


def test_status_without_jobs_suggests_the_deploy_command(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    dpstream = Commands(capsys)
    result = dpstream("status")
    assert (result.code, result.output) == (
        0,
        "no job is deployed. To deploy one: 'dpstream deploy JOBFILE'\n",
    )
    assert JOBS_TOPIC not in cluster.topics()
    assert dpstream("status", "--json").json == []
    for command in (("status",), ("dead-letters",), ("producers",), ("estimates",), ("undeploy",)):
        named = dpstream(*command, "students")
        assert (named.code, named.output) == (1, "")
        assert "job students is not deployed (deployed: none)" in named.errors
        assert JOBS_TOPIC not in cluster.topics()


def test_unreadable_job_is_reported_and_gives_exit_code_1(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    dpstream = Commands(capsys)
    path = tmp_path / "small.yaml"
    path.write_text(job_text())
    assert dpstream("deploy", path).code == 0
    cluster.append(JOBS_TOPIC, b'{"version": 7}', key=b"future")
    result = dpstream("status")
    assert result.code == 1
    assert "job future was deployed by an incompatible version of dpstream" in result.output
    result = dpstream("status", "--json")
    assert (result.code, "job future was deployed by an incompatible version" in result.errors) == (
        1,
        True,
    )
    assert [each["job"] for each in json.loads(result.output)] == ["small"]


def test_watch_option_is_rejected_with_json(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    rejected = Commands(capsys)("status", "--watch", "--json")
    assert (rejected.code, rejected.output) == (2, "")
    assert "remove --watch and repeat the command" in rejected.errors


def status_of(issues: Sequence[str] = (), phase: Phase = Phase.RUNNING) -> JobStatus:
    windows = (
        OpenWindowStatus(5, None, ("gateway-2", "gateway-3"), devices=1_234, grace_left=12.5),
        OpenWindowStatus(6, None, (), devices=0),
    )
    worker = WorkerStatus("shuffle", "w1", 0.5, (0, 1), None, None, windows, open_windows=9)
    shuffle = StageStatus("shuffle", (worker,), None, 61.0, epoch=4)
    names = [stage for stage in Route().stages if stage != "shuffle"]
    others = tuple(StageStatus(stage, (), 0, None) for stage in names)
    return JobStatus(
        job="small",
        deployment="00" * 16,
        deployed_at=NOW,
        last_epoch=12,
        published=None,
        stages=(shuffle, *others),
        dead_letters={"enrollment": 2},
        issues=tuple(issues),
        phase=phase,
        windows={"released": 3, "suppressed": 1, "empty": 0},
        producers=3,
        redriven=7,
        notes=("something is good to know",),
    )


def watched(
    pictures: Sequence[JobStatus | Exception], capsys: pytest.CaptureFixture[str]
) -> list[str]:
    shown: list[str] = []
    left = iter(pictures)

    def read() -> Statuses:
        picture = next(left)
        if isinstance(picture, Exception):
            raise picture
        return Statuses((picture,))

    def sleep(seconds: float) -> None:
        assert seconds == 2.0
        shown.append(capsys.readouterr().out)
        if len(shown) == len(pictures):
            raise KeyboardInterrupt

    watch_status(read, 2.0, sleep)
    return shown


def test_watch_keeps_its_screen_during_an_outage(capsys: pytest.CaptureFixture[str]) -> None:
    away = KafkaConnectionError("no broker listens")
    before, during, after = watched([status_of(["fire"]), away, status_of()], capsys)
    assert "issue: fire" in before
    assert "still trying" not in before
    assert "issue: fire" in during
    title, *_, last = during.splitlines()
    assert re.fullmatch(
        r"Kafka does not answer since \d\d:\d\d:\d\d; the last known status follows", title
    )
    assert "no broker listens; still trying" in last
    assert "no issues" in after
    assert "still trying" not in after


def test_watch_shows_the_last_state_of_a_removed_job(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, gone = watched([status_of(), DeploymentError("job small is not deployed")], capsys)
    assert gone.startswith("out of date since")
    assert "job small is not deployed; still trying" in gone
    with pytest.raises(DeploymentError):
        watched([DeploymentError("job small is not deployed")], capsys)


def test_jobs_without_permission_are_reported_and_other_jobs_are_shown(
    cluster: MemoryCluster,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dpstream = Commands(capsys)
    for name in ("first", "hidden", "last"):
        path = tmp_path / f"{name}.yaml"
        path.write_text(job_text().replace("name: small", f"name: {name}"))
        assert dpstream("deploy", path).code == 0

    secret = {"hidden"}
    counts, exists = cluster.partition_counts, cluster.exists

    def visible() -> dict[str, int]:
        return {name: n for name, n in counts().items() if name.split(".")[0] not in secret}

    def exists_or_rejected(topic: str) -> bool:
        if topic.split(".")[0] in secret:
            raise AccessError("User:ann", "see", "topic", topic)
        return exists(topic)

    monkeypatch.setattr(cluster, "partition_counts", visible)
    monkeypatch.setattr(cluster, "exists", exists_or_rejected)
    result = dpstream("status")
    assert "first, running" in result.output
    assert "last, running" in result.output
    output = " ".join(result.output.split())
    assert "job hidden is not shown: Kafka does not allow User:ann to see topic hidden." in output
    assert "dpstream acl hidden --role page --principal page=User:ann --apply" in output
    read = dpstream("status", "--json")
    assert [each["job"] for each in json.loads(read.output)] == ["first", "last"]
    assert "job hidden is not shown" in " ".join(read.errors.split())
    # Stages that were never started require action; hidden jobs do not.
    assert result.code == read.code == 1
    assert dpstream("status", "hidden").code != 0
    secret.update(("first", "last"))
    assert "does not allow" in dpstream("status").errors
