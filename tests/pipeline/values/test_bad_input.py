"""Test bad input on the command line: one-line errors with the problem and the fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster

PARAMETERS = {
    "future_rand": "epsilon: 2, max_changes: 2",
    "hadamard_values": "epsilon: 2, max_changes: 2, domain: [walk, bus, car], boosted: 2",
}
VALUES = {"future_rand": ("0", "1"), "hadamard_values": ("walk", "bus")}
EPOCHS = 8

every_protocol = pytest.mark.parametrize("protocol", PARAMETERS)


def job_text(protocol: str, *, epochs: int | str = EPOCHS, **changed: object) -> str:
    parameters = PARAMETERS[protocol]
    lines = []
    for key, value in changed.items():
        before = next((each for each in parameters.split(", ") if each.startswith(f"{key}:")), "")
        if before:
            parameters = parameters.replace(before, f"{key}: {value}")
        elif key == "estimator":
            parameters += f", {key}: {value}"
        else:
            lines.append(f"{key}: {value}\n")
    return (
        f"name: job\nprotocol: {protocol}\nparameters: {{{parameters}}}\n"
        f"epochs: {{count: {epochs}}}\n" + "".join(lines)
    )


def change_log(path: Path, protocol: str, *, often: int, users: int = 150) -> Path:
    """Write a change log: all users start alike, and `often` of them alternate at every epoch."""
    first, second = VALUES[protocol]
    rows = [f"user{user},1,{first}" for user in range(users)]
    for user in range(often):
        rows += [f"user{user},{epoch},{(first, second)[epoch % 2]}" for epoch in range(2, 9)]
    path.write_text("user,epoch,value\n" + "\n".join(rows) + "\n")
    return path


@pytest.fixture
def dpstream(
    capsys: pytest.CaptureFixture[str],
    cluster: MemoryCluster,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Commands:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    return Commands(capsys)


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    return tmp_path / "job.yaml"


@every_protocol
def test_number_of_exhausted_devices_is_shown_only_locally(
    dpstream: Commands, cluster: MemoryCluster, job_file: Path, tmp_path: Path, protocol: str
) -> None:
    changes = change_log(tmp_path / "changes.csv", protocol, often=150)
    job_file.write_text(job_text(protocol))
    dpstream("deploy", job_file)
    simulated = dpstream("simulate", job_file, "--input", changes, "--seed", 1)
    assert "devices that dropped changes" in simulated.output

    said = dpstream("produce", job_file, "--input", changes, "--name", "one")
    assert said.code == 0
    exhausted = " ".join(said.output.split())
    assert "exhausted: their values changed more often than the job tracks" in exhausted
    assert "deploy a job with a larger parameters.max_changes" in exhausted
    told = dpstream("produce", job_file, "--input", changes, "--name", "two", "--json").json
    # Devices with order 0 are exhausted, in the half of the rows in which walk and bus differ.
    assert 0 < told["exhausted"] <= 150

    calm = change_log(tmp_path / "calm.csv", protocol, often=0)
    said = dpstream("produce", job_file, "--input", calm, "--name", "three")
    assert "exhausted" not in said.output
    everything = b"".join(
        record.value for partition in cluster.records.values() for record in partition
    )
    # Neither the job nor any record of its topics reveals exhausted devices.
    assert b"exhausted" not in everything
