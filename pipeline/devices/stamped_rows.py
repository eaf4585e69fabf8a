"""Rows of a topic that are placed by the timestamps of their records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.devices.bad_rows import BadRow
from dpstream.pipeline.devices.rows import Rows, capped_epochs
from dpstream.pipeline.jobs.epoch_times import LAST_MOMENT
from dpstream.pipeline.values.times import EpochCalendar


def stamped(
    rows: Rows, records: Sequence[LogRecord], calendar: EpochCalendar
) -> tuple[Rows, list[BadRow]]:
    """The rows, placed; and those whose records have no timestamp, or one of no calendar.

    Whoever writes to a topic may choose timestamps: microseconds in place of milliseconds are a
    time after the year 9999. What came before there were timestamps has -1.

    Args:
        rows: of which `lines` are offsets.
        records: of the topic, theirs among them.
        calendar: of the job.
    """
    stamps = {record.offset: record.timestamp for record in records}
    found = [stamps[line] for line in rows.lines.tolist()]
    good = np.array([0 <= stamp <= LAST_MOMENT for stamp in found], np.bool_)
    moments = np.array([1000 * stamp for stamp in found if 0 <= stamp <= LAST_MOMENT], np.int64)
    epochs = capped_epochs(calendar, moments)
    bad = [
        BadRow(line, "its record's timestamp is no time from 1970 to 9999 in milliseconds")
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
