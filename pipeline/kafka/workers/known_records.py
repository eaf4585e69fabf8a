"""What a worker knows of partitions that it is going to read: of that it asks no broker.

A record that was acknowledged, or shown to the stage, is what everybody reads at its offset. So a
stage that goes on under the first record of an epoch, its own or another's, need not have its own
one sent back to it, nor one that has woken it a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dpstream.pipeline.actions import LogRecord


@dataclass(slots=True)
class _Row:
    """Records that follow on each other, and the bytes of their values."""

    records: list[LogRecord] = field(default_factory=list)
    size: int = 0


class KnownRecords:
    """Keeps, of each partition that is read, the latest records in a row that have come.

    Args:
        most: bytes that are kept of a partition; of what is longer, the end.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._rows: dict[tuple[object, int], _Row] = {}

    def note(self, place: tuple[object, int], record: LogRecord) -> None:
        """A record of a partition was acknowledged, or shown."""
        row = self._rows.get(place)
        if row is None:
            return
        follows = not row.records or row.records[-1].offset + 1 == record.offset
        if not follows or row.size >= self._most:
            row = self._rows[place] = _Row()
        row.records.append(record)
        row.size += len(record.value)

    def take(self, place: tuple[object, int], start: int, stop: int) -> Sequence[LogRecord]:
        """The records from `start` to before `stop`, or the first of them; none if they are others.

        They are not kept any longer. Before a partition is first asked for, nothing is kept of it.
        """
        records = self._rows.get(place, _Row()).records
        self._rows[place] = _Row()
        first = start - records[0].offset if records else 0
        return records[first : max(first, first + stop - start)] if first >= 0 else ()
