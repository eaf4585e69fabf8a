"""Item logs: the items of each user at each epoch.

A file has one row per item, in any order: ``user,epoch,value`` or ``user,time,value``. Epochs are
independent: in an epoch, a user has exactly the items in the user's rows for that epoch. All users
are present at every epoch, with or without items. A row without a value only lists its user.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.devices.bad_rows import BadRow, BadRows, BadRowsError, counted
from dpstream.pipeline.devices.change_log import ChangeLog, load_change_log
from dpstream.pipeline.devices.duplicates import precedence
from dpstream.pipeline.devices.ground_truths import GroundTruths, ItemGroundTruths
from dpstream.pipeline.devices.row_reader import RowReader
from dpstream.pipeline.devices.tables import InputTable, Table, read_table, starts
from dpstream.pipeline.jobs.input_formats import AS_IT_IS, InputFormat
from dpstream.pipeline.values.times import EpochCalendar, shown
from dpstream.pipeline.values.value_domains import ValueDomain

if TYPE_CHECKING:
    from dpstream.pipeline.jobs.job_files import Job


@dataclass(frozen=True, slots=True, eq=False)
class ItemLog:
    """Items of all users, distinct, sorted by epoch and then by user.

    Attributes:
        users: User names, sorted.
        epochs: Epoch of each row; int32, shape (rows,), from 1 to `last_epoch`, ascending.
        user_indices: Index in `users` of each row; int32, shape (rows,).
        values: Item of each row, numbered from 1; int64, shape (rows,).
        slots: Maximum number of items that a user has at an epoch.
    """

    users: Sequence[str]
    epochs: NDArray[np.int32]
    user_indices: NDArray[np.int32]
    values: NDArray[np.int64]
    slots: int
    last_epoch: int
    bad_rows: BadRows
    warnings: tuple[str, ...] = ()
    on_user_list: bool = False
    unknown_users: int = 0

    def values_by_epoch(self) -> Iterator[NDArray[np.int64]]:
        """Yield the items at epochs 1, 2, ... in one array, shape (users, slots), padded with 0."""
        values = np.zeros((len(self.users), self.slots), np.int64)
        for epoch in range(1, self.last_epoch + 1):
            users, items = self._rows_of(epoch)
            first = np.maximum.accumulate(np.where(starts(users), np.arange(len(users)), 0))
            values[:] = 0
            values[users, np.arange(len(users)) - first] = items
            yield values

    def counts_at(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        items, counts = np.unique(self._rows_of(epoch)[1], return_counts=True)
        return items, counts.astype(np.int64)

    def ground_truth(self, domain: ValueDomain) -> NDArray[np.int64]:
        """Count the users with each of the items: int64, shape (last_epoch, items)."""
        counts = np.zeros((self.last_epoch, domain.size), np.int64)
        np.add.at(counts, (self.epochs - 1, self.values), 1)
        return counts[:, 1:]

    def ground_truths(self, domain: ValueDomain) -> GroundTruths:
        return ItemGroundTruths(self)

    def _rows_of(self, epoch: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        first, stop = np.searchsorted(self.epochs, [epoch, epoch + 1])
        return self.user_indices[first:stop], self.values[first:stop]


ValueLog: TypeAlias = ChangeLog | ItemLog


def load_job_log(
    job: Job,
    path: str | PathLike[str],
    *,
    last_epoch: int | None = None,
    to_last_row: bool = False,
    skip_bad_rows: bool = False,
    users: Collection[str] | None = None,
    input_format: InputFormat | None = None,
) -> ValueLog:
    load: Callable[..., ValueLog]
    if job.measures is None:
        load = partial(load_value_log, domain=job.domain, calendar=job.epochs.calendar)
    else:
        # Imported late because other jobs do not need it.
        from dpstream.pipeline.devices.event_log import load_event_log

        load = partial(load_event_log, job)
    return load(
        path,
        last_epoch=last_epoch,
        to_last_row=to_last_row,
        skip_bad_rows=skip_bad_rows,
        users=users,
        input_format=job.input_format if input_format is None else input_format,
    )


def load_value_log(
    path: str | PathLike[str],
    *,
    domain: ValueDomain,
    calendar: EpochCalendar | None = None,
    last_epoch: int | None = None,
    to_last_row: bool = False,
    skip_bad_rows: bool = False,
    users: Collection[str] | None = None,
    input_format: InputFormat = AS_IT_IS,
) -> ValueLog:
    load = load_change_log if domain.slots is None else load_item_log
    return load(
        path,
        domain=domain,
        calendar=calendar,
        last_epoch=last_epoch,
        to_last_row=to_last_row,
        skip_bad_rows=skip_bad_rows,
        users=users,
        input_format=input_format,
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
    input_format: InputFormat = AS_IT_IS,
) -> ItemLog:
    """Read an item log; columns, arguments and errors are those of `load_change_log`.

    Rows outside the horizon are not used. If a user has more items at an epoch than
    `ValueDomain.slots`, the first ones are used, unless ``input_format.duplicates`` selects others.
    """
    assert domain.slots is not None
    reader = RowReader(domain, calendar, input_format)
    read = read_table(path, reader, last_epoch, to_last_row=to_last_row, users=users)
    warnings = [*read.warnings, *read.check(read.bad_rows, skip=skip_bad_rows)]
    table = read.table
    if before := int(np.count_nonzero(table.epochs < 1)):
        warnings.append(f"{counted(before)} before epoch 1: not used")
        table = table.where(table.epochs >= 1)
    table = _one_item_each(table)
    user_indices, values = table.users, table.values.astype(np.int64)
    # Keep the first row for each item, in file order or in the configured rule's order.
    rank = precedence(table.lines, values, input_format.duplicates or "first")
    order = np.lexsort((rank, values, user_indices, table.epochs))
    new = starts(table.epochs[order]) | starts(user_indices[order]) | starts(values[order])
    order = order[new & (values[order] > 0)]
    order = order[np.lexsort((rank[order], user_indices[order], table.epochs[order]))]
    epochs, user_indices, values = table.epochs[order], user_indices[order], values[order]
    crowds = domain.crowds_of(values)
    if crowds is not None:
        same = crowds == crowds[_first_rows(epochs, user_indices)]
        if not same.all():
            warnings.append(
                f"{counted(int(np.count_nonzero(~same)), 'value')} in a {domain.column} other "
                "than the user's first one in the epoch: not used"
            )
            epochs, user_indices, values = epochs[same], user_indices[same], values[same]
            order = order[same]
    within = np.arange(len(values)) - _first_rows(epochs, user_indices) < domain.slots
    if not within.all():
        warnings.append(
            f"{counted(int(np.count_nonzero(~within)), 'item')} from users with more than "
            f"{domain.slots} in an epoch: not used"
        )
        if input_format.duplicates == "reject" and not skip_bad_rows:
            raise BadRowsError(read.bad_rows.plus(_excess(table.where(order[~within]), read)))
    return ItemLog(
        users=read.users,
        epochs=epochs[within],
        user_indices=user_indices[within],
        values=values[within],
        slots=domain.slots,
        last_epoch=read.last_epoch,
        bad_rows=read.bad_rows,
        warnings=tuple(f"{read.name}: {warning}" for warning in warnings),
        on_user_list=read.on_user_list,
        unknown_users=read.unknown_users,
    )


def _excess(table: Table, read: InputTable) -> list[BadRow]:
    return [
        BadRow(
            line, f"user {shown(read.users[user])} has more items in the epoch than the job allows"
        )
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
