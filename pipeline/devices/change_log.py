"""Change logs: the values of each user over time.

A file has one row per change, in any order: ``user,epoch,value`` or ``user,time,value``. A value
holds until it changes. The value of an epoch is the one that holds when the epoch ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.devices.bad_rows import SHOWN_BAD_ROWS, BadRow, BadRows, counted
from dpstream.pipeline.devices.duplicates import precedence
from dpstream.pipeline.devices.ground_truths import (
    CountedGroundTruths,
    GroundTruths,
    ItemGroundTruths,
)
from dpstream.pipeline.devices.row_reader import RowReader
from dpstream.pipeline.devices.tables import InputTable, Table, read_table, starts
from dpstream.pipeline.jobs.input_formats import AS_IT_IS, InputFormat
from dpstream.pipeline.values.panels import PanelDomain
from dpstream.pipeline.values.times import EpochCalendar, shown
from dpstream.pipeline.values.value_domains import BOOLEAN, ValueDomain


@dataclass(frozen=True, slots=True, eq=False)
class ChangeLog:
    """Changes of all users, sorted by epoch and then by user.

    A row that repeats its user's current value is not a change and is not stored.

    Attributes:
        users: User names, sorted, including users without changes.
        epochs: Epoch of each change; int32, shape (changes,), from 1 to `last_epoch`, ascending.
        user_indices: Index in `users` of each change; int32, shape (changes,).
        values: New value of each change; shape (changes,), in the domain's dtype (int8 for 0/1).
            Several integers per value add a dimension.
        initial: Value of every user before its first change.
        warnings: Sentences about rows and columns that were not used as written.
        on_user_list: True if `users` come from a user list. Otherwise, `users` are all users with a
            row.
        unknown_users: Number of users with rows who are not on the user list; the rows are unused.
        groups: Number of the public group of each user; int64, shape (users,). None without groups.
    """

    users: tuple[str, ...]
    epochs: NDArray[np.int32]
    user_indices: NDArray[np.int32]
    values: NDArray[Any]
    last_epoch: int
    initial: int
    bad_rows: BadRows
    warnings: tuple[str, ...] = ()
    on_user_list: bool = False
    unknown_users: int = 0
    groups: NDArray[np.int64] | None = None

    def changes_at(self, epoch: int) -> tuple[NDArray[np.int32], NDArray[Any]]:
        """Return the ascending indices of users whose values change in an epoch, and the values."""
        first, stop = np.searchsorted(self.epochs, [epoch, epoch + 1])
        return self.user_indices[first:stop], self.values[first:stop]

    def values_at(self, epoch: int) -> NDArray[Any]:
        """Return every user's value at the end of an epoch; at epoch 0, the initial values."""
        values = self._initial_values()
        stop = np.searchsorted(self.epochs, epoch, side="right")
        # In reverse order, a user's first change is the latest one.
        users, last = np.unique(self.user_indices[:stop][::-1], return_index=True)
        values[users] = self.values[:stop][::-1][last]
        return values

    def values_by_epoch(self) -> Iterator[NDArray[Any]]:
        """Yield the values of all users at epochs 1, 2, ... in one array, changed in place."""
        values = self._initial_values()
        for epoch in range(1, self.last_epoch + 1):
            users, changed = self.changes_at(epoch)
            values[users] = changed
            yield values

    def ground_truth(self, domain: ValueDomain = BOOLEAN) -> NDArray[Any]:
        """Count the users with value 1, or with each of the items, per epoch.

        Returns int64, shape (last_epoch,), or (last_epoch, items) for a domain of items. `domain`
        must be the domain with which the log was read. For panels: float64, (last_epoch, rows).
        """
        if isinstance(domain, PanelDomain):
            return self._truth_of_rows(domain)
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

    def counts_at(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the items that users have at an epoch, ascending, and their user counts."""
        items, counts = np.unique(self.values_at(epoch).astype(np.int64), return_counts=True)
        return items[items > 0], counts[items > 0].astype(np.int64)

    def ground_truths(self, domain: ValueDomain) -> GroundTruths:
        if domain.kind == "found":
            return ItemGroundTruths(self)
        return CountedGroundTruths(self.ground_truth(domain))

    def answers(self, question: int) -> ChangeLog:
        """Return the changes of one integer of each value, by its index."""
        order = np.lexsort((self.epochs, self.user_indices))
        values = self.values[order, question]
        previous = np.roll(values, 1)
        previous[starts(self.user_indices[order])] = self.initial
        rows = np.sort(order[values != previous])
        return replace(
            self,
            epochs=self.epochs[rows],
            user_indices=self.user_indices[rows],
            values=self.values[rows, question],
        )

    def _initial_values(self) -> NDArray[Any]:
        shape = len(self.users), *self.values.shape[1:]
        return np.full(shape, self.initial, self.values.dtype)

    def _truth_of_rows(self, domain: PanelDomain) -> NDArray[np.float64]:
        groups = np.zeros(len(self.users), np.int64) if self.groups is None else self.groups
        return np.stack([domain.ground_truth(values, groups) for values in self.values_by_epoch()])


def load_change_log(
    path: str | PathLike[str],
    *,
    domain: ValueDomain = BOOLEAN,
    calendar: EpochCalendar | None = None,
    last_epoch: int | None = None,
    to_last_row: bool = False,
    skip_bad_rows: bool = False,
    users: Collection[str] | None = None,
    input_format: InputFormat = AS_IT_IS,
) -> ChangeLog:
    """Read a change log from a plain or gzip file with any name.

    The file is CSV unless `input_format` says otherwise. Its first line names the columns in any
    order: ``user``, ``value`` and either ``epoch`` or ``time``. Epochs are numbered from 1. Times
    are ISO 8601 or Unix seconds, and require a `calendar`. Other columns are not used.

    * The last row of a user in an epoch determines the epoch's value.
    * Rows before epoch 1 determine the initial value. Without a value, such rows only list a user.
    * Rows after `last_epoch`, by default the last epoch in any row, are not used. With
      `to_last_row`, the log ends with its last row if that row is earlier.
    * Unreadable rows are bad. So are rows that contradict an earlier line for the same user and
      time or epoch, unless ``input_format.duplicates`` selects one of them.
    * `users` is the user list. If None, the users are all users with a row, even a bad row or one
      outside the horizon.

    Raises:
        BadRowsError: If there are bad rows and `skip_bad_rows` is false. All bad rows are counted;
            the first ten are shown.
        InputError: If the file cannot be read or lacks a header. Without a user list, also if no
            row is usable, or if skipped rows do not identify their users.
    """
    reader = RowReader(domain, calendar, input_format)
    read = read_table(path, reader, last_epoch, to_last_row=to_last_row, users=users)
    table, warnings = read.table, list(read.warnings)
    if before := int(np.count_nonzero(table.epochs < 1)):
        warnings.append(f"{counted(before)} before epoch 1: used as initial values")
        if before == len(table.epochs) and read.placing == "time":
            warnings.append(
                "no row falls within an epoch: if the time column contains epoch numbers, use "
                "--column epoch=NAME instead"
            )
    bad_rows = read.bad_rows
    if input_format.duplicates in (None, "reject"):
        table = table.where(np.lexsort((table.positions, table.users)))
        table, bad_rows = _without_contradictions(table, read)
    else:
        table, others = _one_of_each(table, input_format.duplicates)
        if others:
            warnings.append(
                f"{counted(others)} with another value for the same user and {read.placing}: "
                f"the {input_format.duplicates} counts"
            )
    warnings += read.check(bad_rows, skip=skip_bad_rows)
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
        warnings=tuple(f"{read.name}: {warning}" for warning in warnings),
        on_user_list=read.on_user_list,
        unknown_users=read.unknown_users,
    )


def _without_contradictions(table: Table, read: InputTable) -> tuple[Table, BadRows]:
    """Return the first row for each user and position, and all bad rows, including contradictions.

    The table must be sorted by user, position and line.
    """
    is_first = starts(table.users) | starts(table.positions)
    first = np.maximum.accumulate(np.where(is_first, np.arange(len(is_first)), 0))
    bad = np.flatnonzero(_differ(table.values, table.values[first]))
    shown_rows = bad[np.argsort(table.lines[bad])[:SHOWN_BAD_ROWS]]
    rows = [
        BadRow(
            int(table.lines[index]),
            f"contradicts line {table.lines[first[index]]}: another value for user "
            f"{shown(read.users[table.users[index]])} for the same {read.placing}",
        )
        for index in shown_rows.tolist()
    ]
    return table.where(is_first), read.bad_rows.plus(rows, untold=len(bad) - len(rows))


def _one_of_each(table: Table, rule: str) -> tuple[Table, int]:
    """Select one row per user and position by `rule`; also return the number of differing rows."""
    order = np.lexsort((precedence(table.lines, table.values, rule), table.positions, table.users))
    table = table.where(order)
    is_first = starts(table.users) | starts(table.positions)
    first = np.maximum.accumulate(np.where(is_first, np.arange(len(is_first)), 0))
    others = int(np.count_nonzero(_differ(table.values, table.values[first])))
    return table.where(is_first), others


def _changes(table: Table, initial: int) -> Table:
    """Return the last row per user and epoch, except rows that repeat the user's current value."""
    epochs = np.maximum(table.epochs, 1)
    is_last = np.roll(starts(table.users) | starts(epochs), -1)
    table = Table(table.users, table.positions, epochs, table.values, table.lines).where(is_last)
    previous = np.roll(table.values, 1, axis=0)
    previous[starts(table.users)] = initial
    return table.where(_differ(table.values, previous))


def _differ(values: NDArray[Any], others: NDArray[Any]) -> NDArray[np.bool_]:
    differ: NDArray[np.bool_] = values != others
    return differ if differ.ndim == 1 else np.asarray(differ.any(axis=1), np.bool_)
