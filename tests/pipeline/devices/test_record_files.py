"""Test files of other formats: rows equal to CSV, and errors that name the problem."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from dpstream.pipeline.devices.change_log import ChangeLog, load_change_log
from dpstream.pipeline.devices.rows import BadRowsError, InputError
from dpstream.pipeline.jobs.input_formats import AS_IT_IS, InputFormat
from dpstream.pipeline.values.durations import parse_duration
from dpstream.pipeline.values.times import EpochCalendar
from dpstream.pipeline.values.value_domains import BOOLEAN, CategoryDomain, ValueDomain

EPOCHS = 4
DAYS = EpochCalendar(datetime(2024, 3, 30, tzinfo=UTC), parse_duration("P1D"))
LABELS = CategoryDomain(("walk", "bus"))
Row = dict[str, Any]


def format_of(**keys: Any) -> InputFormat:
    return InputFormat.model_validate_json(json.dumps(keys))


def as_lines(rows: list[Row]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_parquet(rows: list[Row], **columns: pa.DataType) -> bytes:
    table = pa.Table.from_pylist(rows)
    for name, kind in columns.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table.column(name).cast(kind))
    held = io.BytesIO()
    parquet.write_table(table, held, row_group_size=3)
    return held.getvalue()


def as_csv(rows: list[Row]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def load(
    folder: Path,
    data: bytes,
    *,
    domain: ValueDomain = BOOLEAN,
    input_format: InputFormat = AS_IT_IS,
    name: str = "rows",
    skip: bool = False,
    users: list[str] | None = None,
) -> ChangeLog:
    path = folder / name
    path.write_bytes(data)
    return load_change_log(
        path,
        domain=domain,
        calendar=DAYS,
        last_epoch=EPOCHS,
        input_format=input_format,
        skip_bad_rows=skip,
        users=users,
    )


def contents(log: ChangeLog) -> tuple[Any, ...]:
    return (
        log.users,
        log.epochs.tolist(),
        log.user_indices.tolist(),
        log.values.tolist(),
        log.last_epoch,
        [warning.partition(" (the first")[0] for warning in log.warnings],
    )


names = st.text(
    st.characters(codec="utf-8", exclude_characters="\0\r\n\ufeff"), min_size=1, max_size=4
)


def usable(rows: list[Row]) -> bool:
    return any(row["epoch"] <= EPOCHS and row["value"] for row in rows)


rows_of_all: st.SearchStrategy[list[Row]] = st.lists(
    st.fixed_dictionaries(
        {
            "user": names,
            "epoch": st.integers(-2, EPOCHS + 2),
            "value": st.sampled_from(["walk", "bus", ""]),
        }
    ),
    min_size=1,
    max_size=20,
    unique_by=lambda row: (row["user"], row["epoch"]),
).filter(usable)


@given(rows_of_all, st.booleans(), st.booleans())
def test_every_format_yields_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], packed: bool, large: bool
) -> None:
    folder = tmp_path_factory.getbasetemp()
    expected = contents(load(folder, as_csv(rows), domain=LABELS))
    lines = as_lines(rows)
    for data in (
        gzip.compress(lines) if packed else lines,
        b"\n \n" + lines,
        as_parquet(rows, user=pa.large_string() if large else pa.string()),
    ):
        assert contents(load(folder, data, domain=LABELS)) == expected


@pytest.mark.parametrize(
    ("suffix", "input_format"),
    [(".csv", AS_IT_IS), (".JSONL", AS_IT_IS), ("", format_of(format="json"))],
)
def test_json_is_detected_by_content_suffix_or_format_key(
    tmp_path: Path, suffix: str, input_format: InputFormat
) -> None:
    begin = b"no JSON\n" if suffix != ".csv" else b""
    data = begin + as_lines([{"user": "ann", "epoch": 2, "value": 1}])
    log = load(
        tmp_path, data, name=f"rows{suffix}", input_format=input_format, skip=True, users=["ann"]
    )
    assert log.ground_truth().tolist() == [0, 1, 1, 1]
    assert log.bad_rows.total == len(begin.splitlines())


@pytest.mark.parametrize(
    ("line", "reason", "named"),
    [
        (
            '{"user": "ann", "epoch": 1, "value": [1]}',
            "'value' is a list or an object; expected a single value: '{\"user\"",
            "ann",
        ),
        ('{"user": "ann", "epoch": 1}', "missing key 'value'", "ann"),
        ('{"user": "\\ud800", "epoch": 1, "value": 1}', "is not valid UTF-8", ""),
        ('{"user": {"id": 1}, "epoch": 1, "value": 1}', "'user' is a list or an object", None),
        ('{"user": "ann", "epoch": 1, "value": 1', "not JSON: Expecting ',' delimiter", None),
        ('["ann", 1, 1]', "got '[\"ann\", 1, 1]'; expected a JSON object", None),
        ("[" * 10_000, "not JSON", None),
    ],
)
def test_bad_json_line_is_reported_or_skipped(
    tmp_path: Path, line: str, reason: str, named: str | None
) -> None:
    good = '{"user": "bob", "epoch": 1, "value": 1}\n'
    data = f"{good}\n{line}\n{good}".encode()
    with pytest.raises(BadRowsError) as rejection:
        load(tmp_path, data)
    (row,) = rejection.value.bad_rows.first
    assert (row.line, row.anonymous) == (3, named is None)
    assert reason in row.reason
    assert len(row.reason) < 160
    log = load(tmp_path, data, skip=True, users=["ann", "bob"])
    assert log.ground_truth().tolist() == [1] * EPOCHS
    if named:
        assert load(tmp_path, data, skip=True).users == ("ann", "bob"), (
            "the user of a bad row is enrolled"
        )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'[{"user": "ann"}]', "got a JSON array; expected one object per line"),
        (b'{"user": 1,\n "epoch": 2}\n', "no line is a JSON object\n.*rows.json:1: not JSON"),
        (as_lines([{"user": "a", "time": 1, "epoch": 1, "value": 1}]), "both keys epoch and time"),
    ],
)
def test_invalid_json_lines_are_rejected(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(tmp_path, data, name="rows.json")


MOMENT = datetime(2024, 3, 31, 1, 30, tzinfo=ZoneInfo("Europe/Berlin"))


@pytest.mark.parametrize(
    ("kind", "moment"),
    [
        (pa.timestamp("ns", "UTC"), MOMENT),
        (pa.timestamp("us", "Europe/Berlin"), MOMENT),
        (pa.timestamp("ms"), MOMENT.replace(tzinfo=None)),
        (pa.dictionary(pa.int8(), pa.string()), "2024-03-31 01:30"),
    ],
)
def test_parquet_timestamps_map_to_the_same_epochs_as_text(
    tmp_path: Path, kind: pa.DataType, moment: object
) -> None:
    data = as_parquet([{"user": 7, "time": moment, "value": True}], time=kind)
    log = load(tmp_path, data, input_format=format_of(timezone="Europe/Berlin"))
    assert (log.users, log.epochs.tolist()) == (("7",), [2])
    zoneless = "Europe/Berlin" in str(log.warnings)
    assert zoneless == (getattr(moment, "tzinfo", None) is None and "+" not in str(moment))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-20], "damaged Parquet file"),
        (lambda data: data[:4] + b"\0" * 200 + data[204:], "damaged Parquet file"),
        (gzip.compress, "a gzipped Parquet file, which"),
    ],
)
def test_unreadable_parquet_file_is_rejected(tmp_path: Path, damage: Any, message: str) -> None:
    rows = [{"user": f"u{at}", "epoch": 1, "value": at % 2} for at in range(99)]
    with pytest.raises(InputError, match=message):
        load(tmp_path, damage(as_parquet(rows)))


def test_live_parquet_is_rejected(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.write(write, as_parquet([{"user": "ann", "epoch": 1, "value": 1}]))
    os.close(write)
    with pytest.raises(InputError, match="cannot read Parquet from a pipe"):
        load_change_log(f"/dev/fd/{read}", last_epoch=1)
    os.close(read)
