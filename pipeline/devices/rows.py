"""Parse CSV records into typed rows, and report bad rows.

Files and live sources share this code. Fields are parsed by column, in batches of records.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.devices.bad_rows import BadRow as BadRow
from dpstream.pipeline.devices.bad_rows import BadRows as BadRows
from dpstream.pipeline.devices.bad_rows import BadRowsError as BadRowsError
from dpstream.pipeline.devices.bad_rows import InputError as InputError
from dpstream.pipeline.devices.bad_rows import counted as counted
from dpstream.pipeline.devices.bounded_lines import BoundedLines
from dpstream.pipeline.devices.columns import Columns, Placing, is_text
from dpstream.pipeline.devices.row_reader import RowReader
from dpstream.pipeline.jobs.epoch_times import LAST_MOMENT
from dpstream.pipeline.values.time_texts import Times
from dpstream.pipeline.values.times import EpochCalendar, shown

_EPOCH = re.compile(r"\s*[+-]?[0-9]{1,20}\s*")
_EPOCH_CAP = 2**31 - 1
_BATCH = 1 << 12  # records parsed at a time, to stay in the processor's cache
_BATCH_CHARACTERS = 1 << 20  # maximum characters parsed at a time


@dataclass(frozen=True, slots=True)
class BrokenRecord:
    first: int
    last: int
    reason: str

    def as_row(self) -> BadRow:
        through = f" (read until line {self.last})" if self.last > self.first else ""
        return BadRow(self.first, f"broken CSV: {self.reason}{through}", anonymous=True)


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Consecutive records.

    Attributes:
        lines: Number of each record's first line, or of the record; int64.
        broken: Invalid CSV that follows these records, if any.
        bad: Records that are invalid for other reasons.
        named: Users in invalid records, if readable.
    """

    fields: list[list[str]]
    lines: NDArray[np.int64]
    broken: BrokenRecord | None = None
    bad: tuple[BadRow, ...] = ()
    named: tuple[str, ...] = ()


def read_records(lines: Iterable[str], before: int = 0, separator: str = ",") -> Iterator[Records]:
    """Split lines (with line ends), after the first `before` lines, into batches of CSV records."""
    held = BoundedLines(lines)
    reader = csv.reader(held, strict=True, delimiter=separator)
    line = before + 1
    exhausted = False
    while not exhausted:
        fields: list[list[str]] = []
        begins: list[int] = []
        broken = None
        held.record = held.batch = 0
        try:
            for record in islice(reader, _BATCH):
                fields.append(record)
                begins.append(line)
                line = before + held.taken + 1
                held.record = 0
                if held.batch > _BATCH_CHARACTERS:
                    break
            else:
                exhausted = len(fields) < _BATCH
        except csv.Error as error:
            # The reader continues after the line at which it failed.
            broken = BrokenRecord(line, before + held.taken, str(error).partition(" - ")[0])
            line = broken.last + 1
        if fields or broken:
            yield Records(fields, np.array(begins, dtype=np.int64), broken)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Good rows, in order of arrival.

    Attributes:
        lines: First physical line of each row; int64.
        epochs: Epoch of each row; int32; at most 0 before epoch 1, and 0 if placed by arrival.
        positions: Time in microseconds, or epoch, by which a user's rows are ordered; int64.
        values: Value of each row, in the domain's dtype.
        listed: Line and user of rows before epoch 1 without a value, which list their user. These
            rows are also good rows if an empty value has a meaning in the domain.
        named: Users in bad rows.
    """

    lines: NDArray[np.int64]
    users: list[str]
    epochs: NDArray[np.int32]
    positions: NDArray[np.int64]
    values: NDArray[Any]
    listed: list[tuple[int, str]]
    named: list[str]
    counts: RowCounts


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Number of rows that were not used as written.

    `zoneless` counts times without a time zone, `unclear` times within an hour that a clock change
    repeats or skips, and `clamped` numbers outside the job's range.
    """

    zoneless: int = 0
    unclear: int = 0
    clamped: int = 0

    def plus(self, other: RowCounts) -> RowCounts:
        return RowCounts(
            self.zoneless + other.zoneless,
            self.unclear + other.unclear,
            self.clamped + other.clamped,
        )

    def warnings(self, reader: RowReader) -> Iterator[str]:
        if self.zoneless:
            yield (
                f"{counted(self.zoneless)} with a time without a time zone: read as "
                f"{reader.named_zone}"
            )
        if self.unclear:
            yield (
                f"{counted(self.unclear)} of these in an hour that a clock change repeats or "
                "skips: read as the first"
            )
        if self.clamped:
            yield f"{counted(self.clamped)} with a number out of range: clamped to the range"


