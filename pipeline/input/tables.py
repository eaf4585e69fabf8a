"""Reading the rows of a CSV file into columns, whatever they are going to mean."""

from __future__ import annotations

import gzip
import io
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from os import PathLike, fspath
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from pipeline.input.bounded_lines import EndlessLineError
from pipeline.input.rows import (
    HEADER_NEEDS,
    BadRows,
    Columns,
    InputError,
    Placing,
    counted,
    parse_rows,
    read_records,
)
from pipeline.input.times import EpochCalendar, shown
from pipeline.input.values import ValueDomain

_HEADER_CAP = 1 << 16  # characters; a file of one endless line is no log
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Rows as columns.

    Attributes:
        users: numbers of users, in the order in which they were first met.
        positions: where a row stands in time, as `placing` of its file says.
        epochs: below 1 for rows before the first one.
        values: in the domain's dtype.
        lines: of the file, counted from 1.
    """

    users: NDArray[np.int32]
    positions: NDArray[np.int64]
    epochs: NDArray[np.int32]
    values: NDArray[Any]
    lines: NDArray[np.int64]

    def where(self, selection: NDArray[Any]) -> Table:
        """Some of the rows, in the order of the selection."""
        columns = (self.users, self.positions, self.epochs, self.values, self.lines)
        return Table(*(column[selection] for column in columns))


@dataclass(frozen=True, slots=True, eq=False)
class InputTable:
    """The rows of a file that lie within the horizon.

    Attributes:
        name: of the file.
        names: of the users, by number.
        table: the rows, in the order of the file.
        placing: by epochs or times.
        last_epoch: the horizon, or the last epoch of a row where none is given.
        bad_rows: those that could not be read.
        notices: what of the file is not used.
    """

    name: str
    names: list[str]
    table: Table
    placing: Placing
    last_epoch: int
    bad_rows: BadRows
    notices: tuple[str, ...]

    def sorted_users(self, present: NDArray[np.int32]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
        """The names of these users, sorted, and each user's place among them by its number."""
        order = sorted(np.unique(present).tolist(), key=self.names.__getitem__)
        places = np.full(len(self.names), -1, dtype=np.int32)
        places[order] = np.arange(len(order), dtype=np.int32)
        return tuple(self.names[user] for user in order), places


def read_table(
    path: str | PathLike[str],
    domain: ValueDomain,
    calendar: EpochCalendar | None,
    last_epoch: int | None,
    *,
    to_last_row: bool,
) -> InputTable:
    """Read a CSV file, plain or gzip whatever its name.

    Args:
        path: of the file.
        domain: what a value may be.
        calendar: places times; a log with times needs one.
        last_epoch: the horizon; without one, the last epoch of a row.
        to_last_row: the log ends with the epoch of its last row, if that is before `last_epoch`.

    Raises:
        InputError: the file cannot be read, lacks a header or holds no row.
    """
    name = fspath(path)
    bad_rows = BadRows(name)
    indices: defaultdict[str, int] = defaultdict(count().__next__)
    batches: list[tuple[NDArray[Any], ...]] = []
    with open_text(name) as text:
        columns = _header(name, text, calendar)
        for records in read_records(text, before=1):
            rows, bad = parse_rows(records, columns, domain, calendar)
            bad_rows = bad_rows.plus(bad)
            user_indices = np.fromiter(
                map(indices.__getitem__, rows.users), np.int32, len(rows.users)
            )
            batches.append((user_indices, rows.positions, rows.epochs, rows.values, rows.lines))
    if not batches:
        raise InputError(f"{name}: there is a header but no row")
    table = Table(*(np.concatenate(column) for column in zip(*batches, strict=True)))
    notices = []
    if columns.unused:
        notices.append(f"not used: column {', '.join(map(shown, columns.unused))}")
    if last_epoch is None or to_last_row:
        last_row = max(1, int(table.epochs.max(initial=1)))
        last_epoch = last_row if last_epoch is None else min(last_row, last_epoch)
    within = table.epochs <= last_epoch
    if after := len(within) - int(np.count_nonzero(within)):
        notices.append(f"{counted(after)} after epoch {last_epoch}: not used")
        table = table.where(within)
    return InputTable(
        name, list(indices), table, columns.placing, last_epoch, bad_rows, tuple(notices)
    )


def starts(column: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a run of equal entries begins."""
    starts = np.ones(len(column), dtype=bool)
    np.not_equal(column[1:], column[:-1], out=starts[1:])
    return starts


@contextmanager
def open_text(name: str) -> Iterator[TextIO]:
    """The text of a file, plain or gzip; what goes wrong until it is closed is an `InputError`."""
    try:
        with ExitStack() as stack:
            file = stack.enter_context(open(name, "rb"))
            binary: io.BufferedReader | gzip.GzipFile = file
            if file.peek(2)[:2] == _GZIP_MAGIC:
                binary = stack.enter_context(gzip.GzipFile(fileobj=file))
            yield io.TextIOWrapper(
                binary, encoding="utf-8-sig", errors="surrogateescape", newline="\n"
            )
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{name}: damaged gzip file ({error}); fetch or pack it again") from None
    except EndlessLineError as error:
        raise InputError(f"{name}: {error}") from None
    except OSError as error:
        raise InputError(f"{name}: {error.strerror or error}") from None


def _header(name: str, text: TextIO, calendar: EpochCalendar | None) -> Columns:
    line = text.readline(_HEADER_CAP)
    first = next(read_records([line] if line else []), None)
    if first is None:
        raise InputError(f"{name}: empty; the first line must name {HEADER_NEEDS}")
    if first.broken:
        raise InputError(f"{name}:1: {first.broken.as_row().reason}")
    columns = Columns.of(name, first.fields[0])
    if columns.placing is Placing.TIME and calendar is None:
        raise InputError(
            f"{name}: it has times; the job file's epochs need a start and a length to place them"
        )
    return columns
