"""Read the rows of a file into columns, independently of the columns' meaning."""

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
    """Rows as columns; users are given by their positions in the tuple of all users.

    Epochs before the first are below 1. Lines are counted from 1.
    """

    users: NDArray[np.int32]
    positions: NDArray[np.int64]
    epochs: NDArray[np.int32]
    values: NDArray[Any]
    lines: NDArray[np.int64]

    def where(self, selection: NDArray[Any]) -> Table:
        columns = (self.users, self.positions, self.epochs, self.values, self.lines)
        return Table(*(column[selection] for column in columns))


@dataclass(frozen=True, slots=True, eq=False)
class InputTable:
    """A file's rows within the horizon, and the file's users.

    Attributes:
        users: Users on the user list, or all users with a row; sorted.
        on_user_list: True if `users` come from a user list.
        unknown_users: Number of users with a row who are not among `users`.
        last_epoch: Last epoch of the horizon, or the last epoch in any row without a horizon.
        warnings: Sentences on unused parts of the file.
    """

    name: str
    users: tuple[str, ...]
    on_user_list: bool
    unknown_users: int
    table: Table
    placing: Placing
    last_epoch: int
    bad_rows: BadRows
    warnings: tuple[str, ...]

    def check(self, bad_rows: BadRows, *, skip: bool) -> list[str]:
        """Check that the file is usable without `bad_rows`, and return warnings about them.

        Raises:
            BadRowsError: If there are bad rows and `skip` is false.
            InputError: Without a user list, if a bad row does not identify its user, or if no row
                is usable.
        """
        if bad_rows.total and not skip:
            raise BadRowsError(bad_rows)
        skipped = [f"{counted(bad_rows.total, 'bad row')} skipped"] if bad_rows.total else []
        if self.on_user_list:
            return skipped if len(self.table.users) else [*skipped, "no usable rows"]
        if bad_rows.anonymous:
            raise InputError(
                f"{self.name}: {counted(bad_rows.anonymous, 'bad row')} with an unreadable "
                "user cannot be skipped, because all users with a row are enrolled: correct these "
                f"rows, or list all users with --users FILE\n{bad_rows}"
            )
        if not len(self.table.users):
            said = "; ".join([*self.warnings, *skipped])
            raise InputError(f"{self.name}: no usable rows ({said})")
        return skipped


def read_table(
    path: str | PathLike[str],
    reader: RowReader,
    last_epoch: int | None,
    *,
    to_last_row: bool,
    users: Collection[str] | None = None,
) -> InputTable:
    """Read a plain or gzip file with any name.

    Arguments are those of `load_change_log`. Raises `InputError` if the file cannot be read, lacks
    a header or, without a user list, has no row.
    """
    name = fspath(path)
    numbers: defaultdict[str, int] = defaultdict(count().__next__)
    # An empty batch determines the type of every column even if the file has no rows.
    nothing = Records([], np.zeros(0, np.int64))
    batches: list[tuple[NDArray[Any], ...]] = []
    counts = RowCounts()
    with open_records(name, reader) as file:
        columns, bad_rows = file.columns, BadRows(name, place=file.place)
        if columns.placing is Placing.TIME and reader.calendar is None:
            raise InputError(
                f"{name}: rows have times, so the job file must set epochs.start and epochs.length"
            )
        reader.check_placing(name, columns.placing)
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
        warnings = [*file.warnings, *counts.warnings(reader)]
    if not numbers and not bad_rows.total and users is None:
        raise InputError(f"{name}: no rows below the header")
    table = Table(*(np.concatenate(column) for column in zip(*batches, strict=True)))
    known = tuple(sorted(numbers if users is None else set(users)))
    place = file.place or "line "
    table, outside, unknown_users = _of_users(table, known, numbers)
    if columns.unused:
        listed = users is not None and columns.fields is not None
        public = "; public attributes are read from the user list" if listed else ""
        warnings.append(f"not used: column {', '.join(map(shown, columns.unused))}{public}")
    if unknown_users:
        warnings.append(
            f"not on the user list: {counted(unknown_users, 'user')} whose rows are not "
            f"used{_example(outside, list(numbers), place)}"
        )
    if last_epoch is None or to_last_row:
        last_row = max(1, int(table.epochs.max(initial=1)))
        last_epoch = last_row if last_epoch is None else min(last_row, last_epoch)
    within = table.epochs <= last_epoch
    if after := len(within) - int(np.count_nonzero(within)):
        example = _example(table.where(~within), known, place)
        warnings.append(f"{counted(after)} after epoch {last_epoch}: not used{example}")
        table = table.where(within)
    return InputTable(
        name=name,
        users=known,
        on_user_list=users is not None,
        unknown_users=unknown_users,
        table=table,
        placing=columns.placing,
        last_epoch=last_epoch,
        bad_rows=bad_rows,
        warnings=tuple(warnings),
    )


def _of_users(
    table: Table, users: tuple[str, ...], numbers: Mapping[str, int]
) -> tuple[Table, Table, int]:
    """Return the rows of known users, the rows of other users, and the number of other users.

    `users` are the known users, sorted. In the result, rows of known users have positions in
    `users`; other rows keep the positions of `numbers`, which has all users with a row.
    """
    positions = {user: position for position, user in enumerate(users)}
    places = np.array([positions.get(user, -1) for user in numbers], np.int32)
    unknown_users = int(np.count_nonzero(places < 0))
    found = replace(table, users=places[table.users])
    if not unknown_users:
        return found, table.where(np.zeros(0, np.intp)), 0
    return found.where(found.users >= 0), table.where(found.users < 0), unknown_users


def _example(table: Table, users: Sequence[str], place: str) -> str:
    if not len(table.lines):
        return ""
    first = int(np.argmin(table.lines))
    return f" (the first: {place}{table.lines[first]}, user {shown(users[table.users[first]])})"


def starts(column: NDArray[Any]) -> NDArray[np.bool_]:
    starts = np.ones(len(column), dtype=bool)
    np.not_equal(column[1:], column[:-1], out=starts[1:])
    return starts
