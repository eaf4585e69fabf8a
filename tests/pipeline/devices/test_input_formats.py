"""Test input formats and files: columns, encodings, times, duplicates, JSON lines and Parquet."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from collections.abc import Callable
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
from dpstream.pipeline.devices.item_log import ItemLog, load_item_log
from dpstream.pipeline.devices.live import Change, LiveSource
from dpstream.pipeline.devices.rows import BadRowsError, InputError
from dpstream.pipeline.jobs.input_formats import AS_IT_IS, InputFormat
from dpstream.pipeline.values.durations import parse_duration
from dpstream.pipeline.values.numeric_values import NumericDomain
from dpstream.pipeline.values.sets import SetDomain
from dpstream.pipeline.values.times import EpochCalendar
from dpstream.pipeline.values.value_domains import BOOLEAN, CategoryDomain, ValueDomain
from dpstream.randomizers.item_domains import Numbers

EPOCHS = 4
DAYS = EpochCalendar(datetime(2024, 3, 30, tzinfo=UTC), parse_duration("P1D"))
BERLIN = ZoneInfo("Europe/Berlin")


def format_of(**keys: Any) -> InputFormat:
    return InputFormat.model_validate_json(json.dumps(keys))


def load(
    folder: Path,
    data: str | bytes,
    *,
    domain: ValueDomain = BOOLEAN,
    users: list[str] | None = None,
    skip: bool = False,
    name: str = "rows",
    zone: ZoneInfo | None = None,
    **keys: Any,
) -> ChangeLog:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return load_change_log(
        path,
        domain=domain,
        calendar=EpochCalendar(DAYS.start, DAYS.length, zone),
        last_epoch=EPOCHS,
        skip_bad_rows=skip,
        users=users,
        input_format=format_of(**keys),
    )


def held(log: ChangeLog) -> dict[str, list[int]]:
    columns = [log.values_at(epoch).tolist() for epoch in range(1, EPOCHS + 1)]
    return {user: [column[at] for column in columns] for at, user in enumerate(log.users)}


def said(log: ChangeLog | ItemLog) -> list[str]:
    return [warning.partition("rows: ")[2] for warning in log.warnings]


GERMAN = """Matrikel;Eingeschrieben am;Dauer;Notiz
müller;30.03.2024 08:00;12,5;"a;b"
weiß;31.03.2024 02:30;1.234,5;
"""


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1", "cp1252"]
)
@pytest.mark.parametrize("packed", [False, True])
def test_file_exported_with_german_settings_is_read_in_every_encoding(
    tmp_path: Path, encoding: str, packed: bool
) -> None:
    data = GERMAN.encode(encoding)
    marked = encoding in ("utf-16", "utf-32")
    named: dict[str, Any] = {"encoding": encoding} if encoding in ("latin-1", "cp1252") else {}
    log = load(
        tmp_path,
        gzip.compress(data) if packed else data,
        domain=NumericDomain(0, 2000, 200),
        columns={"user": "matrikel", "time": "Eingeschrieben AM", "value": "Dauer"},
        separator=";",
        decimal=",",
        time_format="%d.%m.%Y %H:%M",
        timezone="Europe/Berlin",
        **named,
    )
    assert held(log) == {"müller": [2] * 4, "weiß": [1, 124, 124, 124]}
    warnings = said(log)
    assert warnings == [
        *([f"read as {encoding.upper()}, according to its byte order mark"] if marked else []),
        "2 rows with a time without a time zone: read as Europe/Berlin",
        "1 row of these in an hour that a clock change repeats or skips: read as the first",
        "not used: column 'Notiz'",
    ]


def test_undecodable_bytes_are_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"not utf-16.* --encoding"):
        load(tmp_path, "user,epoch,value\nann,1,1\n".encode("utf-16") + b"\0\xd8\0\0\0")
    with pytest.raises(InputError, match=r"first line is not UTF-8 text.*--encoding cp1252"):
        load(tmp_path, "user,epoch,value,größe\n".encode("latin-1"))
    with pytest.raises(BadRowsError, match="is not valid UTF-8"):
        load(tmp_path, "user,epoch,value\nmüller,1,1\n".encode("latin-1"))


@pytest.mark.parametrize("separator", [";", "\t", "|", ":", " "])
def test_column_separator_can_be_set(tmp_path: Path, separator: str) -> None:
    rows = [["user", "epoch", "value"], [f"a{separator},b", "2", "1"]]
    text = io.StringIO()
    csv.writer(text, delimiter=separator).writerows(rows)
    given_as = "tab" if separator == "\t" else separator
    log = load(tmp_path, text.getvalue(), separator=given_as)
    assert held(log) == {f"a{separator},b": [0, 1, 1, 1]}
    assert said(log) == []


@pytest.mark.parametrize(
    ("header", "keys", "message"),
    [
        (
            "student_id,enrolled_at,state",
            {},
            r"got 'student_id,enrolled_at,state'; expected .* Columns found: 'student_id', "
            r"'enrolled_at', 'state'. To map them, use --column user=student_id "
            r"--column value=state --column time=enrolled_at, or set input: "
            r"\{columns:",
        ),
        ("user,week,value", {}, "--column time=NAME \\(or --column epoch=NAME for epoch numbers"),
        ("user;epoch;value", {}, "Is ';' the separator\\? Use --separator ';'"),
        (
            "user,epoch,value",
            {"columns": {"user": "who"}},
            r"missing: who \(for user\). .* --column user=user",
        ),
    ],
)
def test_error_for_a_missing_column_lists_the_columns_found(
    tmp_path: Path, header: str, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        load(tmp_path, header + "\nann,1,1\n", **keys)


@pytest.mark.parametrize(
    ("time_format", "texts"),
    [
        (None, ["2024-03-30", "2024-03-31T00:00:00Z", "1711929600", "2024-04-02T02:00+02:00"]),
        ("iso", ["2024-03-30", "2024-03-31T00:00Z", "20240401", "2024-04-02"]),
        ("unix", ["1711756800", "1711843200.5", "1.7119296e9", " 1712016000"]),
        ("unix_ms", ["1711756800000", "1711843200000.5", "1.7119296e12", "1712016000000 "]),
        ("%d/%m/%y", ["30/03/24", "31/03/24", "01/04/24", "02/04/24"]),
        ("%b %d %Y %z", [f"{day} 2024 +0000" for day in ("Mar 30", "Mar 31", "Apr 1", "Apr 2")]),
    ],
)
def test_time_formats_are_parsed(tmp_path: Path, time_format: str | None, texts: list[str]) -> None:
    rows = "".join(f"u{at},{text},1\n" for at, text in enumerate(texts))
    keys: dict[str, Any] = {} if time_format is None else {"time_format": time_format}
    log = load(tmp_path, "user,time,value\n" + rows, **keys)
    assert held(log) == {f"u{at}": [int(epoch >= at) for epoch in range(4)] for at in range(4)}


@pytest.mark.parametrize(
    ("time_format", "text", "reason"),
    [
        ("iso", "1711756800", "is not ISO 8601"),
        ("unix_ms", "9" * 20, "is outside the years 1 to 9999"),
        (
            "unix",
            "1711756800000",
            ("is outside the years 1 to 9999; expected unix seconds, not milliseconds"),
        ),
        ("%d.%m.%Y", "2024-03-30", "does not match %d.%m.%Y"),
    ],
)
def test_row_with_a_time_in_another_format_counts_as_bad(
    tmp_path: Path, time_format: str, text: str, reason: str
) -> None:
    with pytest.raises(BadRowsError, match=reason):
        load(tmp_path, f"user,time,value\nann,{text},1\n", time_format=time_format)


def test_configured_texts_for_1_and_0_are_recognized(tmp_path: Path) -> None:
    words = ["Ja", " yes ", "NEIN", "1", "0", "true", "off"]
    text = "user,epoch,value\n" + "".join(f"u{at},1,{word}\n" for at, word in enumerate(words))
    log = load(tmp_path, text, true=["ja", "yes", True], false=["nein", "off", 0])
    assert [values[0] for values in held(log).values()] == [1, 1, 0, 1, 0, 1, 0]
    with pytest.raises(BadRowsError, match="value 'Ja' is not 0 or 1"):
        load(tmp_path, text)
    told = "value 'Ja' is not 0 or 1, nor one of the texts that 'input' defines: no, yes"
    with pytest.raises(BadRowsError, match=told):
        load(tmp_path, text, true=["no"], false=["yes"])
    # Configured texts for 1 and 0 override the default ones.
    log = load(tmp_path, "user,epoch,value\nann,1,1\nbob,1,2\n", true=[2], false=[1])
    assert held(log) == {"ann": [0] * 4, "bob": [1] * 4}


@pytest.mark.parametrize(
    ("decimal", "text", "bucket"),
    [(",", "12,5", 13), (",", " -0,5", 1), (",", "1.234,5", 1235), (".", "1,234.5", 1235)],
)
def test_decimal_separator_can_be_set(tmp_path: Path, decimal: str, text: str, bucket: int) -> None:
    domain = NumericDomain(-1, 1999, 2000)
    log = load(tmp_path, f'user,epoch,value\nann,1,"{text}"\n', domain=domain, decimal=decimal)
    assert held(log) == {"ann": [bucket + 1 if bucket > 1 else 1] * 4}


@pytest.mark.parametrize("text", ["1.5", "1.23", "12.34,5", "1,2,3", "1,234.5"])
def test_row_with_another_decimal_separator_counts_as_bad(tmp_path: Path, text: str) -> None:
    rows = f'user,epoch,value\nann,1,"{text}"\n'
    with pytest.raises(BadRowsError, match="1 bad row"):
        load(tmp_path, rows, domain=NumericDomain(0, 2000, 20), decimal=",")


@pytest.mark.parametrize("sets", [False, True])
def test_numbers_are_clamped_on_request_and_counted(tmp_path: Path, sets: bool) -> None:
    text = "user,epoch,value\n" + "".join(
        f"u{at},1,{number}\n" for at, number in enumerate([-5, 0, 15, 19.999, 20, "1e9"])
    )
    numbers = NumericDomain(0, 20, 2)
    with pytest.raises(BadRowsError, match="3 bad rows"):
        load(tmp_path, text, domain=numbers)
    if sets:
        path = tmp_path / "rows"
        log = load_item_log(
            path, domain=SetDomain(Numbers(0, 20, 2), slots=1), input_format=format_of(clamp=True)
        )
        assert log.values.tolist() == [1, 1, 2, 2, 2, 2]
        assert said(log)[0].startswith("3 rows with a number out of range")
        return
    changes = load(tmp_path, text, domain=numbers, clamp=True)
    assert [values[0] for values in held(changes).values()] == [1, 1, 2, 2, 2, 2]
    assert said(changes) == ["3 rows with a number out of range: clamped to the range"]
    with pytest.raises(BadRowsError, match="2 bad rows"):
        load(tmp_path, "user,epoch,value\nann,1,inf\nbob,1,x\n", domain=numbers, clamp=True)


rules = st.sampled_from(["first", "last", "largest", "smallest"])
few_rows = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(1, EPOCHS), st.integers(0, 3)), min_size=1
)


@given(few_rows, rules)
def test_duplicate_rows_are_resolved_by_the_configured_rule(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int, int]], rule: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "twice"
    path.write_text("user,epoch,value\n" + "".join(f"{u},{e},{v or ''}\n" for u, e, v in rows))
    labels = CategoryDomain(("1", "2", "3"))
    log = load_change_log(
        path, domain=labels, last_epoch=EPOCHS, input_format=format_of(duplicates=rule)
    )
    choose: dict[str, Callable[[list[int]], int]] = {
        "first": lambda v: v[0],
        "last": lambda v: v[-1],
        "largest": max,
        "smallest": min,
    }
    expected = {}
    others = 0
    for user in {user for user, _, _ in rows}:
        value, values = 0, []
        for epoch in range(1, EPOCHS + 1):
            there = [v for u, e, v in rows if (u, e) == (user, epoch)]
            value = choose[rule](there) if there else value
            others += sum(v != value for v in there)
            values.append(value)
        expected[user] = values
    assert held(log) == expected
    assert log.bad_rows.total == 0
    told = [f"{rule} counts" in warning for warning in log.warnings]
    assert told == [True] * bool(others)
    if others:
        assert f": {others} row" in log.warnings[0]


@pytest.mark.parametrize(
    ("rule", "items"),
    [
        (None, [3, 1]),
        ("first", [3, 1]),
        ("last", [2, 3]),
        ("largest", [3, 2]),
        ("smallest", [1, 2]),
    ],
)
def test_duplicates_rule_chooses_items_when_a_user_has_too_many(
    tmp_path: Path, rule: str | None, items: list[int]
) -> None:
    path = tmp_path / "rows"
    domain = SetDomain(("a", "b", "c"), slots=2)
    path.write_text("user,epoch,value\nann,1,c\nann,1,a\nann,1,c\nann,1,b\n")
    input_format = format_of() if rule is None else format_of(duplicates=rule)
    log = load_item_log(path, domain=domain, last_epoch=1, input_format=input_format)
    assert log.values.tolist() == items
    assert said(log)[-1].startswith("1 item from users with more than 2")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp1252"])
def test_live_rows_follow_the_input_format(size: int, encoding: str) -> None:
    keys: dict[str, Any] = {"separator": ";", "columns": {"user": "wer"}, "true": ["ja"]}
    if encoding != "utf-16":
        keys["encoding"] = encoding
    source = LiveSource(
        EpochCalendar(DAYS.start, DAYS.length, BERLIN), 1, input_format=format_of(**keys)
    )
    data = "wer;time;value\nmüller;2024-03-30T01:00;ja\n".encode(encoding)
    if encoding == "utf-16" and size == 1:
        size = 2  # a mark split across reads is not recognized
    events = [
        event
        for begin in range(0, len(data), size)
        for event in source.receive(data[begin : begin + size], DAYS.start)
    ]
    assert events == [Change(1, "müller", 1)]
    assert "standard input: 1 row with a time without a time zone: read as Europe/Berlin" in (
        source.warnings()
    )
    assert any("UTF-16" in warning for warning in source.warnings()) == (encoding == "utf-16")


def test_error_names_keys_missing_from_the_first_object_of_live_input() -> None:
    source = LiveSource(DAYS, 1, input_format=format_of(format="json"))
    assert source.receive(b"none\n", DAYS.start) == []
    with pytest.raises(InputError, match=r"standard input:2: .*value"):
        source.receive(b'{"user": "ann", "epoch": 1}\n', DAYS.start)
    for sent in (b"", b"none\n", b"\n"):
        empty = LiveSource(DAYS, 1, input_format=format_of(format="json"))
        empty.receive(sent, DAYS.start)
        with pytest.raises(InputError, match="no line is a JSON object"):
            empty.end(DAYS.start)


LABELS = CategoryDomain(("walk", "bus"))
Row = dict[str, Any]


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


def load_file(
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
    expected = contents(load_file(folder, as_csv(rows), domain=LABELS))
    lines = as_lines(rows)
    for data in (
        gzip.compress(lines) if packed else lines,
        b"\n \n" + lines,
        as_parquet(rows, user=pa.large_string() if large else pa.string()),
    ):
        assert contents(load_file(folder, data, domain=LABELS)) == expected


@pytest.mark.parametrize(
    ("suffix", "input_format"),
    [(".csv", AS_IT_IS), (".JSONL", AS_IT_IS), ("", format_of(format="json"))],
)
def test_json_is_detected_by_content_suffix_or_format_key(
    tmp_path: Path, suffix: str, input_format: InputFormat
) -> None:
    begin = b"no JSON\n" if suffix != ".csv" else b""
    data = begin + as_lines([{"user": "ann", "epoch": 2, "value": 1}])
    log = load_file(
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
        load_file(tmp_path, data)
    (row,) = rejection.value.bad_rows.first
    assert (row.line, row.anonymous) == (3, named is None)
    assert reason in row.reason
    assert len(row.reason) < 160
    log = load_file(tmp_path, data, skip=True, users=["ann", "bob"])
    assert log.ground_truth().tolist() == [1] * EPOCHS
    if named:
        assert load_file(tmp_path, data, skip=True).users == ("ann", "bob"), (
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
        load_file(tmp_path, data, name="rows.json")


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
    log = load_file(tmp_path, data, input_format=format_of(timezone="Europe/Berlin"))
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
        load_file(tmp_path, damage(as_parquet(rows)))


def test_parquet_as_live_input_is_rejected(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.write(write, as_parquet([{"user": "ann", "epoch": 1, "value": 1}]))
    os.close(write)
    with pytest.raises(InputError, match="cannot read Parquet from a pipe"):
        load_change_log(f"/dev/fd/{read}", last_epoch=1)
    os.close(read)
