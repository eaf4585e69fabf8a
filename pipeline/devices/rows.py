"""From CSV records to typed rows, and what is wrong with the others.

What a file and a live source have in common: records and the lines they stand on, the header, the
fields (parsed a batch of columns at a time), and the account kept of bad rows.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.devices.bounded_lines import BoundedLines
from pipeline.errors import WRONG_INPUT, DpstreamError
from pipeline.values.times import EpochCalendar, parse_times, shown
from pipeline.values.value_domains import ValueDomain

SHOWN_BAD_ROWS = 10

HEADER_NEEDS = "the columns user, value and epoch or time"
_EPOCH = re.compile(r"\s*[+-]?[0-9]{1,20}\s*")
_EPOCH_CAP = 2**31 - 1
_BATCH = 1 << 12  # records parsed at a time: they stay in the processor's cache
_BATCH_CHARACTERS = 1 << 20  # but no more than that of them, however long they are


def counted(count: int, noun: str = "row") -> str:
    """``1 row``, ``2,000 rows``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class InputError(DpstreamError, ValueError):
    """Input that cannot be used: says which file, what is wrong and what to do."""

    exit_code = WRONG_INPUT


@dataclass(frozen=True, slots=True, order=True)
class BadRow:
    """A row that cannot be used: the physical line it begins on, counted from 1, and why.

    Attributes:
        anonymous: whether it does not tell whose it is.
    """

    line: int
    reason: str
    anonymous: bool = False


@dataclass(frozen=True, slots=True)
class BadRows:
    """How many rows of an input are bad, and the first of them in the order of the file.

    Attributes:
        anonymous: how many of them do not tell whose they are.
    """

    name: str
    total: int = 0
    first: tuple[BadRow, ...] = ()
    anonymous: int = 0

    def plus(self, rows: Sequence[BadRow], untold: int = 0) -> BadRows:
        """This account with more rows in it, and the number of others that come after those."""
        first = sorted((*self.first, *rows))[:SHOWN_BAD_ROWS]
        anonymous = self.anonymous + sum(row.anonymous for row in rows)
        return BadRows(self.name, self.total + len(rows) + untold, tuple(first), anonymous)

    def __str__(self) -> str:
        lines = [f"{self.name}:{row.line}: {row.reason}" for row in self.first]
        if self.total > len(self.first):
            lines.append(f"... and {self.total - len(self.first):,} more")
        return "\n".join(lines)


class BadRowsError(InputError):
    """Bad rows where none were allowed; ``bad_rows`` holds the account.

    The message does not say how to skip them where that cannot be.
    """

    def __init__(self, bad_rows: BadRows, *, skippable: bool = True) -> None:
        otherwise = ", or go on without them by --skip-bad-rows" if skippable else ""
        super().__init__(
            f"{bad_rows.name}: {counted(bad_rows.total, 'bad row')}; "
            f"correct them{otherwise}\n{bad_rows}"
        )
        self.bad_rows = bad_rows


@dataclass(frozen=True, slots=True)
class BrokenRecord:
    """Lines, from the first to the last one, that make no CSV record."""

    first: int
    last: int
    reason: str

    def as_row(self) -> BadRow:
        """The bad row it is."""
        through = f" (read on to line {self.last})" if self.last > self.first else ""
        return BadRow(self.first, f"broken CSV: {self.reason}{through}", anonymous=True)


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Consecutive CSV records, the line each begins on (int64), and a broken one that follows."""

    fields: list[list[str]]
    lines: NDArray[np.int64]
    broken: BrokenRecord | None = None


def read_records(lines: Iterable[str], before: int = 0) -> Iterator[Records]:
    """Split lines, which keep their line ends, into batches of CSV records.

    Args:
        lines: of a file.
        before: how many lines of it came before these.
    """
    held = BoundedLines(lines)
    reader = csv.reader(held, strict=True)
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
            # The reader goes on with the line after the one at which it gave up.
            broken = BrokenRecord(line, before + held.taken, str(error).partition(" - ")[0])
            line = broken.last + 1
        if fields or broken:
            yield Records(fields, np.array(begins, dtype=np.int64), broken)


class Placing(StrEnum):
    """What places a row in an epoch: a column of that name, or the moment the row arrives."""

    EPOCH = "epoch"
    TIME = "time"
    ARRIVAL = "arrival"


@dataclass(frozen=True, slots=True)
class Columns:
    """Where the columns stand that a header names; `crowd` is -1 where there are no crowds."""

    width: int
    user: int
    value: int
    placing: Placing
    position: int
    unused: tuple[str, ...]
    crowd: int = -1

    @classmethod
    def of(
        cls, name: str, header: Sequence[str], *, live: bool = False, crowd: str | None = None
    ) -> Columns:
        """The columns of a header, found by name in any order and any case.

        Args:
            name: of the input, for messages.
            header: the fields of the first line.
            live: whether a header without epoch and time is one whose rows count on arrival.
            crowd: the column of the crowd that a user is in; None where there are no crowds.

        Raises:
            InputError: a column is missing or named twice, or epoch and time are both there.
        """
        names = [field.strip().casefold() for field in header]
        if "\0" in "".join(names) or not _is_text("".join(names)):
            raise InputError(
                f"{name}: the first line is not UTF-8 text; it must name {HEADER_NEEDS}"
            )
        placings = [placing for placing in (Placing.EPOCH, Placing.TIME) if placing in names]
        if live and not placings:
            placings = [Placing.ARRIVAL]
        if "user" not in names or "value" not in names or not placings:
            raise InputError(
                f"{name}: the first line must name {HEADER_NEEDS}; it is {shown(','.join(header))}"
            )
        if len(placings) > 1:
            raise InputError(
                f"{name}: the header names both epoch and time; rename the one not to go by"
            )
        (placing,) = placings
        crowd = None if crowd is None else crowd.strip().casefold()
        if crowd is not None and crowd not in names:
            raise InputError(
                f"{name}: the first line must name the column {crowd}, by which the job has "
                f"crowds; it is {shown(','.join(header))}"
            )
        used = ["user", "value", *([placing] if placing in names else [])]
        used += [] if crowd is None else [crowd]
        for column in used:
            if names.count(column) > 1:
                raise InputError(f"{name}: the header names the column {column} twice")
        return cls(
            width=len(names),
            user=names.index("user"),
            value=names.index("value"),
            placing=placing,
            position=names.index(placing) if placing in names else -1,
            unused=tuple(
                field.strip()
                for field, column in zip(header, names, strict=True)
                if column not in used
            ),
            crowd=-1 if crowd is None else names.index(crowd),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Good rows, in the order they came in.

    Attributes:
        lines: int64, the physical line each row begins on.
        users: as many strings.
        epochs: int32, the epoch each row lies in; 0 or below before the first, 0 by arrival.
        positions: int64, what orders rows of one user: the time in microseconds, or the epoch.
        values: in the domain's dtype.
        listed: line and user of rows without a value that are placed before epoch 1: they say that
            there is such a user. Where the domain has a meaning for an empty value, they are good
            rows too.
        named: users of bad rows.
    """

    lines: NDArray[np.int64]
    users: list[str]
    epochs: NDArray[np.int32]
    positions: NDArray[np.int64]
    values: NDArray[Any]
    listed: list[tuple[int, str]]
    named: list[str]


