"""Windows of ten million messages over 40,000 cells through one stage: its speed and its memory.

``python -m tests.benchmarks.shuffled_windows STAGE WINDOW RUNS FOLDER``

A process of its own for each stage, for its memory; the topics lie in files. Prints `Figures`.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.actions import Append
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.simulation.memory import MemoryWorker
from dpstream.pipeline.stages.aggregate_stage import AggregateStage
from dpstream.topics.batches import (
    DRAWING_BYTES,
    Batch,
    Punctuation,
    batch_id,
    encode_batch,
    encode_punctuation,
)
from dpstream.topics.chunks import Chunk, encode_chunk
from dpstream.topics.names import Role
from dpstream.topics.records import Registration
from dpstream.topics.words import Words, split_words
from tests.benchmarks.many_epochs import FileLog
from tests.benchmarks.measuring import MEGABYTE, peak_megabytes
from tests.benchmarks.one_core import shuffle_stage

MESSAGES = 10_000_000
ROWS, BUCKETS = 5, 8_000
CELLS = ROWS * BUCKETS
CHUNK = 16_000


@dataclass(frozen=True, slots=True)
class Window:
    """How messages arrive, and how the window is released.

    Attributes:
        arrives: as words one by one, or as words with counts.
        producers: who sends a share each.
        order: in which it is released.
    """

    arrives: Literal["words", "pairs"]
    producers: int
    order: Literal["sorted", "random"]


WINDOWS = {
    "words": Window("words", 100, "sorted"),
    "pairs": Window("pairs", 10, "sorted"),
    "words, order: random": Window("words", 100, "random"),
}
# A sorted window leaves the shuffle stage as pairs, however it has come.
MEASURED = (
    *(("shuffle", name) for name in WINDOWS),
    ("aggregate", "pairs"),
    ("aggregate", "words, order: random"),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured.

    Attributes:
        stage: "shuffle" or "aggregate".
        window: of `WINDOWS`.
        messages_per_second: by processor time, of the median run.
        megabytes: of what the stage reads.
        peak_megabytes: most resident memory of the process.
    """

    stage: str
    window: str
    messages_per_second: int
    megabytes: float
    peak_megabytes: float


class Passing:
    """One stage on topics in files, through which windows are sent one after the other."""

    def __init__(self, stage: str, window: Window, runs: int, folder: Path) -> None:
        self._window = window
        self._log = FileLog(folder)
        self._rng = np.random.default_rng(1)
        self._job = deploy_job(make_job(job_values(window, runs)), deployed_at=0)
        self._identity = (self._job.fingerprint, self._job.deployment)
        self._shuffles = stage == "shuffle"
        self._enrolments = [self._register(number) for number in range(window.producers)]
        made = shuffle_stage(self._job) if self._shuffles else AggregateStage(self._job)
        self._worker = MemoryWorker(made, self._log)
        for partition in range(self._job.partitions):
            self._worker.run(self._worker.assign(partition))

    def send(self, epoch: int) -> tuple[float, int]:
        """Pass a window; returns the processor seconds it took, and the bytes of its records."""
        role = Role.REPORTS if self._shuffles else Role.SHUFFLED
        records = self._batches(epoch) if self._shuffles else self._chunks(epoch)
        size = 0
        for record in records:
            size += len(record)
            self._log.append(Append(role, self._job.partition_of(epoch), record))
        before = time.process_time()
        self._worker.run(self._worker.drain())
        spent = time.process_time() - before
        written = Role.SHUFFLED if self._shuffles else Role.PARTIALS
        partition = self._job.partition_of(epoch) if self._shuffles else 0
        assert self._log.end(written, partition), "the window has not passed"
        return spent, size

    def _register(self, number: int) -> bytes:
        enrolment = secrets.token_bytes(16)
        registration = Registration(self._job.deployment, f"{number}", enrolment, 1)
        self._log.append(Append(Role.PRODUCERS, 0, registration.to_bytes()))
        return enrolment

    def _batches(self, epoch: int) -> Iterator[bytes]:
        """Batches of all producers in turn, so that none is complete before the end.

        All send the same words: what is drawn here must not count as memory of the stage.
        """
        share = MESSAGES // self._window.producers
        words = Words(self._drawn(share))
        if self._window.arrives == "pairs":
            words = Words.canonical(words.values)
        pieces = split_words(words)
        drawing = secrets.token_bytes(DRAWING_BYTES)
        for index, piece in enumerate(pieces):
            for enrolment in self._enrolments:
                batch = batch_id(drawing, index)
                yield encode_batch(Batch(*self._identity, batch, enrolment, epoch, piece))
        for enrolment in self._enrolments:
            yield encode_punctuation(
                Punctuation(*self._identity, enrolment, epoch, len(pieces), share, share, drawing)
            )

    def _chunks(self, epoch: int) -> Iterator[bytes]:
        if self._window.order == "random":
            pieces = [Words(self._drawn(CHUNK))] * (MESSAGES // CHUNK)
        else:
            table = self._rng.multinomial(MESSAGES, np.full(CELLS, 1 / CELLS))
            pieces = split_words(Words.from_counts(table, np.dtype("<u4")))
        attempt = secrets.token_bytes(16)
        for index, words in enumerate(pieces):
            yield encode_chunk(
                Chunk(*self._identity, epoch, epoch, attempt, index, len(pieces), words)
            )

    def _drawn(self, messages: int) -> NDArray[np.uint32]:
        return self._rng.integers(0, CELLS, (messages, 1), np.uint32)


def job_values(window: Window, epochs: int) -> dict[str, Any]:
    """Count-Min of 40,000 cells."""
    return {
        "name": "cells",
        "protocol": "count_min",
        "parameters": {
            "epsilon": 1,
            "delta": 1e-6,
            "domain": {"bits": 20},
            "queries": "items",
            "rows": ROWS,
            "buckets": BUCKETS,
        },
        "epochs": {"count": epochs},
        "shuffle": {
            "minimum": 1000,
            "grace": "1h",
            "producers": window.producers,
            "order": window.order,
        },
    }


def main() -> None:
    """Pass so many windows through one stage."""
    stage, window, runs, folder = sys.argv[1:]
    passing = Passing(stage, WINDOWS[window], int(runs), Path(folder))
    passed = [passing.send(epoch) for epoch in range(1, int(runs) + 1)]
    figures = Figures(
        stage=stage,
        window=window,
        messages_per_second=round(MESSAGES / median(seconds for seconds, _ in passed)),
        megabytes=round(passed[0][1] / MEGABYTE, 1),
        peak_megabytes=round(peak_megabytes(os.getpid()), 1),
    )
    print(json.dumps(asdict(figures)))


if __name__ == "__main__":
    main()
