"""`dpstream.pipeline.results.read`: all that was published as a table, and the notebook that shows
it.
"""

from __future__ import annotations

import ast
import builtins
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

import dpstream.pipeline.results
from dpstream.aggregators.estimate import Estimate
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.results import read
from dpstream.pipeline.results.estimate_table import table_of
from dpstream.pipeline.results.published_rows import PublishedRows
from dpstream.pipeline.results.reading import ReadError
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import Fate
from dpstream.topics.names import JOBS_TOPIC, Role
from tests.support.memory_cluster import MemoryCluster

NOTEBOOK = Path(dpstream.pipeline.results.__path__[0]) / "example.ipynb"
JOB = deploy_job(
    parse_job(
        "name: logins\nprotocol: value_stream\nparameters: {epsilon: 1, changes: 2}\n"
        "epochs: {count: 4, start: 2024-06-03, length: P1W, timezone: Europe/Berlin}\n"
    ),
    deployed_at=0,
    deployment=bytes(16),
)
RECORDS = [
    EstimateRecord(
        JOB.deployment, 1, Fate.RELEASED, 0, 90, 100, Estimate.around(40.0, 5, 9, 7, 100), {}
    ),
    EstimateRecord(JOB.deployment, 2, Fate.TOO_SMALL, 0, 9, 100, None, {}),
]


class OpenCluster(MemoryCluster):
    """One that is closed after use."""

    def __enter__(self) -> OpenCluster:
        return self

    def __exit__(self, *error: object) -> None:
        pass


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Where a cluster was looked for, on which the job has published."""
    cluster = OpenCluster()
    cluster.partitions[JOBS_TOPIC] = 1
    cluster.append(JOBS_TOPIC, JOB.to_bytes(), key=b"logins")
    for each in RECORDS:
        cluster.append(JOB.topic(Role.ESTIMATES), each.to_bytes())
    found: list[tuple[object, ...]] = []

    def find_cluster(*where: object) -> None:
        found.append(where)

    monkeypatch.setattr("dpstream.pipeline.results.reading.find_cluster", find_cluster)
    monkeypatch.setattr("dpstream.pipeline.results.reading.Cluster", lambda connection: cluster)
    return found


@pytest.mark.usefixtures("asked")
def test_a_job_is_a_table() -> None:
    results = read("logins")
    table = results.to_arrow()
    assert tuple(table.column_names) == PublishedRows.of_everything(JOB).columns
    assert table["estimate"].to_pylist() == [40.0, None]
    assert (results.job, results.deployment, len(results)) == ("logins", "00" * 16, 2)
    assert results.guarantee["epsilon"] == JOB.guarantee().epsilon
    assert repr(results) == "Results(job logins, 2 rows)"


def test_the_cluster_is_the_one_that_is_named(asked: list[tuple[object, ...]]) -> None:
    read("logins", bootstrap_servers="broker:9092", kafka_config=Path("client.properties"))
    assert asked == [("broker:9092", Path("client.properties"))]


@pytest.mark.usefixtures("asked")
def test_a_data_frame_has_moments_and_categories() -> None:
    frame = read("logins").to_pandas()
    assert [str(moment) for moment in frame["begins"]] == [
        "2024-06-03 00:00:00+02:00",
        "2024-06-10 00:00:00+02:00",
    ]
    assert str(frame["fate"].dtype) == "category"
    assert frame["fate"].tolist() == ["released", "too small"]
    assert frame["estimate"].isna().tolist() == [False, True]


@pytest.mark.usefixtures("asked")
def test_who_has_no_pandas_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    results, imported = read("logins"), builtins.__import__

    def without_pandas(name: str, *more: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return imported(name, *more)

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    with pytest.raises(ReadError, match="pip install pandas"):
        results.to_pandas()


@pytest.mark.usefixtures("asked")
def test_a_file_is_the_same_table(tmp_path: Path) -> None:
    results, path = read("logins"), tmp_path / "logins.parquet"
    parquet.write_table(results.to_arrow(), path)
    again = read(path)
    assert again.to_arrow().equals(results.to_arrow())
    assert (again.job, again.guarantee) == (results.job, results.guarantee)
    assert (again.title, again.unit, again.labels) == (None, "users", {})


WORDED = deploy_job(
    parse_job(
        "name: logins\nprotocol: value_stream\nparameters: {epsilon: 1, changes: 2}\n"
        "epochs: {count: 4}\ntitle: Logged in\ndescription: Of all offices.\nunit: members\n"
        "labels: {1: logged in}\n"
    ),
    deployed_at=0,
    deployment=bytes(16),
)


def test_words_of_the_job_are_read_and_files_without_them_rejected(tmp_path: Path) -> None:
    table, path = table_of(PublishedRows.of_everything(WORDED), RECORDS), tmp_path / "a.parquet"
    parquet.write_table(table, path)
    results = read(path)
    assert (results.title, results.description) == ("Logged in", "Of all offices.")
    assert (results.unit, results.labels) == ("members", {"1": "logged in"})
    assert results.to_arrow()["label"].to_pylist() == ["logged in", None]
    told = {**table.schema.metadata}
    told[b"words"] = json.dumps({"title": "Logged in"}).encode()
    parquet.write_table(table.replace_schema_metadata(told), path)
    results = read(path)
    assert (results.title, results.description) == ("Logged in", None)
    assert (results.unit, results.labels) == ("users", {})
    del told[b"words"]
    parquet.write_table(table.replace_schema_metadata(told), path)
    with pytest.raises(ReadError, match="not written by dpstream"):
        read(path)


@pytest.mark.usefixtures("asked")
def test_what_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"job login is not deployed \(deployed: logins\)"):
        read("login")
    with pytest.raises(ReadError, match=r"none\.parquet: no such file"):
        read(tmp_path / "none.parquet")
    path = tmp_path / "other.parquet"
    path.write_text("no table")
    with pytest.raises(ReadError, match=r"other\.parquet: no Parquet file"):
        read(path)
    parquet.write_table(pyarrow.table({"a": [1]}), path)
    with pytest.raises(ReadError, match="not written by dpstream"):
        read(str(path))


def cells() -> Iterator[str]:
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            yield "".join(cell["source"])


@pytest.mark.usefixtures("asked")
def test_the_notebook_shows_what_was_published() -> None:
    """Its cells are executed one after another; what the last line of each is, is shown."""
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
    assert guarantee["epsilon"] == JOB.guarantee().epsilon
    assert sentence == "40 at epoch 1, between 31 and 49"
