"""Recording folders with injected faults, and example recordings."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from dpstream.pipeline.recording.recordings import (
    RecordedEpoch,
    RecordedEstimate,
    RecordingFolder,
    RecordingIndex,
)
from dpstream.topics.manifests import Manifest, WindowStatus
from dpstream.topics.messages import Messages

IDENTITY = bytes(range(16))


class KilledError(Exception):
    """The process was killed."""


class AccidentFolder(RecordingFolder):
    """Folder that counts file operations and fails before operation `at`.

    Args:
        full: True for a disk that is full from then on, False for a killed process.
        power: True if all data not yet on the disk is lost.
    """

    def __init__(
        self, path: Path, at: int | None = None, *, full: bool = False, power: bool = False
    ) -> None:
        super().__init__(path)
        self.at = at
        self.full = full
        self.power = power
        self.count = 0
        self.dead = False
        self._unfinished: dict[str, _Written] = {}

    def strike(self) -> None:
        if self.dead:
            raise KilledError
        self.count += 1
        if self.at is None or self.count < self.at:
            return
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.dead = True
        for name, written in self._unfinished.items():
            written.file.close()
            if self.power:
                (self.path / name).write_bytes(b"")
        raise KilledError

    @property
    def struck(self) -> bool:
        return self.at is not None and self.count >= self.at

    def create(self, name: str) -> BinaryIO:
        self.strike()
        written = _Written(super().create(name), self)
        self._unfinished[name] = written
        return cast(BinaryIO, written)

    def finish(self, file: BinaryIO) -> None:
        self.strike()
        name, written = next(
            (name, each) for name, each in self._unfinished.items() if each is cast(Any, file)
        )
        super().finish(written.file)
        del self._unfinished[name]

    def rename(self, old: str, new: str) -> None:
        self.strike()
        super().rename(old, new)

    def sync(self) -> None:
        self.strike()
        super().sync()

    def remove(self, name: str) -> None:
        if not self.full:  # a full disk still allows shrinking files
            self.strike()
        super().remove(name)


class _Written:
    """File whose first and third writes are counted as operations."""

    def __init__(self, file: BinaryIO, folder: AccidentFolder) -> None:
        self.file = file
        self._folder = folder
        self._writes = 0

    def write(self, data: bytes) -> int:
        if self._folder.dead:  # Files of a dead process are closed without more writes.
            return len(data)
        self._writes += 1
        if self._writes in (1, 3) or self._folder.struck:
            self._folder.strike()
        return self.file.write(data)

    def close(self) -> None:
        self.file.close()


def index_of(word_bytes: int = 2, width: int = 1) -> RecordingIndex:
    return RecordingIndex("0.1", "students", IDENTITY, IDENTITY, "{}", word_bytes, width)


def epoch_of(number: int, form: tuple[str, int] = ("<u2", 1), rows: int = 40) -> RecordedEpoch:
    """Build an epoch; every fifth is suppressed, and every seventh has an empty window."""
    generator = np.random.default_rng(number)
    released = number % 5 != 0
    dtype, width = np.dtype(form[0]), form[1]
    count = rows if number % 7 else 0
    high = min(np.iinfo(dtype).max, 1 << 62)
    reports = generator.integers(0, high, (count, width), endpoint=True).astype(dtype)
    reports[: count // 2] %= 5
    manifest = Manifest(
        fingerprint=IDENTITY,
        deployment=IDENTITY,
        epoch=number,
        window_status=WindowStatus.RELEASED if released else WindowStatus.SUPPRESSED,
        first_offset=0,
        cut_offset=0,
        first_epoch=1,
        producers=(True, False, number % 2 == 0),
        populations=(7, 2**32 - 1) if number % 2 == 0 else (7,),
        contributors=3,
        population=2**33,
        timestamp=1_700_000_000_000 + number,
    )
    return RecordedEpoch(
        manifest,
        Messages.canonical(reports) if released else None,
        bytes([number]) * number if released else None,
        RecordedEstimate(
            epoch=number,
            window_status=manifest.window_status,
            closed_at=manifest.timestamp,
            contributors=3,
            population=2**33,
            estimate=f'{{"value":{number}.5}}' if released else "null",
            guarantee='{"epsilon":1.0}',
            numbers=(number + 0.5, -1.0, 2.0, 0.25) if released else (None,) * 4,
        ),
    )
