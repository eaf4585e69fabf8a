"""Recordings: the published results of a job, and the inputs to these results, as files.

A recording is a folder with ``recording.json`` (`RecordingIndex`) and Parquet files, each with
consecutive epochs. Any Parquet reader can read them:

* ``manifests-*``: one row per epoch: status, producers, user counts, time; no offsets, which would
  reveal the number of records.
* ``windows-*``: one row for each distinct report of a released window, with its number of
  occurrences (``count``), in canonical order.
* ``partials-*``: one row for each released epoch: the aggregate of its window.
* ``estimates-*``: one row for each epoch, as published; ``estimate`` is JSON.

At any time, one row group and one window are in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpstream.pipeline.recording.recording_files import RecordingFolder
from dpstream.pipeline.recording.recording_index import (
    INDEX_FILE,
    LogPosition,
    Missing,
    RecordingError,
    RecordingFile,
    RecordingIndex,
    RecordKind,
)
from dpstream.pipeline.recording.recording_tables import (
    MessageColumn,
    RecordedEstimate,
    RecordedPartial,
    estimates_of,
    manifests_of,
    partials_of,
    schema_of,
    windows_of,
)
from dpstream.pipeline.recording.recording_writer import RecordedEpoch, RecordingWriter
from dpstream.topics.frames import CodecError
from dpstream.topics.manifests import Manifest, WindowStatus
from dpstream.topics.messages import Messages

__all__ = [
    "INDEX_FILE",
    "LogPosition",
    "Missing",
    "RecordKind",
    "RecordedEpoch",
    "RecordedEstimate",
    "RecordedPartial",
    "Recording",
    "RecordingError",
    "RecordingFolder",
    "RecordingIndex",
    "RecordingWriter",
]

_HASHED_AT_ONCE = 1 << 20

Row = TypeVar("Row")


class Recording:
    """Reader of a recording that checks every file against its checksum before reading it.

    Iterators yield epochs in increasing order, starting at `from_epoch`. They raise
    `RecordingError` if a file is missing, altered or truncated.
    """

    def __init__(self, path: Path, index: RecordingIndex) -> None:
        self.path = path
        self.index = index
        self._words = MessageColumn(np.dtype(f"<u{index.word_bytes}"), index.word_width)

    @classmethod
    def open(cls, path: Path) -> Self:
        file = path / INDEX_FILE
        try:
            data = file.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise RecordingError(
                f"there is no recording in {path}. To create one: 'dpstream record'"
            ) from None
        try:
            return cls(path, RecordingIndex.from_bytes(data))
        except RecordingError as error:
            raise RecordingError(f"{file}: {error}") from None

    @property
    def job_record(self) -> bytes:
        return self.index.job_record.encode()

    @property
    def epochs(self) -> range:
        first, last = self.index.first_epoch, self.index.last_epoch
        return range(0) if first is None or last is None else range(first, last + 1)

    def manifests(self, from_epoch: int = 1) -> Iterator[Manifest]:
        index = self.index

        def rows(table: Any) -> Iterator[Manifest]:
            return manifests_of(table, index.fingerprint, index.deployment)

        for row in self._rows(RecordKind.MANIFESTS, rows, from_epoch):
            if row.epoch >= from_epoch:
                yield row

    def windows(self, from_epoch: int = 1) -> Iterator[tuple[int, Messages]]:
        """Yield the epoch, distinct reports and uint64 counts of every recorded window."""
        windows = self._windows(from_epoch)
        window = next(windows, None)
        for row in self.manifests(from_epoch):
            epoch = row.epoch
            if row.window_status is not WindowStatus.RELEASED or self.index.lacks(epoch):
                continue
            if window is not None and window[0] == epoch:
                yield window
                window = next(windows, None)
            else:
                empty = np.empty((0, self._words.width), self._words.dtype)
                yield epoch, Messages(empty, np.empty(0, np.uint64))
        if window is not None:
            raise RecordingError(
                f"{self.path} contains a window but no manifest for epoch {window[0]}"
            )

    def partials(self, from_epoch: int = 1) -> Iterator[RecordedPartial]:
        for row in self._rows(RecordKind.PARTIALS, partials_of, from_epoch):
            if row.epoch >= from_epoch:
                yield row

    def estimates(self, from_epoch: int = 1) -> Iterator[RecordedEstimate]:
        for row in self._rows(RecordKind.ESTIMATES, estimates_of, from_epoch):
            if row.epoch >= from_epoch:
                yield row

    def check_file(self, file: RecordingFile) -> None:
        path = self.path / file.path
        digest, size = hashlib.sha256(), 0
        try:
            with path.open("rb") as opened:
                while block := opened.read(_HASHED_AT_ONCE):
                    digest.update(block)
                    size += len(block)
        except FileNotFoundError:
            raise RecordingError(f"{path} is missing") from None
        if size < file.size:
            raise RecordingError(f"{path} is truncated: {size:,} bytes; expected {file.size:,}")
        if size > file.size:
            raise RecordingError(f"{path} was modified: {size:,} bytes; expected {file.size:,}")
        if digest.hexdigest() != file.sha256:
            raise RecordingError(f"{path} was modified: its checksum does not match")

    def _windows(self, from_epoch: int) -> Iterator[tuple[int, Messages]]:
        def chunks(table: Any) -> Iterator[tuple[int, Any, Any]]:
            return windows_of(table, self._words)

        rows = self._rows(RecordKind.WINDOWS, chunks, from_epoch)
        for epoch, group in groupby(rows, key=lambda chunk: chunk[0]):
            if epoch < from_epoch:
                continue
            chunks_of_epoch = list(group)
            if len(chunks_of_epoch) == 1:
                values, counts = chunks_of_epoch[0][1:]
            else:
                values = np.concatenate([chunk[1] for chunk in chunks_of_epoch])
                counts = np.concatenate([chunk[2] for chunk in chunks_of_epoch])
            try:
                yield epoch, Messages(values, counts)
            except CodecError as error:
                raise RecordingError(f"{self.path}: window of epoch {epoch}: {error}") from None

    def _rows(
        self, kind: RecordKind, rows: Callable[[Any], Iterator[Row]], from_epoch: int
    ) -> Iterator[Row]:
        for file in self.index.of_kind(kind):
            if file.last_epoch < from_epoch:
                continue
            self.check_file(file)
            try:
                for table in self._tables(file, from_epoch):
                    yield from rows(table)
            except RecordingError:
                raise
            except (pa.ArrowException, OSError, TypeError, ValueError) as error:
                raise RecordingError(f"{self.path / file.path} cannot be read: {error}") from None

    def _tables(self, file: RecordingFile, from_epoch: int) -> Iterator[Any]:
        with pq.ParquetFile(self.path / file.path) as opened:
            if not opened.schema_arrow.equals(schema_of(file.kind, self._words)):
                raise RecordingError(
                    f"{self.path / file.path}: unexpected columns in a file of kind {file.kind}"
                )
            if opened.metadata.num_rows != file.rows:
                raise RecordingError(
                    f"{self.path / file.path}: got {opened.metadata.num_rows:,} rows; "
                    f"{INDEX_FILE} lists {file.rows:,}"
                )
            for group in range(opened.num_row_groups):
                statistics = opened.metadata.row_group(group).column(0).statistics
                if (
                    statistics is not None
                    and statistics.has_min_max
                    and (statistics.max < from_epoch)
                ):
                    continue
                yield opened.read_row_group(group, use_threads=False)
