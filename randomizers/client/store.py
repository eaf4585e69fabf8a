"""Storage of a device's document: a file that survives crashes and can be shared by processes."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from dpstream.randomizers.client.device_errors import StoreError


class Store(Protocol):
    """A text with a revision; only a process that has read the latest revision can replace it.

    So two processes act as one device. The slower one's text is refused; it repeats its step with
    the text of the other.
    """

    def read(self) -> tuple[int, str | None]:
        """Return the revision and the text, which are initially 0 and None."""

    def replace(self, revision: int, text: str) -> bool:
        """Write the successor of a revision durably, so that it survives any crash; return True.

        If the stored revision differs, write nothing and return False.
        """


class FileStore:
    """Store in a SQLite file that only its owner can access.

    The file is created if missing, but not its folder. Every method can raise `StoreError`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        with _explained(self._path):
            # SQLite creates its journal with the permissions of the file.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
            if os.name == "posix" and self._path.stat().st_mode & 0o077:
                raise StoreError(
                    f"other users have access to {self._path}. Restrict it: 'chmod 600 "
                    f"{self._path}'"
                )

    def read(self) -> tuple[int, str | None]:
        """See `Store.read`."""
        with self._open() as connection:
            row = connection.execute("SELECT revision, text FROM document").fetchone()
            return (0, None) if row is None else (int(row[0]), str(row[1]))

    def replace(self, revision: int, text: str) -> bool:
        """See `Store.replace`."""
        with self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            row = connection.execute("SELECT revision FROM document").fetchone()
            if (0 if row is None else row[0]) != revision:
                connection.execute("ROLLBACK")
                return False
            connection.execute(
                "INSERT OR REPLACE INTO document (id, revision, text) VALUES (1, ?, ?)",
                (revision + 1, text),
            )
            connection.execute("COMMIT")
            return True

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open a new connection for each call, since processes fork and apps have threads."""
        with (
            _explained(self._path),
            contextlib.closing(
                sqlite3.connect(self._path, timeout=60.0, isolation_level=None)
            ) as connection,
        ):
            # EXTRA also syncs the folder; secure_delete overwrites replaced text.
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS document "
                "(id INTEGER PRIMARY KEY, revision INTEGER NOT NULL, text TEXT NOT NULL)"
            )
            yield connection


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise StoreError(f"cannot use the device state {path}: {why}") from None
