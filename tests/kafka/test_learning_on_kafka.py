"""Test a learning job on a real broker: kills do not affect the model."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpstream.pipeline.cli.output import number
from dpstream.pipeline.kafka.cluster import Cluster, KafkaTransport
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.topic_reader import TopicReader
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.protocols.protocol import LearningAggregator
from dpstream.pipeline.results.follow import EstimateReader
from dpstream.pipeline.stages.epoch_log import EpochLog
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.models import ModelRecord
from dpstream.topics.names import Role
from tests.support.commands import Commands
from tests.support.new_jobs import new_job

GROUPS = 2
USERS = {"north": 60, "south": 41}
SHORT = (6, {2: "publish", 4: "north"})
LONG = (16, {2: "publish", 4: "north", 6: "aggregate", 9: "shuffle", 12: "south"})
"""Number of epochs, and the process to kill once an epoch is published."""


def write_examples(folder: Path, name: str, users: int) -> Path:
    """Write examples of two classes, on either side of 0."""
    rng = np.random.default_rng(users)
    path = folder / f"{name}.csv"
    lines = ["user,class,x,one"]
    for user in range(users):
        class_ = user % 2
        lines.append(f"{name}{user},{class_},{0.5 * (2 * class_ - 1) + rng.normal(0, 0.1):.4f},1")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.verify
@pytest.mark.parametrize(("epochs", "killed"), [SHORT, LONG])
def test_model_depends_only_on_reports_even_if_processes_are_killed(
    epochs: int,
    killed: dict[int, str],
    bootstrap_servers: str,
    job_name: str,
    start: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPSTREAM_BOOTSTRAP_SERVERS", bootstrap_servers)
    inputs = {name: write_examples(tmp_path, name, users) for name, users in USERS.items()}
    job = new_job(
        job_name,
        "ldp_sgd",
        {
            "epsilon": 6,
            "delta": 1e-3,
            "features": 2,
            "classes": 2,
            "rate": 4,
            "groups": GROUPS,
            "test_set": {"file": "north.csv"},
        },
        tmp_path,
        epochs={"count": epochs},
        shuffle={"minimum": 20, "producers": len(USERS), "grace": "1h"},
        topics={"partitions": 2},
    )
    commands = {
        **{
            stage: ("run", stage, job_name, "--name", "worker")
            for stage in ("shuffle", "aggregate", "publish")
        },
        **{
            name: ("produce", job_name, "--name", name, "--input", str(path))
            for name, path in inputs.items()
        },
    }
    with Cluster(Connection((bootstrap_servers,))) as cluster:
        deployed = deploy(cluster, job, deployment=secrets.token_bytes(16), now=0)
        processes = {name: start(*command) for name, command in commands.items()}
        records = []
        for record in EstimateReader(cluster, deployed).follow(lambda notice: None):
            records.append(record)
            if (name := killed.get(record.epoch)) is not None:
                processes[name].kill()
                processes[name].wait()
                processes[name] = start(*commands[name])
        models: dict[int, bytes] = {}
        for each in TopicReader(cluster, deployed, Role.MODEL).read():
            model = ModelRecord.from_bytes(each.value)
            models.setdefault(model.epoch, model.model.tobytes())
        transport = KafkaTransport(cluster, job_name)
        aggregator = deployed.aggregator()
        assert isinstance(aggregator, LearningAggregator)
        for decided in EpochLog(deployed).read(transport.run):
            assert decided.payload is not None
            of_epoch = deployed.aggregator_from_bytes(decided.payload)
            assert isinstance(of_epoch, LearningAggregator)
            aggregator.merge(of_epoch)
            assert models[decided.epoch] == aggregator.model(decided.epoch).tobytes()
        assert sorted(models) == [record.epoch for record in records] == [*range(1, epochs + 1)]
    assert {record.window_status for record in records} == {WindowStatus.RELEASED}
    assert {record.population for record in records} == {sum(USERS.values())}
    for first, second in zip(records[::2], records[1::2], strict=True):
        # Each user contributes once, in one of two steps.
        assert first.contributors + second.contributors == sum(USERS.values())
    # Accuracy after so few steps is random, and is tested without a broker.
    assert records[-1].summary.value is not None
    printed = Commands(capsys)("estimates", job_name, "--follow").output.splitlines()
    assert len(printed) == 1 + epochs
    assert printed[-1].split()[:2] == [str(epochs), number(records[-1].summary.value)]
