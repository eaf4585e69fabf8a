"""Test published estimates as rows, as a file, and in a notebook."""

from __future__ import annotations

import ast
import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import dpstream.pipeline.results
from dpstream.aggregators.estimate import Estimate, Published
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.results import read
from dpstream.pipeline.results.file_formats import CHUNKS, table_of
from dpstream.pipeline.results.published_rows import PublishedRows
from dpstream.pipeline.results.reading import ReadError
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import JOBS_TOPIC, Role
from tests.support.memory_cluster import MemoryCluster

COUNTING = "name: weekly\nprotocol: value_stream\nparameters: {epsilon: 1, max_changes: 2}\n"
WEEKS = "epochs: {count: 4, start: 2024-06-03, length: P1W}\n"
ITEMS = (
    "name: modes\nprotocol: hadamard_values\n"
    "parameters: {epsilon: 8, max_changes: 1, domain: [walk, bus, car]}\n"
)
GUARANTEE = {"epsilon": 1.5, "delta": 1e-9, "unit": "stream"}


def job_of(text: str, epochs: str = WEEKS) -> DeployedJob:
    return deploy_job(parse_job(text + epochs), deployed_at=0, deployment=bytes(16))


def record(
    epoch: int, estimate: Published | None, window_status: WindowStatus = WindowStatus.RELEASED
) -> EstimateRecord:
    return EstimateRecord(
        bytes(16),
        epoch,
        window_status,
        1_700_000_000_123,
        90,
        100,
        estimate,
        GUARANTEE,
        assumes_changes=4,
    )


COUNTS = [
    record(1, Estimate.around(40.5, 5.0, 9.8, 70, 100, ("gap", "few"))),
    record(2, None, WindowStatus.SUPPRESSED),
    record(3, Estimate(None, None, None, None, 0, 100), WindowStatus.EMPTY),
]
MODES = [
    record(1, ItemEstimates(np.array([3.0, 2.0, 1.0]), 5.0, 9.8, 70, 100)),
    record(2, None, WindowStatus.SUPPRESSED),
]


def rows_in(rows: PublishedRows, records: list[EstimateRecord]) -> list[dict[str, str]]:
    return list(csv.DictReader(rows.csv_lines(records)))


def test_csv_of_a_counting_job_has_dates_and_empty_cells() -> None:
    first, second, third = rows_in(PublishedRows.of(job_of(COUNTING)), COUNTS)
    assert list(first.items()) == [
        ("epoch", "1"),
        ("start", "2024-06-03T00:00:00Z"),
        ("end", "2024-06-10T00:00:00Z"),
        ("estimate", "40.5"),
        ("standard_error", "5.0"),
        ("ci95_low", "30.7"),
        ("ci95_high", "50.3"),
        ("reports", "70"),
        ("population", "100"),
        ("contributors", "90"),
        ("window_status", "released"),
        ("flags", "gap few"),
        ("assumes_changes", "4"),
        ("closed_at", "2023-11-14T22:13:20.123Z"),
        ("epsilon", "1.5"),
        ("delta", "1e-09"),
        ("privacy_unit", "stream"),
    ]
    for row, epoch, window_status in ((second, "2", "suppressed"), (third, "3", "empty")):
        assert (row["epoch"], row["window_status"], row["reports"]) == (epoch, window_status, "0")
        numbers = ("estimate", "standard_error", "ci95_low", "ci95_high", "flags")
        assert [row[name] for name in numbers] == [""] * 5
    assert second["start"] == first["end"]


def test_days_follow_the_time_zone_of_the_job() -> None:
    job = job_of(
        COUNTING,
        "epochs: {count: 4, start: 2024-03-30, length: P1D, timezone: Europe/Berlin}\n",
    )
    rows = PublishedRows.of(job)
    assert [(row["start"], row["end"]) for row in rows_in(rows, COUNTS[:2])] == [
        ("2024-03-30T00:00:00+01:00", "2024-03-31T00:00:00+01:00"),
        # Clocks go forward: a day of 23 hours.
        ("2024-03-31T00:00:00+01:00", "2024-04-01T00:00:00+02:00"),
    ]
    table = table_of(rows, COUNTS)
    assert table.schema.field("end").type == pyarrow.timestamp("us", "Europe/Berlin")
    assert table["end"][1].as_py() == datetime(2024, 3, 31, 22, tzinfo=UTC)


