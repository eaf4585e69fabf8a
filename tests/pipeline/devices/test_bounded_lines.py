"""Test that reading a log with an arbitrarily long line takes bounded memory."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpstream.pipeline.devices.bounded_lines import (
    LINE_CAP,
    RECORD_CAP,
    BoundedLines,
    EndlessLineError,
)
from dpstream.pipeline.devices.change_log import load_change_log
from dpstream.pipeline.devices.item_shares import counts_in
from dpstream.pipeline.devices.rows import BadRow, BadRowsError, InputError, read_records

MEBIBYTE = 1 << 20
HEADER = b"user,epoch,value\n"


class Endless(io.RawIOBase):
    def __init__(self, head: bytes, repeated: bytes, length: int) -> None:
        self._head, self._repeated, self._left = head, repeated * (65_536 // len(repeated)), length

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        piece = (self._head or self._repeated)[: min(len(buffer), max(0, self._left))]
        self._head = self._head[len(piece) :]
        self._left -= len(piece)
        buffer[: len(piece)] = piece
        return len(piece)


def text_of(repeated: bytes, length: int, head: bytes = b"") -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BufferedReader(Endless(head, repeated, length)), newline="\n")


def test_record_length_is_capped() -> None:
    longest, longer = ("a," * MEBIBYTE)[: RECORD_CAP - 1], ("b," * MEBIBYTE)[:RECORD_CAP]
    text = io.StringIO(f"1,2,3\n{longest}\n{longer}\n4,5,6\n")
    batches = list(read_records(text))
    fields = [record for batch in batches for record in batch.fields]
    assert [len(record) for record in fields] == [3, RECORD_CAP // 2, 3]
    lines = [line for batch in batches for line in batch.lines.tolist()]
    assert lines == [1, 2, 4]
    broken = [batch.broken for batch in batches if batch.broken]
    assert [each.as_row() for each in broken] == [
        BadRow(3, f"broken CSV: a record has more than {RECORD_CAP:,} characters", anonymous=True)
    ]


def test_unclosed_quote_is_reported_as_an_overlong_record() -> None:
    line = '"a\n' + '","b\n' * 400_000
    first = next(iter(read_records(io.StringIO(line))))
    assert first.broken is not None
    assert first.broken.first == 1
    assert first.broken.reason == f"a record has more than {RECORD_CAP:,} characters"


def test_bounded_lines_are_the_same_for_lists_and_files() -> None:
    lines = ["a\n", "\n", "b,c"]
    assert list(BoundedLines(lines)) == list(BoundedLines(io.StringIO("".join(lines)))) == lines
    assert list(BoundedLines([""])) == [""], "an empty line does not end a list of lines"


def test_endless_line_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpstream.pipeline.devices.bounded_lines.LINE_CAP", 1 << 22)
    lines = BoundedLines(text_of(b"\0", LINE_CAP))
    with pytest.raises(EndlessLineError, match="a line has more than 4,194,304 characters"):
        next(lines)


def rows_and(path: Path, long_line: Iterator[bytes]) -> Path:
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(HEADER + b"ann,1,1\n")
        for piece in long_line:
            file.write(piece)
        file.write(b"\nbob,2,1\n")
    return path


def test_huge_line_counts_as_one_bad_row(tmp_path: Path) -> None:
    path = rows_and(tmp_path / "log.csv", (b"x" * MEBIBYTE for _ in range(64)))
    with pytest.raises(BadRowsError, match=r"log\.csv:3: broken CSV: a record has more than 1,0"):
        load_change_log(path, last_epoch=4)
    log = load_change_log(path, last_epoch=4, skip_bad_rows=True, users=("ann", "bob"))
    assert log.users == ("ann", "bob")
    assert log.bad_rows.total == 1


PEAK = """
import resource, sys
from dpstream.pipeline.devices.change_log import load_change_log
from dpstream.pipeline.devices.rows import InputError
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    load_change_log(sys.argv[1], last_epoch=4)
except InputError as error:
    print(str(error).splitlines()[0])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) // 1024)
"""


@pytest.mark.parametrize("kind", ["a bomb of one line", "a bomb of long lines", "/dev/zero"])
def test_decompression_bomb_is_rejected_in_little_memory(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "bomb.csv.gz"
    if kind == "/dev/zero":
        path = Path("/dev/zero")
    else:
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        line = (
            b",ab" * (MEBIBYTE // 4) + b"\n" if kind == "a bomb of long lines" else b"," * MEBIBYTE
        )
        with path.open("wb") as file:
            file.write(packer.compress(HEADER))
            for _ in range(100):
                file.write(packer.compress(line))
            file.write(packer.flush())
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    message, mebibytes = done.stdout.splitlines()
    assert str(path) in message
    assert int(mebibytes) < 150


def test_overlong_record_in_an_item_count_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "counts.csv"
    for text, place in ((f"item,count\n{'x' * 2 * RECORD_CAP},1\n", 2), ("x" * 2 * RECORD_CAP, 1)):
        path.write_text(text)
        with pytest.raises(InputError, match=rf"counts\.csv:{place}: a record has more than"):
            counts_in(path)
    path.write_text("item,count\n" + "a,1\n" * 500_000)
    found = counts_in(path)
    assert found is not None
    assert len(found) == 500_000, "a long file of short records is accepted"
