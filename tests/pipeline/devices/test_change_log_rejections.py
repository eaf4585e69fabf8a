"""Test invalid change logs: one-line errors with file and line, and no partial use."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpstream.pipeline.devices.change_log import ChangeLog, load_change_log
from dpstream.pipeline.devices.rows import BadRowsError, InputError
from dpstream.pipeline.values.durations import parse_duration
from dpstream.pipeline.values.times import EpochCalendar

WEEKS = EpochCalendar(datetime(2024, 1, 1, tzinfo=UTC), parse_duration("P7D"))


def load(
    folder: Path, data: bytes | str, *, skip: bool = False, users: tuple[str, ...] | None = None
) -> ChangeLog:
    path = folder / "members.csv"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return load_change_log(path, calendar=WEEKS, last_epoch=170, skip_bad_rows=skip, users=users)


BAD_ROWS = {
    "value": (b"user,epoch,value\nann,1,2\n", 2, "value '2' is not 0 or 1"),
    "epoch": (b"user,epoch,value\nann,one,1\n", 2, "epoch 'one' is not an integer below 2^31"),
    "fraction": (b"user,epoch,value\nann,1.5,1\n", 2, "epoch '1.5' is not an integer"),
    "underscore": (b"user,epoch,value\nann,1_0,1\n", 2, "epoch '1_0' is not an integer"),
    "digits": ("user,epoch,value\nann,\u0661,1\n".encode(), 2, r"epoch '\u0661' is not an integer"),
    "huge": (b"user,epoch,value\nann,2147483648,1\n", 2, "epoch '2147483648' is not an int"),
    "time": (b"user,time,value\nann,noon,1\n", 2, "time 'noon' is invalid; expected ISO 8601"),
    "milliseconds": (b"user,time,value\nann,1700000000000,1\n", 2, "seconds, not milliseconds"),
    "no user": (b"user,epoch,value\n,1,1\n", 2, "the user is empty"),
    "NUL": (b"user,epoch,value\na\0,1,1\n", 2, "the user contains a NUL byte"),
    "bytes": (b"user,epoch,value\n\xff,1,1\n", 2, r"the user '\udcff' is not valid UTF-8"),
    "few fields": (b"user,epoch,value\nann,1\n", 2, "2 fields; the header has 3"),
    "many fields": (b"user,epoch,value\nann,1,1,1\n", 2, "4 fields; the header has 3"),
    "blank": (b"user,epoch,value\n \n", 2, "1 field; the header has 3"),
    "after a quote": (b'user,epoch,value\n"a"nn,1,1\n', 2, "broken CSV: ',' expected after '\"'"),
    "quote": (b'user,epoch,value\nbob,1,1\n"ann,1,1\n', 3, "broken CSV: unexpected end of data"),
    "quote that is never closed": (
        b'user,epoch,value\n"ann,1,1\n' + b"bob,1,1\n" * 20_000,
        2,
        "broken CSV: field larger than field limit (131072) (read until line 16386)",
    ),
    "line": (b'user,epoch,value\n"a\r\nb",1,1\n\n"c\nd",1,1\nann,1,x\n', 7, "value 'x'"),
    "epoch twice": (
        b"user,epoch,value\nann,3,1\nbob,3,0\nann,3,0\n",
        4,
        "contradicts line 2: another value for user 'ann' for the same epoch",
    ),
    "before the start": (b"user,epoch,value\nann,0,1\nann,0,0\n", 3, "contradicts line 2"),
    "time twice": (
        b"user,time,value\nann,2024-02-01,1\nann,2024-02-01T01:00+01:00,0\n",
        3,
        "contradicts line 2: another value for user 'ann' for the same time",
    ),
}


@pytest.mark.parametrize(("data", "line", "reason"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_bad_row_is_skipped_or_rejected_with_its_line_number(
    tmp_path: Path, data: bytes, line: int, reason: str
) -> None:
    with pytest.raises(BadRowsError) as rejection:
        load(tmp_path, data)
    bad_rows = rejection.value.bad_rows
    assert [row.line for row in bad_rows.first] == [line]
    assert reason in bad_rows.first[0].reason
    first, second = str(rejection.value).split("\n")
    assert first == (
        f"{tmp_path}/members.csv: 1 bad row; correct them or skip them with --skip-bad-rows"
    )
    assert second == f"{tmp_path}/members.csv:{line}: {bad_rows.first[0].reason}"
    assert second.isprintable()

    header = data.split(b"\n")[0]
    good = b"zoe,2024-01-01,1\n" if b"time" in header else b"zoe,1,1\n"
    data = header + b"\n" + good + data.removeprefix(header + b"\n")
    log = load(tmp_path, data, skip=True, users=("ann", "zoe"))
    assert log.bad_rows.total == 1
    assert log.bad_rows.first[0].line == line + 1
    assert "1 bad row skipped" in log.warnings[-1]
    assert (log.users, log.values_at(1)[1]) == (("ann", "zoe"), 1)

    # Without a user list, every user with a row counts, provided the row has a user.
    if log.bad_rows.anonymous:
        with pytest.raises(InputError, match="1 bad row with an unreadable user") as unknown:
            load(tmp_path, data, skip=True)
        assert str(unknown.value).endswith(f"\n{log.bad_rows}")
    else:
        log = load(tmp_path, data, skip=True)
        assert {"zoe"} < set(log.users) or reason.startswith("the user ")
        assert set(log.users) <= {"zoe", "bob", "ann", "a\r\nb", "a\nb", "c\nd"}


def test_bad_rows_are_counted_and_the_first_ten_shown(
    tmp_path: Path,
) -> None:
    # Contradictions are found last, and still reported in the order of lines.
    rows = ["ann,1,0", "ann,1,1", *(["bob,1,x", "ann,1,1"] * 6)]
    with pytest.raises(BadRowsError, match="13 bad rows") as rejection:
        load(tmp_path, "user,epoch,value\n" + "\n".join(rows) + "\n")
    bad_rows = rejection.value.bad_rows
    assert (bad_rows.total, [row.line for row in bad_rows.first]) == (13, list(range(3, 13)))
    told = str(rejection.value).splitlines()[11:]
    assert told == [
        "... and 3 more; by reason:",
        "6 rows: value ... is not 0 or 1 (the first: line 4: value 'x' is not 0 or 1)",
        "7 rows: contradicts an earlier one: another value for user ... for the same epoch (the "
        "first: line 3: contradicts line 2: another value for user 'ann' for the same epoch)",
    ]


PACKED = gzip.compress(b"user,epoch,value\n" + b"".join(b"u%d,1,1\n" % n for n in range(999)))
UNUSABLE: dict[str, tuple[bytes, str]] = {
    "empty": (
        b"",
        "empty file; the first line must contain the columns user, value and epoch or time",
    ),
    "only a BOM": (b"\xef\xbb\xbf", "empty file; the first line must contain"),
    "no header": (b"ann,1,1\n", "the first line: got 'ann,1,1'; expected"),
    "epoch and time": (b"user,epoch,time,value\n", "the header has both columns epoch and time"),
    "duplicate column": (b"user,epoch,value,User\n", "the header has column user twice"),
    "UTF-16 without a mark": (
        "user,epoch,value\n".encode("utf-16-le"),
        "the first line is not UTF-8 text.*--encoding",
    ),
    "binary": (bytes(range(256)) * 9, "the first line is not UTF-8 text|broken CSV"),
    "header only": (b"user,epoch,value\r\n", "no rows below the header"),
    "too late": (b"user,epoch,value\nann,171,1\n", "no usable rows .*1 row after epoch 170"),
    "gzip cut": (PACKED[:-30], "damaged gzip file .*; download or pack it again"),
    "gzip changed": (PACKED[:40] + b"\xff" * 9 + PACKED[49:], "damaged gzip file"),
    "gzip checksum": (PACKED[:-8] + bytes(8), "damaged gzip file"),
}


@pytest.mark.parametrize(("data", "message"), UNUSABLE.values(), ids=UNUSABLE)
def test_unusable_file_is_rejected_with_a_one_line_error(
    tmp_path: Path, data: bytes, message: str
) -> None:
    with pytest.raises(InputError, match=message) as rejection:
        load(tmp_path, data, skip=True)
    assert str(rejection.value).startswith(f"{tmp_path}/members.csv:")
    assert str(rejection.value).isprintable()


def test_unreadable_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.csv: No such file or directory$"):
        load_change_log(tmp_path / "none.csv")
    with pytest.raises(InputError, match=r": Is a directory$"):
        load_change_log(tmp_path)


def test_rows_with_times_require_a_calendar(tmp_path: Path) -> None:
    path = tmp_path / "members.csv"
    path.write_text("user,time,value\nann,2024-01-01,1\n")
    with pytest.raises(InputError, match=r"must set epochs.start and epochs.length$"):
        load_change_log(path)


pieces = st.lists(
    st.sampled_from(
        [b"ann", b"1", b"0", b",", b"\n", b"\r\n", b"\r", b'"', b"\0", b"\xff", b"-", b"2024-01-08"]
    )
    | st.binary(max_size=3),
    max_size=40,
).map(b"".join)


@given(
    st.sampled_from([b"user,epoch,value\n", b"user,time,value\nann,2024-01-01,1\n", b""]),
    pieces,
    st.sampled_from([bytes, gzip.compress, lambda data: b"\x1f\x8b" + zlib.compress(data)]),
    st.booleans(),
)
def test_arbitrary_files_are_read_or_rejected(
    tmp_path_factory: pytest.TempPathFactory,
    header: bytes,
    body: bytes,
    pack: Callable[[bytes], bytes],
    skip: bool,
) -> None:
    try:
        log = load(tmp_path_factory.getbasetemp(), pack(header + body), skip=skip)
    except InputError as rejection:
        assert str(rejection).replace("\n", "").isprintable()  # noqa: PT017
    else:
        assert log.users
        assert 0 <= log.ground_truth()[-1] <= len(log.users)
