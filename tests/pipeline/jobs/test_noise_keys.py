"""Test noise key files: created once, private to the owner, required before workers start."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_files import NoiseKey, WrongKeyError
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.state import noise_key_file
from dpstream.topics.names import JOBS_TOPIC
from tests.support import noisy_cells
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster, use_memory_cluster

JOB = """
name: noise
protocol: noisy_cells
parameters: {cells: 12}
epochs: {count: 2}
shuffle: {minimum: 2}
"""


def test_noise_key_file_is_created_once_with_owner_only_access(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "job"
    key = NoiseKey.at(path)
    assert len(path.read_bytes()) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert NoiseKey.at(path) == NoiseKey.read(path) == key
    assert NoiseKey.at(tmp_path / "other") != key


def test_noise_key_repr_does_not_reveal_the_key() -> None:
    key = NoiseKey(bytes(range(32)))
    assert key.digest == hashlib.sha256(bytes(range(32))).digest()
    assert repr(key) == "NoiseKey()"


def test_malformed_noise_key_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(
        WrongKeyError,
        match=("copy it from the machine that deployed the job, or name another file with --"),
    ):
        NoiseKey.read(path)
    for length in (0, 31, 33):
        path.write_bytes(bytes(length))
        path.chmod(0o600)
        for read in (NoiseKey.read, NoiseKey.at):
            with pytest.raises(WrongKeyError, match=("does not contain a noise key: got ")):
                read(path)
    with pytest.raises(WrongKeyError, match="bytes; expected"):
        NoiseKey(bytes(31))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_noise_key_accessible_to_others_is_rejected(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    NoiseKey.at(path)
    path.chmod(mode)
    with pytest.raises(WrongKeyError, match=f"other users have access .* 'chmod 600 {path}'"):
        NoiseKey.read(path)


@pytest.fixture
def dpstream(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    """Run commands on an in-memory cluster whose workers exit immediately."""
    monkeypatch.setattr("dpstream.pipeline.kafka.workers.worker.run_worker", lambda *_, **__: 0)
    return Commands(capsys)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MemoryCluster:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(PROTOCOLS, noisy_cells.NAME, noisy_cells.NOISY_CELLS)
    return use_memory_cluster(monkeypatch)


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "noise.yaml"
    path.write_text(JOB)
    return path


def deployed(cluster: MemoryCluster) -> DeployedJob:
    records = [record for record in cluster.records[JOBS_TOPIC, 0] if record.key == b"noise"]
    return DeployedJob.from_bytes(records[-1].value)


def test_deploy_creates_the_noise_key_for_the_worker(
    dpstream: Commands, cluster: MemoryCluster, job_file: Path
) -> None:
    said = dpstream("deploy", job_file)
    assert said.code == 0, said.errors
    path = noise_key_file("noise")
    assert f"  {path}\n" in said.output
    assert "dpstream run shuffle noise\n" in said.output
    assert deployed(cluster).noise_key == NoiseKey.read(path).digest
    assert path.read_bytes().hex() not in said.output + said.errors
    assert dpstream("run", "shuffle", "noise").code == 0
    first = deployed(cluster)
    assert dpstream("deploy", job_file, "--replace", "--yes").code == 0
    assert deployed(cluster).noise_key == first.noise_key
    assert deployed(cluster).deployment != first.deployment


def test_worker_without_the_noise_key_does_not_start(
    dpstream: Commands, cluster: MemoryCluster, job_file: Path, tmp_path: Path
) -> None:
    dpstream("deploy", job_file, "--noise-key", tmp_path / "shared")
    none = dpstream("run", "shuffle", "noise")
    assert none.code == 2
    assert f"noise key {noise_key_file('noise')} does not exist" in none.errors
    NoiseKey.at(tmp_path / "other")
    other = dpstream("run", "shuffle", "noise", "--noise-key", tmp_path / "other")
    assert other.code == 2
    assert "not the noise key of noise's deployment" in other.errors
    for stage in ("aggregate", "publish"):
        assert dpstream("run", stage, "noise").code == 0
        misplaced = dpstream("run", stage, "noise", "--noise-key", tmp_path / "shared")
        assert misplaced.code == 2
        assert "--noise-key requires 'run shuffle'" in misplaced.errors