def parse_rows(records: Records, columns: Columns, reader: RowReader) -> tuple[Rows, list[BadRow]]:
    """Return the good and the bad rows among records; empty lines are ignored.

    `columns` are those of the header. `reader` needs a calendar if ``columns.placing`` is time.
    """
    domain, calendar, separator = reader.domain, reader.calendar, reader.input_format.separator
    bad = [*records.bad, *([records.broken.as_row()] if records.broken else [])]
    fields, lines = records.fields, records.lines
    if set(map(len, fields)) - {columns.width}:
        whole = np.array([len(row) == columns.width for row in fields])
        bad += [
            BadRow(
                int(lines[index]),
                f"{counted(len(fields[index]), 'field')}; the header has {columns.width}: "
                f"{shown(separator.join(fields[index]))}",
                anonymous=True,
            )
            for index in np.flatnonzero(~whole).tolist()
            if fields[index]
        ]
        fields, lines = [row for row in fields if len(row) == columns.width], lines[whole]

    # In concatenated files, the byte order mark of the second precedes its first field.
    for row in fields:
        if row[0].startswith("\ufeff"):
            row[0] = row[0].removeprefix("\ufeff")
    users = [row[columns.user].removeprefix("\ufeff") for row in fields]
    problems = user_problems(users)
    nameless = set(problems)
    for index in problems:
        problems[index] += f": {shown(separator.join(fields[index]))}"
    positions = epochs = np.zeros(len(fields), dtype=np.int64)
    times = Times(positions, {})
    if columns.placing is not Placing.ARRIVAL:
        texts: Sequence[str] = [row[columns.position] for row in fields]
        if columns.placing is Placing.EPOCH:
            epochs, found = _parse_epochs(texts)
            positions = epochs
        else:
            assert calendar is not None, "the reader checks this with the header"
            times = reader.times(texts)
            positions, found = times.moments, times.problems
            epochs = capped_epochs(calendar, positions)
        problems = found | problems
    if columns.fields is None:
        texts, found, clamped = reader.values([row[columns.value] for row in fields])
        problems = found | problems
        values, found = domain.parse(
            texts
            if columns.crowd < 0
            else [
                domain.text_of(row[columns.crowd], text)
                for row, text in zip(fields, texts, strict=True)
            ]
        )
        found = reader.with_accepted_texts(found)
        before = [] if columns.placing is Placing.ARRIVAL else np.flatnonzero(epochs < 1).tolist()
        empty = [index for index in before if index not in problems and not texts[index].strip()]
    else:
        # Every row is an event, so no row only lists its user.
        values, found, clamped = *reader.fields(fields, columns.fields), 0
        empty = []
    listed = [(int(lines[index]), users[index]) for index in empty]
    valueless = [index for index in empty if found.pop(index, None)]
    problems = found | problems
    named = [users[index] for index in problems if index not in nameless]
    named += records.named

    if problems or valueless:
        bad += [BadRow(int(lines[index]), reason) for index, reason in problems.items()]
        good = np.ones(len(fields), dtype=bool)
        good[[*problems, *valueless]] = False
        users = [user for user, is_good in zip(users, good.tolist(), strict=True) if is_good]
        lines, epochs, positions, values = (
            column[good] for column in (lines, epochs, positions, values)
        )
    counts = RowCounts(times.zoneless, times.unclear, clamped)
    placed = epochs.astype(np.int32)
    return Rows(lines, users, placed, positions, values, listed, named, counts), bad


def capped_epochs(calendar: EpochCalendar, moments: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the epochs of times in microseconds since 1970, clipped to the range of int32."""
    return np.clip(calendar.epochs_of(moments), -_EPOCH_CAP, _EPOCH_CAP)


def _parse_epochs(texts: Sequence[str]) -> tuple[NDArray[np.int64], dict[int, str]]:
    digits = "".join(texts)
    if digits.isascii() and digits.isdecimal():
        try:
            epochs = np.array(list(map(int, texts)), dtype=np.int64)
            if not (epochs > _EPOCH_CAP).any():
                return epochs, {}
        except (ValueError, OverflowError):
            pass
    problems: dict[int, str] = {}
    numbers = []
    for index, text in enumerate(texts):
        number = int(text) if _EPOCH.fullmatch(text) else _EPOCH_CAP + 1
        if abs(number) > _EPOCH_CAP:
            problems[index] = f"epoch {shown(text)} is not an integer below 2^31"
            number = 0
        numbers.append(number)
    return np.array(numbers, dtype=np.int64), problems


def user_problems(users: list[str]) -> dict[int, str]:
    text = "".join(users)
    if all(users) and "\0" not in text and is_text(text):
        return {}
    problems: dict[int, str] = {}
    for index, user in enumerate(users):
        if not user:
            problems[index] = "the user is empty"
        elif "\0" in user:
            problems[index] = "the user contains a NUL byte"
        elif not is_text(user):
            problems[index] = f"the user {shown(user)} is not valid UTF-8"
    return problems


def stamped(
    rows: Rows, records: Sequence[LogRecord], calendar: EpochCalendar
) -> tuple[Rows, list[BadRow]]:
    """Place rows by the timestamps of their records; rows without a valid timestamp are bad.

    Writers of a topic choose timestamps, so these can be wrong, such as microseconds read as
    milliseconds. Records written before Kafka had timestamps have the timestamp -1. The offsets
    serve as line numbers.
    """
    stamps = {record.offset: record.timestamp for record in records}
    found = [stamps[line] for line in rows.lines.tolist()]
    good = np.array([0 <= stamp <= LAST_MOMENT for stamp in found], np.bool_)
    moments = np.array([1000 * stamp for stamp in found if 0 <= stamp <= LAST_MOMENT], np.int64)
    epochs = capped_epochs(calendar, moments)
    bad = [
        BadRow(line, "the record's timestamp is not a time from 1970 to 9999 in milliseconds")
        for line, is_good in zip(rows.lines.tolist(), good.tolist(), strict=True)
        if not is_good
    ]
    users = list(zip(rows.users, good.tolist(), strict=True))
    placed = replace(
        rows,
        lines=rows.lines[good],
        users=[user for user, is_good in users if is_good],
        epochs=epochs.astype(np.int32),
        positions=moments,
        values=rows.values[good],
        named=[*rows.named, *(user for user, is_good in users if not is_good)],
    )
    return placed, bad
