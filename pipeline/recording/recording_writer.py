"""Write a recording: finish files one after the other, and then list each in the index.

* A file is part of the recording once ``recording.json``, which is replaced atomically, lists it.
  Unlisted files are removed on resuming.
* If the last file is small, new data is merged into it, so months of recording need few files.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from dpstream.pipeline.recording.recording_files import RecordingFolder, TableFile
from dpstream.pipeline.recording.recording_index import (
    INDEX_FILE,
    LogPosition,
    Missing,
    RecordingError,
    RecordingIndex,
    RecordKind,
    with_missing,
)
from dpstream.pipeline.recording.recording_tables import (
    MessageColumn,
    RecordedEstimate,
    RecordedPartial,
)
from dpstream.pipeline.whole_files import naming
from dpstream.topics.manifests import Manifest
from dpstream.topics.messages import Messages

_FILE_BYTES = 64 << 20
_SMALL_BYTES = 4 << 20
_NEW_INDEX = f"{INDEX_FILE}.new"


@dataclass(frozen=True, slots=True)
class RecordedEpoch:
    """All recorded data for a published epoch, without the offsets in its manifest."""

    manifest: Manifest
    window: Messages | None
    partial: bytes | None
    estimate: RecordedEstimate

    @property
    def epoch(self) -> int:
        return self.manifest.epoch


class RecordingWriter:
    """Append epochs, in order, to a recording in an existing folder that the caller has locked."""

    def __init__(self, folder: RecordingFolder, index: RecordingIndex) -> None:
        self.index = index
        self._folder = folder
        self._words = MessageColumn(np.dtype(f"<u{index.word_bytes}"), index.word_width)
        self._open: dict[RecordKind, TableFile] = {}
        self._epochs: list[int] = []
        self._missing = index.missing
        sizes = folder.sizes()
        for file in index.files:
            if sizes.get(file.path) != file.size:
                raise RecordingError(
                    f"{folder.path / file.path} has {sizes.get(file.path, 0):,} of {file.size:,} "
                    "bytes. To list all modified files: 'dpstream record --verify'"
                )
        self._remove_what_does_not_count(sizes)

    @property
    def full(self) -> bool:
        return any(file.size >= _FILE_BYTES for file in self._open.values())

    @property
    def uncommitted(self) -> bool:
        return bool(self._open)

    @property
    def next_epoch(self) -> int | None:
        last = self._epochs[-1] if self._epochs else self.index.last_epoch
        return None if last is None else last + 1

    def add(self, epoch: RecordedEpoch) -> None:
        number = epoch.epoch
        if self.next_epoch not in (None, number):
            raise ValueError(f"epoch {number} cannot follow epoch {(self.next_epoch or 0) - 1}")
        self._epochs.append(number)
        self._add(RecordKind.MANIFESTS, number, epoch.manifest, 128)
        if epoch.window is not None and epoch.window.rows:
            self._add(RecordKind.WINDOWS, number, (number, epoch.window), epoch.window.nbytes)
        if epoch.partial is not None:
            self._add(
                RecordKind.PARTIALS,
                number,
                RecordedPartial(number, epoch.partial),
                len(epoch.partial),
            )
        text = len(epoch.estimate.estimate) + len(epoch.estimate.guarantee)
        self._add(RecordKind.ESTIMATES, number, epoch.estimate, text)

    def add_missing(self, gap: Missing) -> None:
        self._missing = with_missing(self._missing, gap)

    def commit(self, places: Iterable[LogPosition]) -> None:
        """Make all additions durable, and store `places` as the positions at which to resume."""
        files, replaced = list(self.index.files), []
        for kind, file in self._open.items():
            listed = file.finish()
            if file.absorbed is not None:
                files.remove(file.absorbed)
                replaced.append(file.absorbed.path)
            files.append(listed)
            assert listed.kind is kind
        order = list(RecordKind)
        files.sort(key=lambda file: (order.index(file.kind), file.path))
        epochs = [self.index.first_epoch, *self._epochs, self.index.last_epoch]
        known = [epoch for epoch in epochs if epoch is not None]
        index = replace(
            self.index,
            first_epoch=min(known, default=None),
            last_epoch=max(known, default=None),
            files=tuple(files),
            missing=self._missing,
            places=tuple(places),
        )
        self._write_index(index)
        # From here on, the files are committed and must not be removed, even if the disk fails.
        self.index = index
        self._open.clear()
        self._epochs.clear()
        self._folder.sync()
        for path in replaced:
            self._folder.remove(path)

    def abandon(self) -> None:
        """Discard all additions since the last commit, as far as the disk allows."""
        for file in self._open.values():
            with suppress(OSError):
                file.abandon()
        self._open.clear()
        self._epochs.clear()
        self._missing = self.index.missing

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.abandon()

    def _add(self, kind: RecordKind, epoch: int, row: Any, size: int) -> None:
        if kind not in self._open:
            self._open_file(kind)
        self._open[kind].add(epoch, row, size)

    def _open_file(self, kind: RecordKind) -> None:
        listed = self.index.of_kind(kind)
        last = listed[-1] if listed else None
        number = 1 + (0 if last is None else int(last.path.split("-")[1].split(".")[0]))
        file = TableFile(self._folder, f"{kind}-{number:06d}.parquet", kind, self._words)
        # From now on `abandon` includes this file.
        self._open[kind] = file
        if last is not None and last.size <= _SMALL_BYTES:
            file.absorb(last)

    def _write_index(self, index: RecordingIndex) -> None:
        # Sync the names of new files first, because the index must not list a file that is missing
        # on disk.
        self._folder.sync()
        file = self._folder.create(_NEW_INDEX)
        try:
            with naming(self._folder.path):
                file.write(index.to_bytes())
            self._folder.finish(file)
        except BaseException:
            with suppress(OSError):
                file.close()
            self._folder.remove(_NEW_INDEX)
            raise
        self._folder.rename(_NEW_INDEX, INDEX_FILE)

    def _remove_what_does_not_count(self, names: Iterable[str]) -> None:
        listed = {file.path for file in self.index.files}
        ours = tuple(f"{kind}-" for kind in RecordKind)
        for name in names:
            table = name.startswith(ours) and name.endswith(".parquet") and name not in listed
            if table or name == _NEW_INDEX:
                self._folder.remove(name)
