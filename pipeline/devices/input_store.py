"""Persist a producer's topic input in the file that also stores the producer's draws.

Two kinds of transactions change this input. One kind adds the events read and the new offset. The
other kind randomizes an epoch and deletes the epoch's rows. At any moment, the file therefore shows
whether an event is unread, waiting for its epoch, or drawn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

from dpstream.pipeline.devices.producer_store import ProducerStore

if TYPE_CHECKING:
    from dpstream.pipeline.devices.user_histories import UserHistories
    from dpstream.pipeline.jobs.job_files import Job

_SCHEMA = """
CREATE TABLE IF NOT EXISTS input_offsets (partition INTEGER PRIMARY KEY, next INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS input_rows (
    epoch INTEGER NOT NULL, partition INTEGER NOT NULL, event INTEGER NOT NULL, user TEXT NOT NULL,
    position INTEGER NOT NULL, value NOT NULL);
CREATE INDEX IF NOT EXISTS input_rows_by_epoch ON input_rows (epoch, partition, event);
CREATE TABLE IF NOT EXISTS input_values (
    user TEXT PRIMARY KEY, position INTEGER NOT NULL, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS input_users (
    user TEXT PRIMARY KEY, listed INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS input_histories (
    user TEXT PRIMARY KEY, document TEXT NOT NULL) WITHOUT ROWID;
"""

Value = int | list[int]
"""Value of a row: an integer in the job's domain, several items, or the fields of an event."""


class WaitingRow(NamedTuple):
    epoch: int
    partition: int
    event: int
    user: str
    position: int
    value: Value


class InputStore:
    """Tables for a topic's events in a producer's file; methods raise `sqlite3.Error`."""

    def __init__(self, store: ProducerStore) -> None:
        self._store = store
        self._connection = store.connection
        self._connection.executescript(_SCHEMA)

    def transaction(self) -> AbstractContextManager[None]:
        return self._store.transaction()

    def offsets(self) -> dict[int, int]:
        return dict(self._connection.execute("SELECT partition, next FROM input_offsets"))

    def set_offset(self, partition: int, offset: int) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO input_offsets VALUES (?, ?)", (partition, offset)
        )

    def add_rows(self, rows: Iterable[WaitingRow]) -> None:
        self._connection.executemany(
            "INSERT INTO input_rows VALUES (?, ?, ?, ?, ?, ?)",
            (row._replace(value=_written(row.value)) for row in rows),
        )

    def rows_to(self, epoch: int) -> Iterator[WaitingRow]:
        found = self._connection.execute(
            "SELECT epoch, partition, event, user, position, value FROM input_rows "
            "WHERE epoch <= ? ORDER BY partition, event, rowid",
            (epoch,),
        )
        for row in map(WaitingRow._make, found):
            yield row if isinstance(row.value, int) else row._replace(value=_read(row.value))

    def waiting(self) -> int:
        (count,) = self._connection.execute("SELECT count(*) FROM input_rows").fetchone()
        return int(count)

    def delete_rows_to(self, epoch: int) -> None:
        self._connection.execute("DELETE FROM input_rows WHERE epoch <= ?", (epoch,))

    def values(self) -> dict[str, tuple[int, int]]:
        rows = self._connection.execute("SELECT user, position, value FROM input_values")
        return {user: (position, value) for user, position, value in rows}

    def set_values(self, values: Mapping[str, tuple[int, int]]) -> None:
        self._connection.executemany(
            "INSERT OR REPLACE INTO input_values VALUES (?, ?, ?)",
            ((user, position, value) for user, (position, value) in values.items()),
        )

    def histories(self) -> dict[str, str]:
        return dict(self._connection.execute("SELECT user, document FROM input_histories"))

    def set_histories(self, documents: Mapping[str, str]) -> None:
        self._connection.executemany(
            "INSERT OR REPLACE INTO input_histories VALUES (?, ?)", documents.items()
        )

    def add_users(self, users: Iterable[str], *, listed: bool) -> None:
        """Add users who have an event; they are `listed` if their event has no value."""
        self._connection.executemany(
            "INSERT INTO input_users VALUES (?, ?) "
            "ON CONFLICT (user) DO UPDATE SET listed = max(listed, excluded.listed)",
            ((user, int(listed)) for user in users),
        )

    def users(self, *, listed: bool) -> list[str]:
        found = self._connection.execute(
            "SELECT user FROM input_users WHERE listed >= ? ORDER BY user", (int(listed),)
        )
        return sorted(user for (user,) in found)

    def forget_users(self) -> None:
        self._connection.execute("DELETE FROM input_users")


def histories_of(job: Job, store: InputStore) -> UserHistories | None:
    if job.measures is None:
        return None
    # Imported late because other jobs do not need it.
    from dpstream.pipeline.devices.user_histories import UserHistories

    return UserHistories(job, store)


def _written(value: Value) -> int:
    # Several items are stored as text, which SQLite allows in a column of numbers.
    return value if isinstance(value, int) else json.dumps(value)  # type: ignore[return-value]


def _read(value: object) -> Value:
    items: list[int] = json.loads(str(value))
    return items