def parse_rows(
    records: Records, columns: Columns, domain: ValueDomain, calendar: EpochCalendar | None
) -> tuple[Rows, list[BadRow]]:
    """The good rows among CSV records, and the bad ones. Empty lines are no rows.

    Args:
        records: to parse.
        columns: of the header.
        domain: of the values.
        calendar: places times; needed when ``columns.placing`` is time.
    """
    bad = [records.broken.as_row()] if records.broken else []
    fields, lines = records.fields, records.lines
    if set(map(len, fields)) - {columns.width}:
        whole = np.array([len(row) == columns.width for row in fields])
        bad += [
            BadRow(
                int(lines[index]),
                f"{len(fields[index])} fields; the header has {columns.width}",
                anonymous=True,
            )
            for index in np.flatnonzero(~whole).tolist()
            if fields[index]
        ]
        fields, lines = [row for row in fields if len(row) == columns.width], lines[whole]

    users = [row[columns.user] for row in fields]
    problems = user_problems(users)
    nameless = set(problems)
    positions = epochs = np.zeros(len(fields), dtype=np.int64)
    if columns.placing is not Placing.ARRIVAL:
        texts = [row[columns.position] for row in fields]
        if columns.placing is Placing.EPOCH:
            epochs, found = _parse_epochs(texts)
            positions = epochs
        else:
            assert calendar is not None, "the reader checks this with the header"
            positions, found = parse_times(texts)
            epochs = np.clip(calendar.epochs_of(positions), -_EPOCH_CAP, _EPOCH_CAP)
        problems = found | problems
    texts = [row[columns.value] for row in fields]
    values, found = domain.parse(
        texts
        if columns.crowd < 0
        else [domain.text_of(row[columns.crowd], row[columns.value]) for row in fields]
    )
    before = [] if columns.placing is Placing.ARRIVAL else np.flatnonzero(epochs < 1).tolist()
    empty = [index for index in before if index not in problems and not texts[index].strip()]
    listed = [(int(lines[index]), users[index]) for index in empty]
    valueless = [index for index in empty if found.pop(index, None)]
    problems = found | problems
    named = [users[index] for index in problems if index not in nameless]

    if problems or valueless:
        bad += [BadRow(int(lines[index]), reason) for index, reason in problems.items()]
        good = np.ones(len(fields), dtype=bool)
        good[[*problems, *valueless]] = False
        users = [user for user, is_good in zip(users, good.tolist(), strict=True) if is_good]
        lines, epochs, positions, values = (
            column[good] for column in (lines, epochs, positions, values)
        )
    return Rows(lines, users, epochs.astype(np.int32), positions, values, listed, named), bad


def _parse_epochs(texts: list[str]) -> tuple[NDArray[np.int64], dict[int, str]]:
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
            problems[index] = f"epoch {shown(text)} is not a whole number below 2^31"
            number = 0
        numbers.append(number)
    return np.array(numbers, dtype=np.int64), problems


def user_problems(users: list[str]) -> dict[int, str]:
    """What is wrong with names of users, by index."""
    text = "".join(users)
    if all(users) and "\0" not in text and _is_text(text):
        return {}
    problems: dict[int, str] = {}
    for index, user in enumerate(users):
        if not user:
            problems[index] = "the user is empty"
        elif "\0" in user:
            problems[index] = "the user holds a NUL byte"
        elif not _is_text(user):
            problems[index] = f"the user {shown(user)} is not valid UTF-8"
    return problems


def _is_text(text: str) -> bool:
    """Whether a text read with errors="surrogateescape" was valid UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