def test_arrow_table_has_typed_columns() -> None:
    table = table_of(PublishedRows.of(job_of(ITEMS)), MODES)
    text = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    assert {field.name: field.type for field in table.schema} == {
        **dict.fromkeys(("epoch", "reports", "population", "contributors"), pyarrow.int64()),
        "assumes_changes": pyarrow.int64(),
        **dict.fromkeys(("start", "end"), pyarrow.timestamp("us", "UTC")),
        **dict.fromkeys(("item", "window_status", "privacy_unit"), text),
        **dict.fromkeys(
            ("estimate", "standard_error", "ci95_low", "ci95_high", "epsilon", "delta"),
            pyarrow.float64(),
        ),
        "flags": pyarrow.list_(pyarrow.string()),
        "closed_at": pyarrow.timestamp("ms", "UTC"),
    }
    assert table["item"].to_pylist() == ["walk", "bus", "car", None]
    assert table["estimate"].to_pylist() == [3.0, 2.0, 1.0, None]
    assert table["end"][3].as_py() == datetime(2024, 6, 17, tzinfo=UTC)
    assert table["closed_at"][0].as_py() == datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)
    assert table.schema.metadata[b"job"] == b"modes"
    assert json.loads(table.schema.metadata[b"guarantee"])["unit"] == "stream"


@pytest.mark.parametrize("text", [COUNTING, ITEMS])
def test_every_format_has_the_same_content(text: str) -> None:
    rows, records = PublishedRows.of(job_of(text)), COUNTS if text is COUNTING else MODES
    written = {form: b"".join(chunks(rows, iter(records))) for form, chunks in CHUNKS.items()}
    table = parquet.read_table(io.BytesIO(written["parquet"]))
    assert table.equals(table_of(rows, records))
    lines = [json.loads(line) for line in written["jsonl"].splitlines()]
    assert [line["estimate"] for line in lines] == table["estimate"].to_pylist()
    assert [datetime.fromisoformat(line["start"]) for line in lines] == table["start"].to_pylist()
    assert written["csv"].decode().splitlines() == list(rows.csv_lines(records))


NOTEBOOK = Path(dpstream.pipeline.results.__path__[0]) / "example.ipynb"
JOB = deploy_job(
    parse_job(
        "name: logins\nprotocol: value_stream\nparameters: {epsilon: 1, max_changes: 2}\n"
        "epochs: {count: 4, start: 2024-06-03, length: P1W, timezone: Europe/Berlin}\n"
    ),
    deployed_at=0,
    deployment=bytes(16),
)
RECORDS = [
    EstimateRecord(
        JOB.deployment,
        1,
        WindowStatus.RELEASED,
        0,
        90,
        100,
        Estimate.around(40.0, 5, 9, 7, 100),
        {},
    ),
    EstimateRecord(JOB.deployment, 2, WindowStatus.SUPPRESSED, 0, 9, 100, None, {}),
]


class OpenCluster(MemoryCluster):
    """Cluster that stays readable after it was closed."""

    def __enter__(self) -> OpenCluster:
        return self

    def __exit__(self, *error: object) -> None:
        pass


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    cluster = OpenCluster()
    cluster.partitions[JOBS_TOPIC] = 1
    cluster.append(JOBS_TOPIC, JOB.to_bytes(), key=b"logins")
    for each in RECORDS:
        cluster.append(JOB.topic(Role.ESTIMATES), each.to_bytes())
    calls: list[tuple[object, ...]] = []

    def find_cluster(*where: object) -> None:
        calls.append(where)

    monkeypatch.setattr("dpstream.pipeline.results.reading.find_cluster", find_cluster)
    monkeypatch.setattr("dpstream.pipeline.results.reading.Cluster", lambda connection: cluster)
    return calls


@pytest.mark.usefixtures("requested")
def test_unreadable_sources_are_rejected_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"job login is not deployed \(deployed: logins\)"):
        read("login")
    with pytest.raises(ReadError, match=r"none\.parquet: no such file"):
        read(tmp_path / "none.parquet")
    path = tmp_path / "other.parquet"
    path.write_text("no table")
    with pytest.raises(ReadError, match=r"other\.parquet: not a Parquet file"):
        read(path)
    parquet.write_table(pyarrow.table({"a": [1]}), path)
    with pytest.raises(ReadError, match="not a file written by 'dpstream estimates"):
        read(str(path))


def cells() -> Iterator[str]:
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            yield "".join(cell["source"])


@pytest.mark.usefixtures("requested")
def test_notebook_shows_the_published_rows() -> None:
    names: dict[str, Any] = {}
    shown = []
    for source in cells():
        *lines, last = ast.parse(source).body
        exec(compile(ast.Module(lines, []), "cell", "exec"), names)
        assert isinstance(last, ast.Expr)
        shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
    results, table, guarantee, sentence = shown
    assert results.job == "logins"
    assert table.num_rows == 2
    assert guarantee["epsilon"] == JOB.guarantee.epsilon
    assert sentence == "40 at epoch 1 (95 % CI 31 to 49)"
