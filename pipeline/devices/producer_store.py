"""Persistent state of a producer, in one SQLite file.

One durable transaction per epoch stores the devices' new state, the finished records, and the
number of the epoch; a restart continues after this epoch. Only committed records are ever sent, and
they stay stored until they are acknowledged. No epoch is randomized a second time, because that
would spend the privacy budget twice.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.actions import Ends
from dpstream.topics.names import Role

# Large pages, because most values are large. With a write-ahead log, a transaction needs only one
# synchronous write. The folder is locked, so the log needs no shared memory.
_SETTINGS = """
PRAGMA page_size = 16384;
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
"""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS users (position INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS leaving (position INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS departed (
    user TEXT NOT NULL, name TEXT NOT NULL, value INTEGER NOT NULL, PRIMARY KEY (user, name))
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS arrays (
    name TEXT PRIMARY KEY, dtype TEXT NOT NULL, shape TEXT NOT NULL, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS outbox (
    position INTEGER PRIMARY KEY AUTOINCREMENT, role TEXT NOT NULL, partition INTEGER NOT NULL,
    value BLOB NOT NULL);
"""


class ProducerStore:
    """SQLite file of a producer; path None keeps the state in memory, for simulations.

    Raises `OSError` if the file cannot be created, or is accessible to users other than its owner.
    Raises `sqlite3.Error` if it cannot be opened or written.
    """

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            path.touch(mode=0o600)
            if path.stat().st_mode & 0o077:
                # Rejected, as ssh rejects such keys: the draws would undo the randomization.
                why = f"other users have access to the devices' draws: 'chmod 600 {path}'"
                raise PermissionError(errno.EPERM, why, str(path))
        self._connection = sqlite3.connect(
            ":memory:" if path is None else path, isolation_level=None
        )
        try:
            self._connection.executescript(_SETTINGS + _SCHEMA)
        except BaseException:
            self._connection.close()
            raise
        self._written: dict[str, NDArray[np.generic]] = {}

    @property
    def connection(self) -> sqlite3.Connection:
        return self._connection

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            self._written.clear()
            # After some errors, SQLite has already rolled back.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def fact(self, name: str) -> str | int | bytes | None:
        row = self._connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def set_fact(self, name: str, value: str | int | bytes) -> None:
        self._connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def acknowledged(self, role: Role, partition: int) -> int:
        """Return the offset after a partition's last acknowledged record; 0 before the first."""
        end = self.fact(f"sent_{role}_{partition}")
        return end if isinstance(end, int) else 0

    def users(self) -> list[str]:
        rows = self._connection.execute("SELECT name FROM users ORDER BY position")
        return [name for (name,) in rows]

    def add_users(self, first_position: int, names: Iterable[str]) -> None:
        self._connection.executemany(
            "INSERT INTO users VALUES (?, ?)", enumerate(names, first_position)
        )

    def leaving(self) -> list[int]:
        rows = self._connection.execute("SELECT position FROM leaving ORDER BY position")
        return [position for (position,) in rows]

    def add_leaving(self, positions: Iterable[int]) -> None:
        self._connection.executemany(
            "INSERT OR IGNORE INTO leaving VALUES (?)", ((position,) for position in positions)
        )

    def replace_users(self, names: Iterable[str]) -> None:
        self._connection.execute("DELETE FROM users")
        self._connection.execute("DELETE FROM leaving")
        self.add_users(0, names)

    def add_departed(self, name: str, values: Mapping[str, int]) -> None:
        """Store each user's value in the array `name`, for users who may enroll again."""
        self._connection.executemany(
            "INSERT OR REPLACE INTO departed VALUES (?, ?, ?)",
            ((user, name, value) for user, value in values.items()),
        )

    def departed(self, name: str, users: Iterable[str]) -> dict[str, int]:
        """Return the values that `add_departed` has stored in the array `name`."""
        if self._connection.execute("SELECT 1 FROM departed LIMIT 1").fetchone() is None:
            # Usual, and a million users may enroll at once.
            return {}
        select = "SELECT user, value FROM departed WHERE user = ? AND name = ?"
        rows = (self._connection.execute(select, (user, name)).fetchone() for user in users)
        return dict(row for row in rows if row is not None)

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        rows = self._connection.execute("SELECT name, dtype, shape, data FROM arrays")
        return {
            name: np.frombuffer(data, dtype)
            .reshape([int(length) for length in shape.split(",")])
            .copy()
            for name, dtype, shape, data in rows
        }

    def save_arrays(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        """Write the arrays that differ from the arrays written last."""
        for name, array in arrays.items():
            written = self._written.get(name)
            if written is not None and np.array_equal(written, array):
                continue
            shape = ",".join(map(str, array.shape))
            self._connection.execute(
                "INSERT OR REPLACE INTO arrays VALUES (?, ?, ?, ?)",
                (name, array.dtype.str, shape, np.ascontiguousarray(array).data),
            )
            self._written[name] = array.copy()

    def put(self, role: Role, partition: int, values: Iterable[bytes]) -> None:
        self._connection.executemany(
            "INSERT INTO outbox (role, partition, value) VALUES (?, ?, ?)",
            ((role.value, partition, value) for value in values),
        )

    def outbox(self) -> Iterator[tuple[int, Role, int, bytes]]:
        """Yield the position, topic, partition and value of all unsent records, in order."""
        rows = self._connection.execute(
            "SELECT position, role, partition, value FROM outbox ORDER BY position"
        )
        for position, role, partition, value in rows:
            yield position, Role(role), partition, value

    def delete_sent(self, position: int, ends: Ends) -> None:
        """Delete acknowledged records up to and including a position, and store their offsets.

        This does not wait for the disk, so records can be sent again after a power failure.
        """
        self._connection.execute("PRAGMA synchronous = NORMAL")
        try:
            with self.transaction():
                self._connection.execute("DELETE FROM outbox WHERE position <= ?", (position,))
                for (role, partition), end in ends.items():
                    if end > self.acknowledged(role, partition):
                        self.set_fact(f"sent_{role}_{partition}", end)
        finally:
            self._connection.execute("PRAGMA synchronous = FULL")
