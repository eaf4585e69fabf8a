"""Test ``dpstream produce --from-topic`` on an in-memory cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpstream.pipeline.actions import LogRecord
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster
from tests.support.small_run import EPOCHS, job_text


def put(cluster: MemoryCluster, *events: object, topic: str = "events", partition: int = 0) -> None:
    cluster.partitions[topic] = 2
    held = cluster.records[topic, partition]
    for event in events:
        held.append(LogRecord(len(held), json.dumps(event).encode(), 1_709_251_200_000))


def deploy(dpstream: Commands, tmp_path: Path, keys: str = "", calendar: str = "") -> None:
    path = tmp_path / "small.yaml"
    path.write_text(job_text(more=calendar) + keys)
    result = dpstream("deploy", path)
    assert result.code == 0, result.errors


def test_topic_input_resumes_after_the_last_epoch(
    dpstream: Commands, cluster: MemoryCluster, tmp_path: Path
) -> None:
    deploy(dpstream, tmp_path, "input: {columns: {user: who.id, value: on, epoch: week}}\n")
    put(cluster, {"who": {"id": "ann"}, "week": 1, "on": True}, {"who": 3})
    put(cluster, {"who": {"id": "bob"}, "week": 99, "on": True}, partition=1)
    result = dpstream("produce", "small", "--from-topic", "events", "--to-epoch", 3)
    assert result.code == 0, result.errors
    assert result.output == "2 users, epochs 1 to 3: reports drawn and sent\n"
    for warning in (
        "events of cluster memory:offset 1: missing key 'who.id': '{\"who\": 3}' (partition 0); sk",
        "epoch 3 is closed",
        f"events of cluster memory: 1 event after epoch {EPOCHS}: not used",
        "events of cluster memory: 1 bad event skipped",
    ):
        assert warning in result.errors
    put(cluster, {"who": {"id": "ann"}, "week": 4, "on": False})
    result = dpstream("produce", "small", "--from-topic", "events", "--to-epoch", 99, "--json")
    assert (result.code, result.json["closed_before"], result.json["closed_epoch"]) == (
        0,
        3,
        EPOCHS,
    )
    result = dpstream("produce", "small", "--from-topic", "events", "--to-epoch", 99)
    assert result.output == "no epoch was closed: all requested epochs were already closed\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "specify exactly one of --input FILE, --input - and --from-topic TOPIC"),
        (("--input", "x", "--input-kafka-config", "y"), "require --from-topic"),
        (
            ("--from-topic", "nowhere", "--to-epoch", 1),
            "topic nowhere does not exist on memory:9092",
        ),
        (("--from-topic", "events"), "closes epochs by the clock: set epochs.start"),
    ],
)
def test_topic_options_are_validated(
    dpstream: Commands,
    cluster: MemoryCluster,
    tmp_path: Path,
    options: tuple[object, ...],
    message: str,
) -> None:
    deploy(dpstream, tmp_path)
    put(cluster, {"user": "ann", "epoch": 1, "value": 1})
    result = dpstream("produce", "small", *options)
    assert (result.code != 0, result.output) == (True, "")
    assert message in result.errors
