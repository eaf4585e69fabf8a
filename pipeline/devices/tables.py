"""Reading the rows of a file into columns, whatever they are going to mean."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from os import PathLike, fspath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.devices.bad_rows import BadRows, BadRowsError, InputError, counted
from dpstream.pipeline.devices.columns import Placing
from dpstream.pipeline.devices.record_files import open_records
from dpstream.pipeline.devices.row_reader import RowReader
from dpstream.pipeline.devices.rows import Records, RowCounts, parse_rows
from dpstream.pipeline.values.times import shown


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
    reader: RowReader,
    last_epoch: int | None,
    *,
    to_last_row: bool,
    users: Collection[str] | None = None,
) -> InputTable:
    """Read a file, plain or gzip whatever its name.

    Args:
        path: of the file.
        reader: says how it is written and what a value may be; a log with times needs a calendar.
        last_epoch: the horizon; without one, the last epoch of a row.
        to_last_row: the log ends with the epoch of its last row, if that is before `last_epoch`.
        users: the roster; None for whoever has a row.

    Raises:
        InputError: the file cannot be read, lacks a header or, without a roster, holds no row.
    """
    name = fspath(path)
    numbers: defaultdict[str, int] = defaultdict(count().__next__)
    # One batch without rows has all columns in their types, also where there is no other.
    nothing = Records([], np.zeros(0, np.int64))
    batches: list[tuple[NDArray[Any], ...]] = []
    counts = RowCounts()
    with open_records(name, reader) as file:
        columns, bad_rows = file.columns, BadRows(name, place=file.place)
        if columns.placing is Placing.TIME and reader.calendar is None:
            raise InputError(
                f"{name}: it has times; the job file's epochs need a start and a length to place "
                "them"
            )
        for records in chain([nothing], file.batches):
            rows, bad = parse_rows(records, columns, reader)
            bad_rows = bad_rows.plus(bad)
            counts = counts.plus(rows.counts)
            user_numbers = np.fromiter(
                map(numbers.__getitem__, rows.users), np.int32, len(rows.users)
            )
            for user in chain((user for _, user in rows.listed), rows.named):
                numbers[user]
            batches.append((user_numbers, rows.positions, rows.epochs, rows.values, rows.lines))
        notices = [*file.notices, *counts.notices(reader)]
    if not numbers and not bad_rows.total and users is None:
        raise InputError(f"{name}: there is a header but no row")
    table = Table(*(np.concatenate(column) for column in zip(*batches, strict=True)))
    known = tuple(sorted(numbers if users is None else set(users)))
    place = file.place or "line "
    table, outside, strangers = _of_users(table, known, numbers)
    if columns.unused:
        notices.append(f"not used: column {', '.join(map(shown, columns.unused))}")
    if strangers:
        notices.append(
            f"not on the roster: {counted(strangers, 'user')} with rows, which are not used"
            f"{_example(outside, list(numbers), place)}"
        )
    if last_epoch is None or to_last_row:
        last_row = max(1, int(table.epochs.max(initial=1)))
        last_epoch = last_row if last_epoch is None else min(last_row, last_epoch)
    within = table.epochs <= last_epoch
    if after := len(within) - int(np.count_nonzero(within)):
        example = _example(table.where(~within), known, place)
        notices.append(f"{counted(after)} after epoch {last_epoch}: not used{example}")
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
) -> tuple[Table, Table, int]:
    """The rows of these users, who become positions among them, those of others, and how many.

    Args:
        table: its users are numbers, and stay so in the rows of others.
        users: sorted.
        numbers: of everybody with a row, by name, 0 first.

    Returns:
        the rows of these users, the rows of others, and how many others there are.
    """
    positions = {user: position for position, user in enumerate(users)}
    places = np.array([positions.get(user, -1) for user in numbers], np.int32)
    strangers = int(np.count_nonzero(places < 0))
    found = replace(table, users=places[table.users])
    if not strangers:
        return found, table.where(np.zeros(0, np.intp)), 0
    return found.where(found.users >= 0), table.where(found.users < 0), strangers


def _example(table: Table, users: Sequence[str], place: str) -> str:
    if not len(table.lines):
        return ""
    first = int(np.argmin(table.lines))
    return f" (the first: {place}{table.lines[first]}, user {shown(users[table.users[first]])})"


def starts(column: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a run of equal entries begins."""
    starts = np.ones(len(column), dtype=bool)
    np.not_equal(column[1:], column[:-1], out=starts[1:])
    return starts
