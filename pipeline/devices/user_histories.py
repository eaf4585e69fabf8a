"""Histories of a producer's users, from rows of events that arrive while the job runs.

Rows wait in the producer's file until their epoch is closed. The transaction that randomizes the
epoch also deletes its rows and stores the histories that contain them. Each row therefore counts
once, even if the producer is killed. A row for a closed epoch enters the history, too: the epoch
stays as it was reported, and later windows that contain it count the event.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.devices.input_store import InputStore, WaitingRow
from dpstream.pipeline.devices.measured_events import ClampedNumbers
from dpstream.randomizers.event_histories import EventHistory

if TYPE_CHECKING:
    from dpstream.pipeline.jobs.job_files import Job

_ORIGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY: Final = date(1970, 1, 1).toordinal()


@dataclass(frozen=True, slots=True, eq=False)
class ClosingEpoch:
    """Values of a closing epoch, and the histories that its rows change once it is drawn.

    `values` are int64, shape (users,) or (users, questions).
    """

    values: NDArray[np.int64]
    changed: Mapping[str, EventHistory]


class UserHistories:
    """Histories in memory, which agree with those in the producer's file after each epoch."""

    def __init__(self, job: Job, store: InputStore) -> None:
        self._job = job
        self._store = store
        self._domain = job.event_domain
        self.clamped = ClampedNumbers(job)
        self._periods: dict[tuple[str, int], int] = {}
        self._histories: dict[str, EventHistory] = {}
        for user, document in store.histories().items():
            self._histories[user] = self._restored(json.loads(document))

    def close(self, epoch: int, rows: Iterable[WaitingRow], users: Sequence[str]) -> ClosingEpoch:
        changed: dict[str, EventHistory] = {}
        for row in rows:
            if row.user not in changed:
                known = self._histories.get(row.user)
                changed[row.user] = self._restored(None if known is None else known.to_json())
            assert isinstance(row.value, list)
            event = self._domain.event_of(row.value)
            changed[row.user].record(row.epoch, row.position, *event, self._day(row.position))
        nothing = self._value(self._restored(None), epoch)
        values = np.array([nothing] * len(users), np.int64)
        for place, user in enumerate(users):
            history = changed.get(user) or self._histories.get(user)
            if history is not None:
                values[place] = self._value(history, epoch)
        return ClosingEpoch(values, changed)

    def keep(self, closing: ClosingEpoch) -> None:
        """Store changed histories; called in the transaction that randomizes the values."""
        self._store.set_histories(
            {user: json.dumps(history.to_json()) for user, history in closing.changed.items()}
        )

    def take(self, closing: ClosingEpoch) -> None:
        """Replace the changed histories in memory, after the transaction."""
        self._histories.update(closing.changed)
        self.clamped.add(closing.values)

    def _restored(self, document: Mapping[str, object] | None) -> EventHistory:
        attributes = (self._job.attributes or {}).values()
        history = EventHistory(
            (self._job.measures or {}).values(),
            self._domain.declared,
            [keys.event for keys in attributes if keys.first_seen],
            self._domain.starts,
        )
        if document is not None:
            history.restore(document)
        return history

    def _value(self, history: EventHistory, epoch: int) -> int | list[int]:
        history.close(epoch)
        values = []
        for question in self._job.questions:
            number = history.answer(question.measure, epoch)
            for name, cells in question.attributes:
                number = number * len(cells) + self._attribute(history, name, cells, epoch)
            values.append(number + bool(question.attributes))
        return values[0] if self._job.domain.columns is None else values

    def _attribute(
        self, history: EventHistory, name: str, values: Sequence[str], epoch: int
    ) -> int:
        keys = (self._job.attributes or {})[name]
        if keys.first_seen is None:
            column = keys.column or name
            return self._domain.numbers_of_labels(column, values)[history.latest(column, epoch)]
        first = history.first(keys.event, epoch)
        if first is None:
            return 0
        moment = first[1]
        if (name, moment) not in self._periods:
            periods = self._job.period_calendar(name).epochs_of(np.array([moment]))
            self._periods[name, moment] = int(periods[0])
        return min(max(self._periods[name, moment], 0), len(values) - 2) + 1

    def _day(self, moment: int) -> int | None:
        calendar = self._job.epochs.calendar
        if calendar is None or calendar.zone is None:
            return None
        local = calendar.local(_ORIGIN + timedelta(microseconds=moment))
        return local.date().toordinal() - _FIRST_DAY
