"""Open files of records, plain or gzip, and detect their format."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from dpstream.pipeline.devices.bad_rows import InputError
from dpstream.pipeline.devices.bounded_lines import EndlessLineError
from dpstream.pipeline.devices.columns import Columns, columns_needed
from dpstream.pipeline.devices.json_records import flat_records, json_file
from dpstream.pipeline.devices.parquet_records import MAGIC, parquet_file, single_columns
from dpstream.pipeline.devices.row_reader import RowReader
from dpstream.pipeline.devices.rows import Records, read_records
from dpstream.pipeline.jobs.input_formats import AS_IT_IS, InputFormat
from dpstream.pipeline.values.times import shown
from dpstream.pipeline.whole_files import open_regular

_HEADER_CAP = 1 << 16  # characters; bounds the memory of one endless line
_SEPARATORS = (",", ";", "\t", "|")
_LOOKED_AT = 64  # bytes: blank lines may come before the first object
_GZIP_MAGIC = b"\x1f\x8b"
# Other containers: their first bytes, and a fix for each.
_CONTAINERS = {
    b"PK\x03\x04": "a ZIP archive or an Excel workbook: unpack it, or save the sheet as CSV",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook: save the sheet as CSV",
    b"\xfd7zXZ\x00": "compressed with xz: unpack it, or pack it with gzip",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: unpack it, or pack it with gzip",
    b"BZh": "compressed with bzip2: unpack it, or pack it with gzip",
    b"7z\xbc\xaf": "a 7z archive: unpack it",
    _GZIP_MAGIC: "compressed with gzip twice: unpack it once",
}
# Longer marks first: a mark of UTF-32 starts like one of UTF-16.
_MARKS = {
    b"\xff\xfe\x00\x00": "utf-32",
    b"\x00\x00\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}


@dataclass(frozen=True, slots=True)
class RecordFile:
    """An open file, with its records in batches of any length.

    `place` is the text before the number of a record, if that number is not a line number.
    """

    columns: Columns
    batches: Iterator[Records]
    warnings: tuple[str, ...] = ()
    place: str = ""


@contextmanager
def open_records(name: str, reader: RowReader) -> Iterator[RecordFile]:
    """Open a file of records; all errors until it is closed are raised as `InputError`."""
    input_format, crowd, fields = reader.input_format, reader.domain.column, reader.domain.fields
    with _open_packed(name) as binary:
        kind = input_format.format or _format_of(name, binary)
        if kind == "parquet":
            found = parquet_file(name, _unpacked(name, binary), input_format, crowd, fields)
            yield RecordFile(*found, place="row ")
            return
        text, said = _as_text(binary, input_format)
        if kind == "json":
            yield RecordFile(*json_file(name, text, input_format, crowd, fields), tuple(said))
            return
        columns = _header(name, text, reader)
        yield RecordFile(columns, read_records(text, 1, input_format.separator), tuple(said))


@dataclass(frozen=True, slots=True)
class AllColumns:
    """An open file with all of its columns.

    The `input.columns` of a job file refers to these `names`. `batches` are rows as texts, one for
    each name, with the number of unusable records among them.
    """

    names: tuple[str, ...]
    batches: Iterator[tuple[list[list[str]], int]]
    input_format: InputFormat
    warnings: tuple[str, ...] = ()


@contextmanager
def open_all_columns(name: str, input_format: InputFormat = AS_IT_IS) -> Iterator[AllColumns]:
    """Open a file of records without knowing which of its columns are used.

    The separator is detected if `input_format` states none. All errors until the
    file is closed are raised as `InputError`.
    """
    with _open_packed(name) as binary:
        kind = input_format.format or _format_of(name, binary)
        if kind == "parquet":
            names, rows = single_columns(name, _unpacked(name, binary))
            yield AllColumns(names, ((each, 0) for each in rows), input_format)
            return
        text, said = _as_text(binary, input_format)
        if kind == "json":
            yield AllColumns(*flat_records(text, name), input_format, tuple(said))
            return
        header = text.readline(_HEADER_CAP)
        if input_format.separator == AS_IT_IS.separator:
            separator = max(_SEPARATORS, key=header.count)
            if header.count(separator):
                input_format = input_format.with_changes({"separator": separator})
        separator = input_format.separator
        fields = next(read_records([header], separator=separator), None)
        if fields is None or fields.broken or not fields.fields or len(fields.fields[0]) < 2:
            raise InputError(
                f"{name}:1: got {shown(header)}; expected a line with the names of the columns"
            )
        names = tuple(field.strip() for field in fields.fields[0])
        whole = _whole_rows(read_records(text, 1, separator), len(names))
        yield AllColumns(names, whole, input_format, tuple(said))


def _unpacked(name: str, binary: io.BufferedReader | gzip.GzipFile) -> io.BufferedReader:
    if isinstance(binary, gzip.GzipFile):
        raise InputError(
            f"{name}: a gzipped Parquet file, which is already compressed inside: unpack it"
        )
    return binary


def _whole_rows(batches: Iterator[Records], width: int) -> Iterator[tuple[list[list[str]], int]]:
    for records in batches:
        rows = [row for row in records.fields if len(row) == width]
        blank = sum(not row for row in records.fields)
        yield rows, len(records.fields) - len(rows) - blank + (records.broken is not None)


@contextmanager
def open_text(
    name: str,
    *,
    regular: bool = False,
    input_format: InputFormat = AS_IT_IS,
    said: list[str] | None = None,
) -> Iterator[TextIO]:
    """Open a file as text, plain or gzip; errors until it is closed are raised as `InputError`.

    With `regular`, only a regular file is accepted, because reading a pipe would block too early
    and could not be repeated. A byte order mark takes precedence over the encoding in
    `input_format`. Warnings about the encoding are appended to `said`.
    """
    with _open_packed(name, regular=regular) as binary:
        text, warnings = _as_text(binary, input_format)
        if said is not None:
            said += warnings
        yield text


@contextmanager
def _open_packed(
    name: str, *, regular: bool = False
) -> Iterator[io.BufferedReader | gzip.GzipFile]:
    try:
        with ExitStack() as stack:
            path = Path(name)
            file = stack.enter_context(open_regular(path) if regular else path.open("rb"))
            if file.peek(2)[:2] == _GZIP_MAGIC:
                unpacked = stack.enter_context(gzip.GzipFile(fileobj=file))
                _reject_container(name, unpacked.peek(6))
                yield unpacked
            else:
                _reject_container(name, file.peek(6))
                yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"{name}: damaged gzip file ({error}); download or pack it again"
        ) from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name}: contains text that is not {error.encoding} ({error.reason}): download or "
            "write it again, or set --encoding"
        ) from None
    except EndlessLineError as error:
        raise InputError(f"{name}: {error}") from None
    except OSError as error:
        raise InputError(f"{name}: {error.strerror or error}") from None


def _reject_container(name: str, begin: bytes) -> None:
    for magic, what in _CONTAINERS.items():
        if begin.startswith(magic):
            raise InputError(f"{name}: {what}")


def _as_text(
    binary: io.BufferedReader | gzip.GzipFile, input_format: InputFormat
) -> tuple[TextIO, list[str]]:
    marked, said = encoding_marked(binary.peek(4)[:4])
    encoding = marked or input_format.encoding or "utf-8"
    if encoding == "utf-8":
        encoding = "utf-8-sig"
    text = io.TextIOWrapper(binary, encoding=encoding, errors="surrogateescape", newline="\n")
    return text, said


def _format_of(name: str, binary: io.BufferedReader | gzip.GzipFile) -> str:
    begin = binary.peek(_LOOKED_AT)[:_LOOKED_AT]
    if begin.startswith(MAGIC):
        return "parquet"
    suffixes = Path(name.casefold().removesuffix(".gz")).suffix
    is_json = begin.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{"
    return "json" if is_json or suffixes in (".json", ".jsonl", ".ndjson") else "csv"


def other_format(line: str) -> str | None:
    """Return the format of a file that starts with `line`, or None for CSV and user lists.

    >>> other_format('{"user": "ann"}'), other_format("{3F2504E0-4F89}"), other_format("user,value")
    ('JSON', None, None)
    """
    if line.startswith(MAGIC.decode()):
        return "a Parquet file"
    if line[:1] not in ("{", "["):
        return None
    try:
        return "JSON" if isinstance(json.loads(line), dict | list) else None
    except (ValueError, RecursionError):
        return None


def encoding_marked(begin: bytes) -> tuple[str | None, list[str]]:
    """Return the encoding that a byte order mark states, unless it is UTF-8, and warnings."""
    mark = next(filter(begin.startswith, _MARKS), None)
    if mark is None:
        return None, []
    encoding = _MARKS[mark]
    return encoding, [f"read as {encoding.upper()}, according to its byte order mark"]


def _header(name: str, text: TextIO, reader: RowReader) -> Columns:
    line = text.readline(_HEADER_CAP)
    lines = [line] if line else []
    first = next(read_records(lines, separator=reader.input_format.separator), None)
    if first is None:
        needed = columns_needed(reader.domain.fields)
        raise InputError(f"{name}: empty file; the first line must contain {needed}")
    if first.broken:
        raise InputError(f"{name}:1: {first.broken.as_row().reason}")
    return Columns.of(
        *(name, first.fields[0]),
        crowd=reader.domain.column,
        fields=reader.domain.fields,
        input_format=reader.input_format,
    )
