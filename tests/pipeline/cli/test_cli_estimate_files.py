"""``dpstream estimates`` into files: CSV, JSON lines and Parquet, whole or not at all."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from pyarrow import parquet

from dpstream.aggregators.estimate import Estimate
from dpstream.aggregators.published import Published
from dpstream.pipeline.results.estimate_files import WRITERS
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import Fate
from dpstream.topics.names import Role
from tests.support.commands import Commands
from tests.support.memory_cluster import use_memory_cluster

JOB = (
    "name: weekly\nprotocol: value_stream\nparameters: {epsilon: 1, changes: 2}\n"
    "epochs: {count: 4, start: 2024-06-03, length: P1W}\n"
)


def record(epoch: int, estimate: Published | None, fate: Fate = Fate.RELEASED) -> EstimateRecord:
    return EstimateRecord(
        bytes(16), epoch, fate, 1_700_000_000_123, 90, 100, estimate, {"epsilon": 1.0}
    )


RECORDS = [
    record(1, Estimate.around(40.5, 5.0, 9.8, 70, 100)),
    record(2, None, Fate.TOO_SMALL),
    record(3, Estimate.around(50.5, 5.0, 9.8, 70, 100)),
]


@pytest.fixture
def estimates(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Commands:
    """Commands where a job has published."""
    dpstream = Commands(capsys)
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("secrets.token_bytes", bytes)
    cluster = use_memory_cluster(monkeypatch)
    (tmp_path / "job.yaml").write_text(JOB)
    assert dpstream("deploy", tmp_path / "job.yaml").code == 0
    for each in RECORDS:
        cluster.append(f"weekly.{Role.ESTIMATES}", each.to_bytes())
    return dpstream


def test_files_are_written_instead_of_printing(estimates: Commands, tmp_path: Path) -> None:
    printed = estimates("estimates", "weekly", "--format", "csv").output
    for form in WRITERS:
        path = tmp_path / f"weekly.{form}"
        path.write_text("what was there before")
        said = estimates("estimates", "weekly", f"--{form}", path)
        assert (said.code, said.output) == (0, "")
        assert said.errors == f"{path} is written\n"
    assert (tmp_path / "weekly.csv").read_text() == printed
    assert parquet.read_table(tmp_path / "weekly.parquet").num_rows == 3
    bodies = map(json.loads, (tmp_path / "weekly.jsonl").read_text().splitlines())
    assert [body["epoch"] for body in bodies] == [1, 2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("job.yaml", "weekly.csv", "weekly.jsonl", "weekly.parquet"),
    ]


def test_changes_are_called_changes(estimates: Commands, tmp_path: Path) -> None:
    path = tmp_path / "changes.csv"
    assert estimates("estimates", "weekly", "--change", 1, "--csv", path).code == 0
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["2", "3"]
    assert "change" in rows[0]
    assert "estimate" not in rows[0]


@pytest.mark.parametrize("form", WRITERS)
def test_a_full_disk_is_a_sentence(estimates: Commands, form: str) -> None:
    said = estimates("estimates", "weekly", f"--{form}", "/dev/full")
    assert (said.code, said.errors) == (1, "error: /dev/full: No space left on device\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--csv", "a", "--parquet", "b"), "give one of --csv and --parquet"),
        (("--jsonl", "a", "--follow"), "--jsonl is written once, whole: leave --follow out"),
        (("--csv", "a", "--json"), "--csv says the format"),
    ],
)
def test_what_does_not_go_together_is_refused(
    estimates: Commands, options: tuple[str, ...], message: str
) -> None:
    said = estimates("estimates", "weekly", *options)
    assert said.code == 2
    assert message in said.errors


def test_that_nothing_is_published_yet_is_said(estimates: Commands, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(JOB.replace("weekly", "other"))
    assert estimates("deploy", other).code == 0
    told = "nothing is published yet; what it waits for: dpstream status other\n"
    said = estimates("estimates", "other")
    assert (said.code, len(said.output.splitlines()), said.errors) == (0, 1, told)
    assert "nothing is published" not in estimates("estimates", "weekly", "--change", 3).errors


def test_the_schema_of_the_documents_is_printed_without_a_job_or_a_cluster(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpstream.pipeline.cli.estimates.cluster_of", None)
    said = Commands(capsys)("estimates", "--schema")
    assert (said.code, said.errors) == (0, "")
    assert json.loads(said.output)["$id"] == "urn:dpstream:result-document:1"
