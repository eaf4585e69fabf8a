"""Reading the rows of a CSV file into columns, whatever they are going to mean."""

from __future__ import annotations

import gzip
import io
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain, count
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from pipeline.devices.bounded_lines import EndlessLineError
from pipeline.devices.rows import (
    HEADER_NEEDS,
    BadRows,
    BadRowsError,
    Columns,
    InputError,
    Placing,
    Records,
    counted,
    parse_rows,
    read_records,
)
from pipeline.values.times import EpochCalendar, shown
from pipeline.values.value_domains import ValueDomain
from pipeline.whole_files import open_regular

_HEADER_CAP = 1 << 16  # characters; a file of one endless line is no log
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Rows as columns.

    Attributes:
        users: as positions in the tuple of all of them.
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
    """The rows of a file that lie within the horizon, and who there is.

    Attributes:
        name: of the file.
        users: those of the roster, or all who have a row, wherever it is placed and whatever its
            value; sorted.
        rostered: whether they are those of a roster.
        strangers: how many users with a row are not among them.
        table: the rows, in the order of the file; users are positions in `users`.
        placing: by epochs or times.
        last_epoch: the horizon, or the last epoch of a row where none is given.
        bad_rows: those that could not be read.
        notices: what of the file is not used.
    """

    name: str
    users: tuple[str, ...]
    rostered: bool
    strangers: int
    table: Table
    placing: Placing
    last_epoch: int
    bad_rows: BadRows
    notices: tuple[str, ...]

    def check(self, bad_rows: BadRows, *, skip: bool) -> list[str]:
        """See whether the file is of use without its bad rows.

        Args:
            bad_rows: all that are left out.
            skip: whether that is allowed.

        Returns:
            what there is to say of them.

        Raises:
            BadRowsError: there are some.
            InputError: some may belong to users who have no other row; or no row is left to use,
                where no roster says who there is.
        """
        if bad_rows.total and not skip:
            raise BadRowsError(bad_rows)
        skipped = [f"{counted(bad_rows.total, 'bad row')} skipped"] if bad_rows.total else []
        if self.rostered:
            return skipped if len(self.table.users) else [*skipped, "no row is left to use"]
        if bad_rows.anonymous:
            raise InputError(
                f"{self.name}: {counted(bad_rows.anonymous, 'bad row')} whose user cannot be "
                "read: who has a row is public, so correct them, or say by --users FILE who "
                f"there is\n{bad_rows}"
            )
        if not len(self.table.users):
            said = "; ".join([*self.notices, *skipped])
            raise InputError(f"{self.name}: no row is left to use ({said})")
        return skipped


def read_table(
    path: str | PathLike[str],
    domain: ValueDomain,
    calendar: EpochCalendar | None,
    last_epoch: int | None,
    *,
    to_last_row: bool,
    users: Collection[str] | None = None,
) -> InputTable:
    """Read a CSV file, plain or gzip whatever its name.

    Args:
        path: of the file.
        domain: what a value may be.
        calendar: places times; a log with times needs one.
        last_epoch: the horizon; without one, the last epoch of a row.
        to_last_row: the log ends with the epoch of its last row, if that is before `last_epoch`.
        users: the roster; None for whoever has a row.

    Raises:
        InputError: the file cannot be read, lacks a header or, without a roster, holds no row.
    """
    name = fspath(path)
    bad_rows = BadRows(name)
    numbers: defaultdict[str, int] = defaultdict(count().__next__)
    # One batch without rows has all columns in their types, also where there is no other.
    nothing = Records([], np.zeros(0, np.int64))
    batches: list[tuple[NDArray[Any], ...]] = []
    with open_text(name) as text:
        columns = _header(name, text, calendar, domain.column)
        for records in chain([nothing], read_records(text, before=1)):
            rows, bad = parse_rows(records, columns, domain, calendar)
            bad_rows = bad_rows.plus(bad)
            user_numbers = np.fromiter(
                map(numbers.__getitem__, rows.users), np.int32, len(rows.users)
            )
            for user in chain((user for _, user in rows.listed), rows.named):
                numbers[user]
            batches.append((user_numbers, rows.positions, rows.epochs, rows.values, rows.lines))
    if not numbers and not bad_rows.total and users is None:
        raise InputError(f"{name}: there is a header but no row")
    table = Table(*(np.concatenate(column) for column in zip(*batches, strict=True)))
    known = tuple(sorted(numbers if users is None else set(users)))
    table, strangers = _of_users(table, known, numbers)
    notices = []
    if columns.unused:
        notices.append(f"not used: column {', '.join(map(shown, columns.unused))}")
    if strangers:
        notices.append(
            f"not on the roster: {counted(strangers, 'user')} with rows, which are not used"
        )
    if last_epoch is None or to_last_row:
        last_row = max(1, int(table.epochs.max(initial=1)))
        last_epoch = last_row if last_epoch is None else min(last_row, last_epoch)
    within = table.epochs <= last_epoch
    if after := len(within) - int(np.count_nonzero(within)):
        notices.append(f"{counted(after)} after epoch {last_epoch}: not used")
        table = table.where(within)
    return InputTable(
        name=name,
        users=known,
        rostered=users is not None,
        strangers=strangers,
        table=table,
        placing=columns.placing,
        last_epoch=last_epoch,
        bad_rows=bad_rows,
        notices=tuple(notices),
    )


def _of_users(
    table: Table, users: tuple[str, ...], numbers: Mapping[str, int]
) -> tuple[Table, int]:
    """The rows of these users, who become positions among them, and how many others there are.

    Args:
        table: its users are numbers.
        users: sorted.
        numbers: of everybody with a row, by name, 0 first.
    """
    positions = {user: position for position, user in enumerate(users)}
    places = np.array([positions.get(user, -1) for user in numbers], np.int32)
    strangers = int(np.count_nonzero(places < 0))
    table = replace(table, users=places[table.users])
    return (table.where(table.users >= 0) if strangers else table), strangers


def starts(column: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a run of equal entries begins."""
    starts = np.ones(len(column), dtype=bool)
    np.not_equal(column[1:], column[:-1], out=starts[1:])
    return starts


@contextmanager
def open_text(name: str, *, regular: bool = False) -> Iterator[TextIO]:
    """The text of a file, plain or gzip; what goes wrong until it is closed is an `InputError`.

    Only a regular file, where a pipe would be waited for too soon and could not be read again.
    """
    try:
        with ExitStack() as stack:
            path = Path(name)
            file = stack.enter_context(open_regular(path) if regular else path.open("rb"))
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


def _header(name: str, text: TextIO, calendar: EpochCalendar | None, crowd: str | None) -> Columns:
    line = text.readline(_HEADER_CAP)
    first = next(read_records([line] if line else []), None)
    if first is None:
        raise InputError(f"{name}: empty; the first line must name {HEADER_NEEDS}")
    if first.broken:
        raise InputError(f"{name}:1: {first.broken.as_row().reason}")
    columns = Columns.of(name, first.fields[0], crowd=crowd)
    if columns.placing is Placing.TIME and calendar is None:
        raise InputError(
            f"{name}: it has times; the job file's epochs need a start and a length to place them"
        )
    return columns
