"""Test commands on a real broker over the life of a job, from deployment to its end."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.state import producer_folder
from dpstream.topics.names import Role, topic_name
from tests.support.commands import Commands, Result
from tests.support.small_run import EPOCHS, USERS, job_text, write_changes

# Far longer than any expected wait.
TIMEOUT = 60.0


def wait_for(look: Callable[[], Result], enough: Callable[[Result], bool]) -> Result:
    deadline = time.monotonic() + TIMEOUT
    while not enough(found := look()):
        assert time.monotonic() < deadline, found
    return found


def test_commands_cover_the_lifecycle_of_a_job(
    dpstream: Commands,
    start: Callable[..., subprocess.Popen[str]],
    bootstrap_servers: str,
    job_name: str,
    tmp_path: Path,
) -> None:
    job_file = tmp_path / "job.yaml"
    job_file.write_text(job_text(job_name))
    changes = write_changes(tmp_path / "changes.csv")

    deployed = dpstream("deploy", job_file, "--json").json
    assert deployed["bootstrap_servers"] == [bootstrap_servers]
    (listed,) = (job for job in dpstream("list", "--json").json if job["job"] == job_name)
    assert listed["deployment"] == deployed["deployment"]
    assert job_name in dpstream("list").output

    again = dpstream("deploy", job_file)
    assert (again.code, again.errors) == (0, "")
    assert "is already deployed with these settings: nothing to do" in again.output

    alone = dpstream("status", job_file)
    assert alone.code == 1
    assert alone.output.count("issue: No worker of stage") == 3
    assert "none of the 12 epochs is published yet" in alone.output

    follower = start("estimates", job_name, "--follow", "--format", "json")
    for stage in ("shuffle", "aggregate", "publish"):
        start("run", stage, job_name, "--name", "w1")
    produced = dpstream("produce", job_name, "--input", changes, "--name", "gateway", "--json")
    assert produced.json["users"] == USERS
    assert (produced.json["closed_before"], produced.json["closed_epoch"]) == (0, EPOCHS)
    folder = producer_folder(job_name, "gateway") / deployed["deployment"]
    assert str(folder) in produced.errors
    assert folder.is_dir()

    repeated = dpstream("produce", job_name, "--input", changes, "--name", "gateway")
    assert repeated.code == 0
    assert "no epoch was closed: all requested epochs were already closed" in repeated.output

    lines, _ = follower.communicate(timeout=TIMEOUT)
    assert follower.returncode == 0
    followed = [json.loads(line) for line in lines.splitlines()]
    assert [record["epoch"] for record in followed] == list(range(1, EPOCHS + 1))
    assert {record["population"] for record in followed} == {USERS}

    check_estimates(dpstream, job_name, followed)
    # A worker sends a heartbeat every second, and might have just started.
    well = wait_for(lambda: dpstream("status", job_name), lambda said: said.output.count("w1") == 3)
    assert well.code == 0, well.output
    assert "epoch 12 of 12" in well.output
    assert "no issues" in well.output
    assert max(map(len, well.output.splitlines())) <= 80

    check_dead_letters(dpstream, bootstrap_servers, job_name, tmp_path)
    check_producers(dpstream, job_name)

    gone = dpstream("undeploy", job_name, "--delete-topics", "--yes")
    assert gone.code == 0
    assert job_name not in dpstream("list").output
    late = dpstream("estimates", job_name)
    assert (late.code, late.output) == (1, "")
    assert f"job {job_name} is not deployed" in late.errors
    with Cluster(Connection((bootstrap_servers,))) as cluster:
        assert not {topic_name(job_name, role) for role in Role} & cluster.topics()


def check_estimates(dpstream: Commands, job_name: str, followed: list[dict[str, Any]]) -> None:
    said = dpstream("estimates", job_name, "--json")
    assert [json.loads(line) for line in said.output.splitlines()] == followed
    lines = dpstream("estimates", job_name, "--format", "csv").output.splitlines()
    assert lines[0].startswith("epoch,start,end,estimate,standard_error,ci95_low,ci95_high")
    assert [float(row["estimate"]) for row in csv.DictReader(lines)] == values_of(followed)
    assert len(dpstream("estimates", job_name).output.splitlines()) == EPOCHS + 1


def values_of(records: list[dict[str, Any]]) -> list[float]:
    return [record["estimate"]["value"] for record in records]


def check_dead_letters(
    dpstream: Commands, bootstrap_servers: str, job_name: str, folder: Path
) -> None:
    assert dpstream("dead-letters", job_name).output == "no dead letters\n"
    unreadable = [b"no record at all", b"nor this"]
    with Cluster(Connection((bootstrap_servers,))) as cluster:
        reports = topic_name(job_name, Role.REPORTS)
        offsets = [cluster.append(reports, value) for value in unreadable]

    wait_for(lambda: dpstream("dead-letters", job_name, "--json"), lambda said: len(said.json) == 2)
    (last,) = dpstream("dead-letters", job_name, "--json", "--limit", 1).json
    assert (
        last.items()
        >= {
            "topic": reports,
            "partition": 0,
            "offset": offsets[1],
            "reason": "unreadable",
            "size": len(unreadable[1]),
        }.items()
    )
    said = dpstream("dead-letters", job_name, "--save", folder / "letters")
    assert "no record at all" not in said.output + said.errors
    assert [
        (folder / "letters" / f"{reports}-0-{offset}.bin").read_bytes() for offset in offsets
    ] == unreadable

    status = dpstream("status", job_name, "--json")
    assert status.code == 1
    assert json.loads(status.output)["dead_letters"] == {"unreadable": 2}
    assert "2 dead letters" in json.loads(status.output)["issues"][0]


def check_producers(dpstream: Commands, job_name: str) -> None:
    (gateway,) = dpstream("producers", job_name, "--json").json
    assert gateway == {
        "name": "gateway",
        "state": "reporting",
        "first_epoch": 1,
        "last_epoch": None,
        "last_in": EPOCHS,
        "devices": USERS,
    }
    unknown = dpstream("producers", job_name, "--retire", "gate")
    assert unknown.code == 1
    assert "no producer gate" in unknown.errors
    retired = dpstream("producers", job_name, "--retire", "gateway", "--json").json
    assert retired == {"producer": "gateway", "last_epoch": EPOCHS}
    assert "left" in dpstream("producers", job_name).output


def test_redeployed_job_closes_epochs_by_the_clock_with_live_input(
    dpstream: Commands,
    start: Callable[..., subprocess.Popen[str]],
    job_name: str,
    tmp_path: Path,
) -> None:
    job_file = tmp_path / "job.yaml"
    changes = write_changes(tmp_path / "changes.csv")
    job_file.write_text(job_text(job_name))
    first = dpstream("deploy", job_file, "--json").json
    assert dpstream("produce", job_name, "--input", changes, "--json").json["closed_before"] == 0

    # One week of epochs of one second.
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    more = f", start: {midnight:%Y-%m-%d}, length: PT1S"
    job_file.write_text(job_text(job_name, epochs=604_800, more=more))
    rejected = dpstream("deploy", job_file)
    assert rejected.code == 1
    assert "but its reports have another meaning (epochs.count: 12 -> 604800; " in rejected.errors
    second = dpstream("deploy", job_file, "--replace", "--yes", "--json").json
    assert second["deployment"] != first["deployment"]

    running = 1 + (datetime.now(UTC) - midnight).total_seconds()
    user_list = tmp_path / "user list"
    user_list.write_text("ann\nbob\n")
    source = start("produce", job_name, "--input", "-", "--users", user_list)
    assert source.stdin is not None
    assert source.stderr is not None
    source.stdin.write("user,value\nann,1\n")
    source.stdin.flush()
    values = producer_folder(job_name, "producer") / second["deployment"] / "values.json"
    for line in source.stderr:
        if "is closed" in line and values.exists():
            break
    source.send_signal(signal.SIGINT)
    assert source.wait(TIMEOUT) == 130

    (producer,) = dpstream("producers", job_name, "--json").json
    now = 1 + (datetime.now(UTC) - midnight).total_seconds()
    assert int(running) <= producer["first_epoch"] <= now
    assert json.loads(values.read_text()) == {"ann": 1}
