"""Change logs: who has which value from which epoch on.

A file holds one row per change, in any order: ``user,epoch,value`` or ``user,time,value``. A value
holds until it changes, and the value of an epoch is the one that holds at its end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.devices.bad_rows import SHOWN_BAD_ROWS, BadRow, BadRows, counted
from dpstream.pipeline.devices.duplicates import precedence
from dpstream.pipeline.devices.row_reader import RowReader
from dpstream.pipeline.devices.tables import InputTable, Table, read_table, starts
from dpstream.pipeline.devices.truths import CountedTruths, Truths
from dpstream.pipeline.jobs.input_forms import AS_IT_IS, InputForm
from dpstream.pipeline.values.times import EpochCalendar, shown
from dpstream.pipeline.values.value_domains import BOOLEAN, ValueDomain


@dataclass(frozen=True, slots=True, eq=False)
class ChangeLog:
    """Every change of every user, sorted by epoch and then by user.

    Only changes are kept: a row that repeats the value its user has already is none.

    Attributes:
        users: sorted; an index below is a position in it. A user who never changes is one too.
        epochs: int32 (changes,), from 1 to `last_epoch`, ascending.
        user_indices: int32 (changes,).
        values: (changes,) in the domain's dtype, int8 for 0 and 1.
        last_epoch: the last epoch the log is about.
        initial: the value of every user before its first change.
        bad_rows: the rows that were skipped.
        notices: sentences about rows and columns that were not used as they stand.
        rostered: whether `users` are those of a roster; otherwise they are all who have a row,
            wherever it is placed and whatever its value.
        strangers: how many users have rows, which are not used, and are not on the roster.
    """

    users: tuple[str, ...]
    epochs: NDArray[np.int32]
    user_indices: NDArray[np.int32]
    values: NDArray[Any]
    last_epoch: int
    initial: int
    bad_rows: BadRows
    notices: tuple[str, ...] = ()
    rostered: bool = False
    strangers: int = 0

    def changes_at(self, epoch: int) -> tuple[NDArray[np.int32], NDArray[Any]]:
        """Who changes in an epoch (ascending, each once) and to what: views (m,) and (m,)."""
        first, stop = np.searchsorted(self.epochs, [epoch, epoch + 1])
        return self.user_indices[first:stop], self.values[first:stop]

    def values_at(self, epoch: int) -> NDArray[Any]:
        """The value of every user (users,) at the end of an epoch; at 0, the initial ones."""
        values = np.full(len(self.users), self.initial, dtype=self.values.dtype)
        stop = np.searchsorted(self.epochs, epoch, side="right")
        # Backwards, the first change met of a user is its last one.
        users, last = np.unique(self.user_indices[:stop][::-1], return_index=True)
        values[users] = self.values[:stop][::-1][last]
        return values

    def values_by_epoch(self) -> Iterator[NDArray[Any]]:
        """The values of all users at epochs 1, 2, ...; the array is changed in place."""
        values = np.full(len(self.users), self.initial, self.values.dtype)
        for epoch in range(1, self.last_epoch + 1):
            users, changed = self.changes_at(epoch)
            values[users] = changed
            yield values

    def truth(self, domain: ValueDomain = BOOLEAN) -> NDArray[np.int64]:
        """How many users have value 1, or each of the items, epoch 1 first.

        Args:
            domain: the one the log was read with.

        Returns:
            int64, shape (last_epoch,), or (last_epoch, items) for a domain of items.
        """
        order = np.lexsort((self.epochs, self.user_indices))
        users, values = self.user_indices[order], self.values[order].astype(np.intp)
        before = np.roll(values, 1)
        before[starts(users)] = self.initial
        counts = np.zeros((self.last_epoch, domain.size), np.int64)
        np.add.at(counts, (self.epochs[order] - 1, values), 1)
        np.subtract.at(counts, (self.epochs[order] - 1, before), 1)
        counts[0, self.initial] += len(self.users)
        counts = np.cumsum(counts, axis=0)
        return counts[:, 1] if domain.items is None else counts[:, 1:]

    def truths(self, domain: ValueDomain) -> Truths:
        """The truth about every estimate, from `truth`."""
        return CountedTruths(self.truth(domain))


def load_change_log(
    path: str | PathLike[str],
    *,
    domain: ValueDomain = BOOLEAN,
    calendar: EpochCalendar | None = None,
    last_epoch: int | None = None,
    to_last_row: bool = False,
    skip_bad_rows: bool = False,
    users: Collection[str] | None = None,
    form: InputForm = AS_IT_IS,
) -> ChangeLog:
    """Read a change log, plain or gzip whatever its name.

    Without another `form` it is CSV, and the first line names the columns: ``user``, ``value`` and
    either ``epoch`` (numbered from 1) or ``time`` (ISO 8601 or unix seconds), in any order; others
    are not used. The last row placed in an epoch gives its value. Rows before epoch 1 give the
    value to begin with, and need no value if all they say is that there is such a user; rows after
    `last_epoch` are not used. Rows that repeat each other are harmless. A row that contradicts an
    earlier line, for the same user and epoch (in a log with times: user and time), is bad, unless
    ``form.duplicates`` says which of them counts; as is one that cannot be read.

    Args:
        path: of the file.
        domain: what a value may be.
        calendar: places times; a log with times needs one.
        last_epoch: the horizon; without one, the last epoch of a row.
        to_last_row: the log ends with the epoch of its last row, if that is before `last_epoch`.
        skip_bad_rows: go on without bad rows instead of raising.
        users: the roster: who there is, with a row or without. None: whoever has a row, be it bad
            or outside the horizon.
        form: how rows are written.

    Raises:
        BadRowsError: there are bad rows. All have been counted; the first ten are shown.
        InputError: the file cannot be read or lacks a header. Or, without a roster, it holds no row
            to use, or skipped rows that do not tell whose they are.
    """
    reader = RowReader(domain, calendar, form)
    read = read_table(path, reader, last_epoch, to_last_row=to_last_row, users=users)
    table, notices = read.table, list(read.notices)
    if before := int(np.count_nonzero(table.epochs < 1)):
        notices.append(f"{counted(before)} before epoch 1: the value to begin with")
    bad_rows = read.bad_rows
    if form.duplicates in (None, "refuse"):
        table = table.where(np.lexsort((table.positions, table.users)))
        table, bad_rows = _without_contradictions(table, read)
    else:
        table, others = _one_of_each(table, form.duplicates)
        if others:
            notices.append(
                f"{counted(others)} with another value of the same user and {read.placing}: the "
                f"{form.duplicates} counts"
            )
    notices += read.check(bad_rows, skip=skip_bad_rows)
    table = _changes(table, domain.initial)
    by_epoch = np.lexsort((table.users, table.epochs))
    return ChangeLog(
        users=read.users,
        epochs=table.epochs[by_epoch],
        user_indices=table.users[by_epoch],
        values=table.values[by_epoch],
        last_epoch=read.last_epoch,
        initial=domain.initial,
        bad_rows=bad_rows,
        notices=tuple(f"{read.name}: {notice}" for notice in notices),
        rostered=read.rostered,
        strangers=read.strangers,
    )


def _without_contradictions(table: Table, read: InputTable) -> tuple[Table, BadRows]:
    """The first line for each user and position, of a table sorted by them and then by line."""
    is_first = starts(table.users) | starts(table.positions)
    first = np.maximum.accumulate(np.where(is_first, np.arange(len(is_first)), 0))
    bad = np.flatnonzero(table.values != table.values[first])
    told = bad[np.argsort(table.lines[bad])[:SHOWN_BAD_ROWS]]
    rows = [
        BadRow(
            int(table.lines[index]),
            f"contradicts line {table.lines[first[index]]}: "
            f"another value of user {shown(read.users[table.users[index]])} "
            f"for the same {read.placing}",
        )
        for index in told.tolist()
    ]
    return table.where(is_first), read.bad_rows.plus(rows, untold=len(bad) - len(rows))


def _one_of_each(table: Table, rule: str) -> tuple[Table, int]:
    """The row that counts for each user and position, and how many others say something else.

    Sorted by user and position.
    """
    order = np.lexsort((precedence(table.lines, table.values, rule), table.positions, table.users))
    table = table.where(order)
    is_first = starts(table.users) | starts(table.positions)
    first = np.maximum.accumulate(np.where(is_first, np.arange(len(is_first)), 0))
    others = int(np.count_nonzero(table.values != table.values[first]))
    return table.where(is_first), others


def _changes(table: Table, initial: int) -> Table:
    """The last row of each user and epoch, unless it repeats the value the user has already."""
    epochs = np.maximum(table.epochs, 1)
    is_last = np.roll(starts(table.users) | starts(epochs), -1)
    table = Table(table.users, table.positions, epochs, table.values, table.lines).where(is_last)
    previous = np.roll(table.values, 1)
    previous[starts(table.users)] = initial
    return table.where(table.values != previous)
