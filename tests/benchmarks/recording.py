"""Recordings on one core: windows from chunks to files, and back.

``python -m tests.benchmarks.recording [RUNS]`` prints the rates.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpstream.pipeline.recording.recordings import (
    RecordedEpoch,
    RecordedEstimate,
    Recording,
    RecordingFolder,
    RecordingIndex,
    RecordingWriter,
)
from dpstream.pipeline.stages.multisets import WordMultiset
from dpstream.topics.manifests import Fate, Manifest
from dpstream.topics.word_forms import WordForm
from dpstream.topics.words import WordArray, Words
from tests.benchmarks.measuring import MEGABYTE, Rate

EPOCHS = 8
_IDENTITY = bytes(16)


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of one kind.

    Attributes:
        name: of the kind.
        form: of the reports.
        reports: of each window.
        draw: makes that many.
    """

    name: str
    form: WordForm
    reports: int
    draw: Callable[[np.random.Generator, int], WordArray]


WINDOWS = (
    Windows(
        "few different one-byte reports",
        WordForm(np.dtype("u1")),
        10_000_000,
        lambda rng, count: rng.integers(0, 256, (count, 1), np.uint8),
    ),
    Windows(
        "different four-byte reports",
        WordForm(np.dtype("<u4")),
        1_000_000,
        lambda rng, count: rng.integers(0, 1 << 32, (count, 1), np.uint32),
    ),
    Windows(
        "different reports of 16 bytes",
        WordForm(np.dtype("u1"), 16),
        500_000,
        lambda rng, count: rng.integers(0, 256, (count, 16), np.uint8),
    ),
)


def measure(runs: int) -> Iterator[Rate]:
    """Recording and reading windows of each kind; megabytes are those of the reports."""
    rng = np.random.default_rng(1)
    for windows in WINDOWS:
        drawn = [windows.draw(rng, windows.reports) for _ in range(EPOCHS)]
        reports = windows.reports * EPOCHS
        size = reports * windows.form.report_bytes / MEGABYTE
        written, read = [], []
        for _ in range(runs):
            with tempfile.TemporaryDirectory() as name:
                before = time.process_time()
                write(Path(name), windows.form, drawn)
                between = time.process_time()
                found = read_back(Path(name))
                written.append(between - before)
                read.append(time.process_time() - between)
                assert found == reports, "not every report has been read"
        yield Rate(f"record {windows.name}", reports, size, tuple(written))
        yield Rate(f"read {windows.name} of a recording", reports, size, tuple(read))


def write(path: Path, form: WordForm, drawn: list[WordArray]) -> None:
    """Record windows from the words of their chunks."""
    index = RecordingIndex(
        "0", "bench", _IDENTITY, _IDENTITY, "{}", form.dtype.itemsize, form.width
    )
    with RecordingWriter(RecordingFolder(path), index) as writer:
        for epoch, words in enumerate(drawn, 1):
            multiset = WordMultiset(form)
            for piece in np.array_split(words, 100):
                multiset.add(Words(piece))
            writer.add(_epoch(epoch, multiset.sorted()))
            multiset.close()
            if writer.full:
                writer.commit(())
        writer.commit(())


def read_back(path: Path) -> int:
    """Read all windows, checksums compared; returns how many reports there are."""
    return sum(words.messages for _, words in Recording.open(path).windows())


def _epoch(epoch: int, window: Words) -> RecordedEpoch:
    manifest = Manifest(
        _IDENTITY, _IDENTITY, epoch, Fate.RELEASED, 0, 0, 1, (True,), (10,), 10, 10, epoch
    )
    estimate = RecordedEstimate(epoch, Fate.RELEASED, epoch, 10, 10, "null", "{}")
    return RecordedEpoch(manifest, window, bytes(8), estimate)


def main() -> None:
    """Print the rates."""
    for rate in measure(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
        print(
            f"{rate.name:>50}: {rate.reports_per_second / 1e6:8.1f} million reports/s, "
            f"{rate.megabytes_per_second:8.1f} MB/s"
        )


if __name__ == "__main__":
    main()
