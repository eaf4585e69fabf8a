"""What was published as rows: one for every epoch and number, with dates, in every format."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from dpstream.aggregators.estimate import Estimate
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.published import Published
from dpstream.pipeline.devices.truths import CountedTruths
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.results.asked import Asked, make_query
from dpstream.pipeline.results.estimate_csv import csv_lines
from dpstream.pipeline.results.estimate_files import WRITERS, json_rows
from dpstream.pipeline.results.estimate_table import record_batches, table_of
from dpstream.pipeline.results.published_rows import PublishedRows
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import Fate

COUNTING = "name: weekly\nprotocol: value_stream\nparameters: {epsilon: 1, changes: 2}\n"
WEEKS = "epochs: {count: 4, start: 2024-06-03, length: P1W}\n"
ITEMS = (
    "name: modes\nprotocol: hadamard_values\n"
    "parameters: {epsilon: 8, changes: 1, domain: [walk, bus, car]}\n"
)
HOURS = (
    "name: hours\nprotocol: range_values\n"
    "parameters: {epsilon: 8, changes: 1, low: 0, high: 8, buckets: 4}\n"
)
GUARANTEE = {"epsilon": 1.5, "delta": 1e-9, "unit": "stream"}


def job_of(text: str, epochs: str = WEEKS) -> DeployedJob:
    return deploy_job(parse_job(text + epochs), deployed_at=0, deployment=bytes(16))


def record(epoch: int, estimate: Published | None, fate: Fate = Fate.RELEASED) -> EstimateRecord:
    return EstimateRecord(bytes(16), epoch, fate, 1_700_000_000_123, 90, 100, estimate, GUARANTEE)


COUNTS = [
    record(1, Estimate.around(40.5, 5.0, 9.8, 70, 100, ("gap", "few"))),
    record(2, None, Fate.TOO_SMALL),
    record(3, Estimate(None, None, None, None, 0, 100), Fate.EMPTY),
]
MODES = [
    record(1, ItemEstimates(np.array([3.0, 2.0, 1.0]), 5.0, 9.8, 70, 100)),
    record(2, None, Fate.TOO_SMALL),
]


def read(rows: PublishedRows, records: list[EstimateRecord]) -> list[dict[str, str]]:
    return list(csv.DictReader(csv_lines(rows, records)))


def test_csv_of_a_count_has_dates_and_nothing_where_there_is_no_number() -> None:
    first, second, third = read(PublishedRows.of_everything(job_of(COUNTING)), COUNTS)
    assert list(first.items()) == [
        ("epoch", "1"),
        ("begins", "2024-06-03T00:00:00Z"),
        ("ends", "2024-06-10T00:00:00Z"),
        ("estimate", "40.5"),
        ("standard_deviation", "5.0"),
        ("low", "30.7"),
        ("high", "50.3"),
        ("reports", "70"),
        ("population", "100"),
        ("contributors", "90"),
        ("fate", "released"),
        ("flags", "gap few"),
        ("closed_at", "2023-11-14T22:13:20.123Z"),
        ("epsilon", "1.5"),
        ("delta", "1e-09"),
        ("privacy_unit", "stream"),
    ]
    for row, epoch, fate in ((second, "2", "too small"), (third, "3", "empty")):
        assert (row["epoch"], row["fate"], row["reports"]) == (epoch, fate, "0")
        numbers = ("estimate", "standard_deviation", "low", "high", "flags")
        assert [row[name] for name in numbers] == [""] * 5
    assert second["begins"] == first["ends"]


def test_every_item_has_a_row_and_a_withheld_epoch_has_one() -> None:
    rows = read(PublishedRows.of_everything(job_of(ITEMS)), MODES)
    assert [(row["epoch"], row["item"], row["estimate"]) for row in rows] == [
        ("1", "walk", "3.0"),
        ("1", "bus", "2.0"),
        ("1", "car", "1.0"),
        ("2", "", ""),
    ]
    assert rows[3]["fate"] == "too small"


def test_epochs_that_are_not_placed_in_time_have_no_dates() -> None:
    job = job_of(COUNTING, "epochs: {count: 4}\n")
    rows = read(PublishedRows.of_everything(job), COUNTS)
    assert [(row["begins"], row["ends"]) for row in rows] == [("", "")] * 3


def test_days_are_days_of_the_job_s_time_zone() -> None:
    job = job_of(
        COUNTING,
        "epochs: {count: 4, start: 2024-03-30, length: P1D, timezone: Europe/Berlin}\n",
    )
    rows = PublishedRows.of_everything(job)
    assert [(row["begins"], row["ends"]) for row in read(rows, COUNTS[:2])] == [
        ("2024-03-30T00:00:00+01:00", "2024-03-31T00:00:00+01:00"),
        # Clocks go forward: a day of 23 hours.
        ("2024-03-31T00:00:00+01:00", "2024-04-01T00:00:00+02:00"),
    ]
    table = table_of(rows, COUNTS)
    assert table.schema.field("ends").type == pyarrow.timestamp("us", "Europe/Berlin")
    assert table["ends"][1].as_py() == datetime(2024, 3, 31, 22, tzinfo=UTC)


def test_an_epoch_after_the_last_year_has_no_end() -> None:
    job = job_of(COUNTING, "epochs: {count: 1, start: 9998-06-01, length: P1Y, renew: true}\n")
    (row,) = read(PublishedRows.of_everything(job), [record(2, None, Fate.EMPTY)])
    assert (row["begins"], row["ends"]) == ("9999-06-01T00:00:00Z", "")


def test_a_question_names_its_column() -> None:
    job = job_of(HOURS)
    query = make_query(job.domain, Asked(ranges=["0:2", "2:8"]))
    assert query is not None
    assert PublishedRows(job, query, "change").columns[:5] == (
        *("epoch", "begins", "ends", "range", "change"),
    )
    fitted = make_query(job_of(ITEMS).domain, Asked(["bus"]), norm_sub=True)
    assert fitted is not None
    (row, withheld) = read(PublishedRows(job_of(ITEMS), fitted), MODES)
    assert (row["item"], row["estimate"], row["norm_sub"]) == ("bus", "2.0", row["norm_sub"])
    assert float(row["norm_sub"]) > 2
    assert (withheld["item"], withheld["norm_sub"], withheld["reports"]) == ("", "", "0")


def test_a_table_has_real_types() -> None:
    table = table_of(PublishedRows.of_everything(job_of(ITEMS)), MODES)
    text = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    assert {field.name: field.type for field in table.schema} == {
        **dict.fromkeys(("epoch", "reports", "population", "contributors"), pyarrow.int64()),
        **dict.fromkeys(("begins", "ends"), pyarrow.timestamp("us", "UTC")),
        **dict.fromkeys(("item", "fate", "privacy_unit"), text),
        **dict.fromkeys(
            ("estimate", "standard_deviation", "low", "high", "epsilon", "delta"), pyarrow.float64()
        ),
        "flags": pyarrow.list_(pyarrow.string()),
        "closed_at": pyarrow.timestamp("ms", "UTC"),
    }
    assert table["item"].to_pylist() == ["walk", "bus", "car", None]
    assert table["estimate"].to_pylist() == [3.0, 2.0, 1.0, None]
    assert table["ends"][3].as_py() == datetime(2024, 6, 17, tzinfo=UTC)
    assert table["closed_at"][0].as_py() == datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)
    assert table.schema.metadata[b"job"] == b"modes"
    assert json.loads(table.schema.metadata[b"guarantee"])["unit"] == "stream"


WORDS = "title: How people commute\nunit: commuters\nlabels: {walk: on foot}\n"


def test_a_file_says_what_its_rows_are_about_where_the_job_does() -> None:
    job = job_of(WORDS + ITEMS)
    rows = PublishedRows.of_everything(job)
    told = [[row[name] for name in ("item", "label", "title", "unit")] for row in read(rows, MODES)]
    about = ["How people commute", "commuters"]
    assert told == [
        ["walk", "on foot", *about],
        ["bus", "bus", *about],
        ["car", "car", *about],
        ["", "", *about],
    ]
    table = table_of(rows, MODES)
    assert table["label"].to_pylist() == ["on foot", "bus", "car", None]
    assert table.schema.field("title").type == table.schema.field("item").type
    assert json.loads(table.schema.metadata[b"words"]) == job.said("title", "unit", "labels")
    largest = make_query(job.domain, Asked(top=1))
    assert largest is not None
    assert [row["label"] for row in read(PublishedRows(job, largest), MODES[:1])] == ["on foot"]


def test_of_one_value_the_label_of_1_is_told() -> None:
    rows = PublishedRows.of_everything(job_of("labels: {1: enrolled}\n" + COUNTING))
    assert [row["label"] for row in read(rows, COUNTS)] == ["enrolled", "", ""]
    assert "title" not in rows.columns


def test_nothing_has_a_label_of_numbers_or_where_there_are_none() -> None:
    rows = PublishedRows.of_everything(job_of("unit: riders\n" + HOURS))
    assert "label" not in rows.columns
    assert rows.columns[-1] == "unit"
    empty = PublishedRows.of_everything(job_of("labels: {}\n" + COUNTING))
    assert len(read(empty, COUNTS)) == 3
    assert "label" not in empty.columns


def test_the_truth_is_the_last_column_and_ends_with_the_input() -> None:
    truths = CountedTruths(np.array([41]))
    rows = PublishedRows.of_everything(job_of(COUNTING), truths)
    assert rows.columns[-1] == "truth_not_private"
    assert [
        row["truth_not_private"] for row in read(rows, [COUNTS[0], record(2, COUNTS[0].estimate)])
    ] == [
        "41.0",
        "",
    ]


def test_a_table_of_nothing_has_its_columns() -> None:
    rows = PublishedRows.of_everything(job_of(ITEMS))
    table = table_of(rows, [])
    assert (table.num_rows, tuple(table.column_names)) == (0, rows.columns)


def test_many_rows_come_in_batches_and_share_a_dictionary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpstream.pipeline.results.estimate_table._ROWS_AT_ONCE", 6)
    rows = PublishedRows.of_everything(job_of(ITEMS))
    records = [MODES[0]] * 3
    assert [batch.num_rows for batch in record_batches(rows, records)] == [6, 3]
    chunks = table_of(rows, records)["item"].chunks
    assert [chunk.dictionary.to_pylist() for chunk in chunks] == [["walk", "bus", "car"]] * 2


def test_json_lines_are_the_rows_by_name() -> None:
    rows = PublishedRows.of_everything(job_of(COUNTING))
    bodies = [json.loads(line) for line in json_rows(rows, COUNTS)]
    assert [tuple(body) for body in bodies] == [rows.columns] * 3
    assert bodies[0]["flags"] == ["gap", "few"]
    assert (bodies[0]["begins"], bodies[0]["estimate"]) == ("2024-06-03T00:00:00Z", 40.5)
    assert (bodies[1]["estimate"], bodies[1]["flags"]) == (None, [])


@pytest.mark.parametrize("text", [COUNTING, ITEMS])
def test_every_format_says_the_same(text: str) -> None:
    rows, records = PublishedRows.of_everything(job_of(text)), COUNTS if text is COUNTING else MODES
    written = {}
    for form, write in WRITERS.items():
        file = io.BytesIO()
        write(file, rows, iter(records))
        written[form] = file.getvalue()
    table = parquet.read_table(io.BytesIO(written["parquet"]))
    assert table.equals(table_of(rows, records))
    lines = [json.loads(line) for line in written["jsonl"].splitlines()]
    assert [line["estimate"] for line in lines] == table["estimate"].to_pylist()
    assert [datetime.fromisoformat(line["begins"]) for line in lines] == table["begins"].to_pylist()
    assert written["csv"].decode().splitlines() == list(csv_lines(rows, records))
