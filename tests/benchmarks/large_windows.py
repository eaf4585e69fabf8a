"""One window of millions of four-byte reports through the shuffle stage: time, memory, pauses.

``python -m tests.benchmarks.large_windows [MILLIONS ...]``

Each size is a process of its own, for its memory; topics lie in files. A pause is what the event
loop of a worker waits for: the time between two records, or between two things that the stage asks
for. What a billion reports take is read off a line through the sizes.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from pipeline.actions import Action, Append, LogSlice
from pipeline.jobs.deployed_job import deploy_job
from pipeline.jobs.job_files import make_job
from pipeline.simulation.memory import MemoryDriver, MemoryWorker
from tests.benchmarks.many_epochs import FileLog
from tests.benchmarks.measuring import peak_megabytes
from tests.benchmarks.one_core import shuffle_stage
from topics.batches import Batch, Punctuation, encode_batch, encode_punctuation
from topics.names import Role
from topics.records import Registration
from topics.words import Words

MILLIONS = (30, 100, 300)
PRODUCERS = 3
BATCH = 62_500
DOMAIN_BITS, ROWS, BUCKETS = 20, 4096, 65536


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured of a window.

    Attributes:
        millions: of reports.
        seconds: of processor time, from the first record to the last chunk.
        longest_pause: seconds by the wall.
        megabytes: resident memory beyond what there was before, at most.
        peak_megabytes: most resident memory of the process.
        chunks: that were written.
    """

    millions: int
    seconds: float
    longest_pause: float
    megabytes: float
    peak_megabytes: float
    chunks: int


class TimedLog(FileLog):
    """Notes how long the stage lets others wait: a worker's loop has a turn at each record.

    Attributes:
        longest_pause: seconds.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.longest_pause = 0.0
        self._since = time.monotonic()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Others have their turn, for as long as this takes."""
        self.longest_pause = max(self.longest_pause, time.monotonic() - self._since)
        yield
        self._since = time.monotonic()

    def read(self, role: Role, partition: int, start: int, stop: int) -> LogSlice:
        """See `FileLog.read`."""
        with self.turn():
            return super().read(role, partition, start, stop)


@dataclass(slots=True)
class WritingDriver(MemoryDriver):
    """Writes at once: what waits to be flushed waits in a Kafka client otherwise."""

    def carry_out(self, action: Action) -> object:
        """Carry one action out; returns its reply."""
        assert isinstance(self.log, TimedLog)
        with self.log.turn():
            if isinstance(action, Append):
                self.log.append(action)
                return None
            return MemoryDriver.carry_out(self, action)


def measure(millions: int, folder: Path) -> Figures:
    """Pass one window through a shuffle stage."""
    job = deploy_job(make_job(job_values()), deployed_at=0)
    log = TimedLog(folder)
    worker = MemoryWorker(shuffle_stage(job), log, WritingDriver(log))
    assert job.word_form.distinct is None
    assert job.word_form.report_bytes == 4
    enrolments = [secrets.token_bytes(16) for _ in range(PRODUCERS)]
    for number, enrolment in enumerate(enrolments):
        registration = Registration(job.deployment, f"{number}", enrolment, 1)
        log.append(Append(Role.PRODUCERS, 0, registration.to_bytes()))
    partition = job.partition_of(1)
    for record in _records((job.fingerprint, job.deployment), enrolments, millions):
        log.append(Append(Role.REPORTS, partition, record))
    before = peak_megabytes(os.getpid())
    started = time.process_time()
    worker.run(worker.assign(partition))
    log.longest_pause = 0.0
    worker.run(worker.drain())
    spent = time.process_time() - started
    peak = peak_megabytes(os.getpid())
    chunks = log.end(Role.SHUFFLED, partition)
    assert chunks, "the window has not passed"
    return Figures(
        millions,
        round(spent, 1),
        round(log.longest_pause, 3),
        round(peak - before),
        round(peak),
        chunks,
    )


def _records(
    identity: tuple[bytes, bytes], enrolments: list[bytes], millions: int
) -> Iterator[bytes]:
    rng = np.random.default_rng(1)
    batches = millions * 1_000_000 // BATCH // len(enrolments)
    for _ in range(batches):
        for enrolment in enrolments:
            words = rng.integers(0, ROWS * BUCKETS, (BATCH, 1), np.uint32)
            batch = Batch(*identity, secrets.token_bytes(16), enrolment, 1, Words(words))
            yield encode_batch(batch)
    share = batches * BATCH
    for enrolment in enrolments:
        yield encode_punctuation(Punctuation(*identity, enrolment, 1, batches, share, share))


def job_values() -> dict[str, Any]:
    """Messages of four bytes, of which there are too many different ones for a table."""
    return {
        "name": "large",
        "protocol": "count_mean_sketch",
        "parameters": {
            "epsilon": 1,
            "delta": 1e-6,
            "domain": {"bits": DOMAIN_BITS},
            "rows": ROWS,
            "buckets": BUCKETS,
        },
        "epochs": {"count": 1},
        "shuffle": {"minimum": 1_000_000, "grace": "1h", "producers": PRODUCERS},
    }


def main() -> None:
    """Measure every size in a process of its own, and print a table."""
    if sys.argv[1:2] == ["--one"]:
        figures = measure(int(sys.argv[2]), Path(sys.argv[3]))
        print(json.dumps(asdict(figures)))
        return
    sizes = [int(each) for each in sys.argv[1:]] or list(MILLIONS)
    table = Table("reports", "processor", "longest pause", "memory", "in all", "chunks")
    found = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", __spec__.name, "--one", str(size), folder]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        each = Figures(**json.loads(done.stdout))
        found.append(each)
        table.add_row(
            f"{each.millions} million",
            f"{each.seconds} s",
            f"{each.longest_pause} s",
            f"{each.megabytes:.0f} MB",
            f"{each.peak_megabytes:.0f} MB",
            f"{each.chunks:,}",
        )
    if len(found) > 1:
        slope, base = np.polyfit(
            [each.millions for each in found], [each.seconds for each in found], 1
        )
        table.add_row("a billion, by a line", f"{base + 1000 * slope:.0f} s", "", "", "", "")
    Console().print(table)


if __name__ == "__main__":
    main()
