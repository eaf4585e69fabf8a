"""Test that a recorder of a running job resumes after it is killed."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dpstream.pipeline.connect import open_producer
from dpstream.pipeline.devices.change_log import load_change_log
from dpstream.pipeline.devices.producer_input import produce_change_log
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.recording.recording_tables import published_estimate
from dpstream.pipeline.recording.recordings import Recording
from dpstream.topics.names import Role
from tests.support.commands import Commands
from tests.support.processes import start_command
from tests.support.small_run import EPOCHS, USERS, job_text, write_changes

# Far longer than any expected wait.
TIMEOUT = 120.0


@pytest.mark.verify
def test_killed_recorder_resumes_and_records_everything_published(
    bootstrap_servers: str,
    job_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    job, kept = tmp_path / "job.yaml", tmp_path / "kept"
    job.write_text(job_text(job_name))
    changes = write_changes(tmp_path / "changes.csv")
    dpstream = Commands(capsys, ("--bootstrap-servers", bootstrap_servers))
    assert dpstream("deploy", job).code == 0

    def started(*arguments: object) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return start_command(*arguments, servers=bootstrap_servers, **pipes)

    def said(process: subprocess.Popen[str]) -> str:
        output, errors = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 0, errors
        return output

    workers = [started("run", stage, job_name) for stage in ("shuffle", "aggregate", "publish")]
    record = ("record", job_name, "--output", kept, "--follow", "--json")
    recorder = started(*record)

    def kill_recorder(epoch: int) -> None:
        if epoch != EPOCHS // 2:
            return
        # It commits after seconds or at the job's end; the file being written is not listed yet.
        while recorder.poll() is None and not list(kept.glob("estimates-*")):
            pass
        recorder.kill()
        recorder.communicate(timeout=TIMEOUT)

    try:
        with Cluster(Connection((bootstrap_servers,))) as cluster:
            deployed = find_deployed(cluster, job_name)
            with open_producer(cluster, deployed, tmp_path / "producer", name="p") as producer:
                log = load_change_log(changes, last_epoch=EPOCHS)
                produce_change_log(producer, log, on_epoch=kill_recorder)
        assert recorder.returncode == -signal.SIGKILL
        assert (Recording.open(kept).index.last_epoch or 0) <= EPOCHS // 2
        recorder = started(*record)
        body = json.loads(said(recorder))
        published = dpstream("estimates", job_name, "--json").output.splitlines()
    finally:
        for process in (*workers, recorder):
            process.kill()
            process.communicate()
    assert body["complete"] is True
    assert body["last_epoch"] == EPOCHS

    checked = dpstream_locally(capsys, "record", "--verify", kept, "--deep", "--json")
    assert checked["intact"] is True
    assert checked["missing"] == []
    recording = Recording.open(kept)
    found = [json.loads(row.estimate)["value"] for row in recording.estimates()]
    assert found == [json.loads(line)["estimate"]["value"] for line in published]
    assert len(found) == EPOCHS
    assert all(row.population == USERS for row in recording.manifests())
    check_against_topic(bootstrap_servers, job_name, recording)


def dpstream_locally(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, object]:
    body: dict[str, object] = Commands(capsys)(*arguments).json
    return body


def check_against_topic(servers: str, name: str, recording: Recording) -> None:
    """Check that the recorded estimates are identical to the topic's records."""
    with Cluster(Connection((servers,))) as cluster:
        job = find_deployed(cluster, name)
        values = [record.value for record in cluster.read(job.topic(Role.ESTIMATES))]
    rows = recording.estimates()
    assert [published_estimate(row, job.deployment).to_bytes() for row in rows] == values
