"""The folder of a recording, and a table file that is being written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from dpstream.pipeline.recording.recording_index import RecordingError, RecordingFile, RecordKind
from dpstream.pipeline.recording.recording_tables import (
    MessageColumn,
    schema_of,
    table_of,
    writer_options,
)
from dpstream.pipeline.whole_files import naming

_GROUP_ROWS = 1 << 20
_GROUP_BYTES = 16 << 20


class RecordingFolder:
    """All operations on a recording's files; only their owner can access these files (0600)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, name: str) -> BinaryIO:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        return os.fdopen(os.open(self.path / name, flags, 0o600), "wb")

    def finish(self, file: BinaryIO) -> None:
        with naming(self.path):
            file.flush()
            os.fsync(file.fileno())
            file.close()

    def rename(self, old: str, new: str) -> None:
        os.replace(self.path / old, self.path / new)

    def sync(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def sizes(self) -> dict[str, int]:
        return {file.name: file.stat().st_size for file in self.path.iterdir() if file.is_file()}


@dataclass(slots=True)
class _Sink:
    file: BinaryIO
    size: int = 0
    digest: Any = field(default_factory=hashlib.sha256)
    closed: bool = False

    def write(self, data: bytes) -> int:
        self.file.write(data)
        self.digest.update(data)
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class TableFile:
    def __init__(
        self, folder: RecordingFolder, path: str, kind: RecordKind, words: MessageColumn
    ) -> None:
        self.absorbed: RecordingFile | None = None
        self._folder = folder
        self._path = path
        self._kind = kind
        self._words = words
        self._sink = _Sink(folder.create(path))
        try:
            with naming(folder.path):
                self._writer = pq.ParquetWriter(
                    pa.PythonFile(self._sink, mode="w"),
                    schema_of(kind, words),
                    **writer_options(kind, words),
                )
        except BaseException:
            self._sink.file.close()
            raise
        self._rows: list[Any] = []
        self._waiting = 0
        self._written = 0
        self._first: int | None = None
        self._last = 0

    @property
    def size(self) -> int:
        return self._sink.size + self._waiting

    def absorb(self, file: RecordingFile) -> None:
        """Start with another file's content; raise `RecordingError` if that file was altered."""
        data = self._folder.read(file.path)
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise RecordingError(
                f"{self._folder.path / file.path} was modified: its checksum does not match"
            )
        self._write(pq.read_table(pa.BufferReader(data), use_threads=False))
        self._first, self._last = file.first_epoch, file.last_epoch
        self.absorbed = file

    def add(self, epoch: int, row: Any, size: int) -> None:
        self._rows.append(row)
        self._waiting += size
        self._first = epoch if self._first is None else min(self._first, epoch)
        self._last = max(self._last, epoch)
        if self._waiting >= _GROUP_BYTES:
            self._write_group()

    def finish(self) -> RecordingFile:
        self._write_group()
        with naming(self._folder.path):
            self._writer.close()
        self._folder.finish(self._sink.file)
        return RecordingFile(
            path=self._path,
            kind=self._kind,
            first_epoch=self._first or 0,
            last_epoch=self._last,
            rows=self._written,
            size=self._sink.size,
            sha256=self._sink.digest.hexdigest(),
        )

    def abandon(self) -> None:
        with suppress(OSError, pa.ArrowException):
            self._writer.close()
        with suppress(OSError):
            self._sink.file.close()
        self._folder.remove(self._path)

    def _write_group(self) -> None:
        rows: Sequence[Any] = self._rows
        if rows:
            self._write(table_of(self._kind, self._words, rows))
        self._rows, self._waiting = [], 0

    def _write(self, table: Any) -> None:
        with naming(self._folder.path):
            self._writer.write_table(table, row_group_size=_GROUP_ROWS)
        self._written += table.num_rows
