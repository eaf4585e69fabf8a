"""Item logs: who holds which items at which epoch.

A file holds one row per item, in any order: ``user,epoch,value`` or ``user,time,value``. Every
epoch stands alone: a user holds the items of the rows of that epoch, and no others. All users are
present at every epoch, whether they hold items or not; a row without a value says that there is
such a user, and no more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Published
from dpstream.pipeline.devices.bad_rows import BadRow, BadRows, BadRowsError, counted
from dpstream.pipeline.devices.change_log import ChangeLog, load_change_log
from dpstream.pipeline.devices.duplicates import precedence
from dpstream.pipeline.devices.example_log import ExampleLog, load_example_log
from dpstream.pipeline.devices.row_reader import RowReader
from dpstream.pipeline.devices.tables import InputTable, Table, read_table, starts
from dpstream.pipeline.devices.truths import Truths
from dpstream.pipeline.jobs.input_forms import AS_IT_IS, InputForm
from dpstream.pipeline.values.examples import ExampleDomain
from dpstream.pipeline.values.item_sums import ItemSums
from dpstream.pipeline.values.times import EpochCalendar, shown
from dpstream.pipeline.values.value_domains import ValueDomain


@dataclass(frozen=True, slots=True, eq=False)
class ItemLog:
    """Every item of every user, sorted by epoch and then by user; each once.

    Attributes:
        users: sorted; an index below is a position in it.
        epochs: int32 (rows,), from 1 to `last_epoch`, ascending.
        user_indices: int32 (rows,).
        values: int64 (rows,), items from 1 on.
        slots: the most items of a user at an epoch.
        last_epoch: the last epoch the log is about.
        bad_rows: the rows that were skipped.
        notices: sentences about rows and columns that were not used as they stand.
        rostered: whether `users` are those of a roster; otherwise they are all who have a row,
            wherever it is placed and whatever its value.
        strangers: how many users have rows, which are not used, and are not on the roster.
    """

    users: Sequence[str]
    epochs: NDArray[np.int32]
    user_indices: NDArray[np.int32]
    values: NDArray[np.int64]
    slots: int
    last_epoch: int
    bad_rows: BadRows
    notices: tuple[str, ...] = ()
    rostered: bool = False
    strangers: int = 0

    def values_by_epoch(self) -> Iterator[NDArray[np.int64]]:
        """The items of all users at epochs 1, 2, ..., shape (users, slots), 0 where there are less.

        The array is changed in place.
        """
        values = np.zeros((len(self.users), self.slots), np.int64)
        for epoch in range(1, self.last_epoch + 1):
            users, items = self._rows_of(epoch)
            first = np.maximum.accumulate(np.where(starts(users), np.arange(len(users)), 0))
            values[:] = 0
            values[users, np.arange(len(users)) - first] = items
            yield values

    def counts_at(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The items that somebody holds at an epoch, ascending, and how many users do."""
        items, counts = np.unique(self._rows_of(epoch)[1], return_counts=True)
        return items, counts.astype(np.int64)

    def truth(self, domain: ValueDomain) -> NDArray[np.int64]:
        """How many users hold each of the items: int64, shape (last_epoch, items)."""
        counts = np.zeros((self.last_epoch, domain.size), np.int64)
        np.add.at(counts, (self.epochs - 1, self.values), 1)
        return counts[:, 1:]

    def truths(self, domain: ValueDomain) -> Truths:
        """The truth about every estimate, of which only what was estimated is counted."""
        return _HeldTruths(self)

    def _rows_of(self, epoch: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        first, stop = np.searchsorted(self.epochs, [epoch, epoch + 1])
        return self.user_indices[first:stop], self.values[first:stop]


class _HeldTruths(Truths):
    def __init__(self, log: ItemLog) -> None:
        self._log = log
        self.last_epoch = log.last_epoch

    def of(self, epoch: int, estimate: Published | None) -> NDArray[np.int64]:
        if estimate is None:
            return np.zeros(0, np.int64)
        held = ItemSums(*self._log.counts_at(epoch))
        return np.asarray(held.of(estimate.numbers), np.int64)


ValueLog: TypeAlias = ChangeLog | ItemLog | ExampleLog
"""What users hold, epoch by epoch."""


def load_value_log(
    path: str | PathLike[str],
    *,
    domain: ValueDomain,
    calendar: EpochCalendar | None = None,
    last_epoch: int | None = None,
    to_last_row: bool = False,
    skip_bad_rows: bool = False,
    users: Collection[str] | None = None,
    form: InputForm = AS_IT_IS,
) -> ValueLog:
    """Read a file as the domain understands it: changes, items of single epochs, or examples.

    Arguments and errors are those of `load_change_log`, `load_item_log` and `load_example_log`.
    """
    if isinstance(domain, ExampleDomain):
        return load_example_log(
            path,
            domain=domain,
            last_epoch=1 if last_epoch is None else last_epoch,
            skip_bad_rows=skip_bad_rows,
            users=users,
            form=form,
        )
    load = load_change_log if domain.slots is None else load_item_log
    return load(
        path,
        domain=domain,
        calendar=calendar,
        last_epoch=last_epoch,
        to_last_row=to_last_row,
        skip_bad_rows=skip_bad_rows,
        users=users,
        form=form,
    )


def load_item_log(
    path: str | PathLike[str],
    *,
    domain: ValueDomain,
    calendar: EpochCalendar | None = None,
    last_epoch: int | None = None,
    to_last_row: bool = False,
    skip_bad_rows: bool = False,
    users: Collection[str] | None = None,
    form: InputForm = AS_IT_IS,
) -> ItemLog:
    """Read a file of items, plain or gzip whatever its name.

    Columns and users are those of `load_change_log`. Rows outside the horizon are not used. Of a
    user with more items at an epoch than `ValueDomain.slots`, those that come first in the file are
    used, unless ``form.duplicates`` names others.

    Args:
        path: of the file.
        domain: what an item may be, and how many a user may hold.
        calendar: places times; a log with times needs one.
        last_epoch: the horizon; without one, the last epoch of a row.
        to_last_row: the log ends with the epoch of its last row, if that is before `last_epoch`.
        skip_bad_rows: go on without bad rows instead of raising.
        users: the roster; None for whoever has a row.
        form: how rows are written.

    Raises:
        BadRowsError: there are bad rows. All have been counted; the first ten are shown.
        InputError: as `load_change_log`.
    """
    assert domain.slots is not None
    reader = RowReader(domain, calendar, form)
    read = read_table(path, reader, last_epoch, to_last_row=to_last_row, users=users)
    notices = [*read.notices, *read.check(read.bad_rows, skip=skip_bad_rows)]
    table = read.table
    if before := int(np.count_nonzero(table.epochs < 1)):
        notices.append(f"{counted(before)} before epoch 1: not used")
        table = table.where(table.epochs >= 1)
    table = _one_item_each(table)
    user_indices, values = table.users, table.values.astype(np.int64)
    # The first row of each item, in the order of the file or of the rule.
    rank = precedence(table.lines, values, form.duplicates or "first")
    order = np.lexsort((rank, values, user_indices, table.epochs))
    new = starts(table.epochs[order]) | starts(user_indices[order]) | starts(values[order])
    order = order[new & (values[order] > 0)]
    order = order[np.lexsort((rank[order], user_indices[order], table.epochs[order]))]
    epochs, user_indices, values = table.epochs[order], user_indices[order], values[order]
    crowds = domain.crowds_of(values)
    if crowds is not None:
        same = crowds == crowds[_first_rows(epochs, user_indices)]
        if not same.all():
            notices.append(
                f"{counted(int(np.count_nonzero(~same)), 'value')} in another {domain.column} "
                "than the user's first one at the epoch: not used"
            )
            epochs, user_indices, values = epochs[same], user_indices[same], values[same]
            order = order[same]
    within = np.arange(len(values)) - _first_rows(epochs, user_indices) < domain.slots
    if not within.all():
        notices.append(
            f"{counted(int(np.count_nonzero(~within)), 'item')} of users who hold more than "
            f"{domain.slots} at an epoch: not used"
        )
        if form.duplicates == "refuse" and not skip_bad_rows:
            raise BadRowsError(read.bad_rows.plus(_excess(table.where(order[~within]), read)))
    return ItemLog(
        users=read.users,
        epochs=epochs[within],
        user_indices=user_indices[within],
        values=values[within],
        slots=domain.slots,
        last_epoch=read.last_epoch,
        bad_rows=read.bad_rows,
        notices=tuple(f"{read.name}: {notice}" for notice in notices),
        rostered=read.rostered,
        strangers=read.strangers,
    )


def _excess(table: Table, read: InputTable) -> list[BadRow]:
    """The rows of items that are too many."""
    return [
        BadRow(line, f"more items of user {shown(read.users[user])} at the epoch than the job has")
        for line, user in zip(table.lines.tolist(), table.users.tolist(), strict=True)
    ]


def _first_rows(epochs: NDArray[np.int32], users: NDArray[np.int32]) -> NDArray[np.intp]:
    is_first = starts(epochs) | starts(users)
    return np.maximum.accumulate(np.where(is_first, np.arange(len(epochs)), 0))


def _one_item_each(table: Table) -> Table:
    if table.values.ndim == 1:
        return table
    wanted = table.values > 0
    wanted[:, 0] = True
    rows, columns = np.nonzero(wanted)
    return replace(table.where(rows), values=table.values[rows, columns])
