"""Test ``dpstream estimates`` to CSV, JSON lines and Parquet files, written atomically."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyarrow import parquet

from dpstream.aggregators.estimate import Estimate, Published
from dpstream.pipeline.results.file_formats import CHUNKS
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role
from tests.support.commands import Commands
from tests.support.memory_cluster import use_memory_cluster

JOB = (
    "name: weekly\nprotocol: value_stream\nparameters: {epsilon: 1, max_changes: 2}\n"
    "epochs: {count: 4, start: 2024-06-03, length: P1W}\n"
)


def record(
    epoch: int, estimate: Published | None, window_status: WindowStatus = WindowStatus.RELEASED
) -> EstimateRecord:
    return EstimateRecord(
        bytes(16), epoch, window_status, 1_700_000_000_123, 90, 100, estimate, {"epsilon": 1.0}
    )


RECORDS = [
    record(1, Estimate.around(40.5, 5.0, 9.8, 70, 100)),
    record(2, None, WindowStatus.SUPPRESSED),
    record(3, Estimate.around(50.5, 5.0, 9.8, 70, 100)),
]


@pytest.fixture
def estimates(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Commands:
    dpstream = Commands(capsys)
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("secrets.token_bytes", bytes)
    cluster = use_memory_cluster(monkeypatch)
    (tmp_path / "job.yaml").write_text(JOB)
    assert dpstream("deploy", tmp_path / "job.yaml").code == 0
    for each in RECORDS:
        cluster.append(f"weekly.{Role.ESTIMATES}", each.to_bytes())
    return dpstream


def test_estimate_file_option_writes_a_file_and_prints_nothing(
    estimates: Commands, tmp_path: Path
) -> None:
    printed = estimates("estimates", "weekly", "--format", "csv").output
    for form in CHUNKS:
        path = tmp_path / f"weekly.{form}"
        path.write_text("what was there before")
        result = estimates("estimates", "weekly", f"--{form}", path)
        assert (result.code, result.output) == (0, "")
        assert result.errors == f"wrote {path}\n"
    assert (tmp_path / "weekly.csv").read_text() == printed
    assert parquet.read_table(tmp_path / "weekly.parquet").num_rows == 3
    bodies = map(json.loads, (tmp_path / "weekly.jsonl").read_text().splitlines())
    assert [body["epoch"] for body in bodies] == [1, 2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("job.yaml", "weekly.csv", "weekly.jsonl", "weekly.parquet")
    ]


@pytest.mark.parametrize("form", CHUNKS)
def test_estimate_file_on_a_full_disk_prints_one_error_line(estimates: Commands, form: str) -> None:
    result = estimates("estimates", "weekly", f"--{form}", "/dev/full")
    assert (result.code, result.errors) == (1, "error: /dev/full: No space left on device\n")
