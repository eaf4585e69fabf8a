"""Time, memory and pauses of the shuffle stage for a window of millions of four-byte reports.

``python -m tests.benchmarks.large_windows [MILLIONS ...] [--order random] [--aggregate]``

Each size runs in a separate process, to measure its memory, with topics in files. A pause is the
time for which a worker's event loop waits: between two records, or between two actions of the
stage. Other processes prolong the pause, but not its processor time. The processor time for a
billion reports is extrapolated linearly from the sizes, and printed with the time per million at
each size. With ``--aggregate``, the window then passes an aggregate stage, which keeps every
distinct message and its count.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from rich.console import Console

from dpstream.pipeline.actions import Action, Append, LogSlice
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryWorker
from dpstream.pipeline.stages.environment import Environment, temporary_file
from dpstream.pipeline.stages.multisets import _MEMORY_LIMIT
from dpstream.pipeline.stages.sorted_runs import PAGE_BYTES
from dpstream.pipeline.stages.stage import Stage
from dpstream.pipeline.stages.stage_builder import build_stage
from dpstream.topics.batches import (
    DRAWING_BYTES,
    Batch,
    Punctuation,
    batch_id,
    encode_batch,
    encode_punctuation,
)
from dpstream.topics.messages import Messages
from dpstream.topics.names import Role
from dpstream.topics.records import Registration
from tests.benchmarks.many_epochs import FileLog
from tests.benchmarks.measuring import (
    MEGABYTE,
    forget_peak,
    peak_megabytes,
    resident_megabytes,
    table_of,
)
from tests.benchmarks.one_core import shuffle_stage

MILLIONS = (30, 100, 300)
PRODUCERS = 3
BATCH = 62_500
DOMAIN_BITS, ROWS, BUCKETS = 20, 4096, 65536


@dataclass(frozen=True, slots=True)
class Figures:
    """Measurements of a window.

    Attributes:
        collecting: Processor seconds until all records were read.
        closing: Processor seconds from then until the last record was written.
        longest_pause: Longest pause in wall-clock seconds.
        busiest_pause: Longest pause in processor seconds, which other processes do not prolong.
        megabytes: Increase of resident memory at its peak.
        spilled_megabytes, read_megabytes: Data written to and read from spill files.
    """

    millions: int
    stage: str
    collecting: float
    closing: float
    longest_pause: float
    busiest_pause: float
    megabytes: float
    spilled_megabytes: float
    read_megabytes: float
    records: int

    @property
    def seconds(self) -> float:
        return self.collecting + self.closing


class CountedSpillFiles:
    """Open spill files, and count the bytes written and read."""

    def __init__(self) -> None:
        self.written = self.read = 0

    def __call__(self) -> BinaryIO:
        return cast(BinaryIO, _CountedFile(temporary_file(), self))


class _CountedFile:
    def __init__(self, file: BinaryIO, counts: CountedSpillFiles) -> None:
        self._file = file
        self._counts = counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> BinaryIO:
        return cast(BinaryIO, self)

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._counts.read += len(data)
        return data

    def write(self, data: memoryview) -> int:
        self._counts.written += data.nbytes
        return self._file.write(data)


class TimedLog(FileLog):
    """Log that measures pauses of a worker's event loop, which runs at each record.

    `longest_pause` is in wall-clock seconds, and `busiest_pause` in processor seconds.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.begin()

    def begin(self) -> None:
        """Start measuring as if the event loop had just run."""
        self.longest_pause = self.busiest_pause = 0.0
        self._since = time.monotonic(), time.process_time()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Let the event loop run for the duration of the context."""
        wall, busy = self._since
        self.longest_pause = max(self.longest_pause, time.monotonic() - wall)
        self.busiest_pause = max(self.busiest_pause, time.process_time() - busy)
        yield
        self._since = time.monotonic(), time.process_time()

    def read(self, role: Role, partition: int, start: int, stop: int) -> LogSlice:
        with self.turn():
            return super().read(role, partition, start, stop)


@dataclass(slots=True)
class WritingDriver(MemoryDriver):
    """Driver that writes at once; in production, a Kafka client buffers unflushed records."""

    def carry_out(self, action: Action) -> object:
        assert isinstance(self.log, TimedLog)
        with self.log.turn():
            if isinstance(action, Append):
                self.log.append(action)
                return None
            return MemoryDriver.carry_out(self, action)


def measure(millions: int, folder: Path, order: str, *, aggregate: bool) -> Iterator[Figures]:
    """Pass one window through a shuffle stage, and optionally through an aggregate stage."""
    job = deploy_job(make_job(job_values(order)), deployed_at=0)
    log = TimedLog(folder)
    assert job.message_format.distinct is None
    assert job.message_format.report_bytes == 4
    enrollments = [secrets.token_bytes(16) for _ in range(PRODUCERS)]
    for number, enrollment in enumerate(enrollments):
        registration = Registration(job.deployment, f"{number}", enrollment, 1)
        log.append(Append(Role.PRODUCERS, 0, registration.to_bytes()))
    partition = job.topics.partition_of(1)
    for record in _records((job.fingerprint, job.deployment), enrollments, millions):
        log.append(Append(Role.REPORTS, partition, record))
    open_spill_file = CountedSpillFiles()
    stage = shuffle_stage(job, open_spill_file=open_spill_file)
    yield _measured(millions, "shuffle", stage, log, partition, Role.SHUFFLED, open_spill_file)
    if aggregate:
        stage_after = build_stage(job, "aggregate", Environment(open_spill_file=open_spill_file))
        yield _measured(
            millions, "aggregate", stage_after, log, partition, Role.PARTIALS, open_spill_file
        )


def _measured(
    millions: int,
    name: str,
    stage: Stage,
    log: TimedLog,
    partition: int,
    output: Role,
    open_spill_file: CountedSpillFiles,
) -> Figures:
    worker = MemoryWorker(stage, log, WritingDriver(log))
    last = log.end(stage.role, partition)
    forget_peak()
    before = resident_megabytes()
    started = time.process_time()
    worker.run(worker.assign(partition))
    log.begin()
    while worker.positions[partition] < last - 1:
        worker.run(worker.poll())
    collected = time.process_time()
    worker.run(worker.drain())
    ended = time.process_time()
    records = log.end(output, partition if output is Role.SHUFFLED else 0)
    assert records, "the window was not released"
    return Figures(
        millions,
        name,
        round(collected - started, 2),
        round(ended - collected, 2),
        round(log.longest_pause, 3),
        round(log.busiest_pause, 3),
        round(peak_megabytes(os.getpid()) - before),
        round(open_spill_file.written / MEGABYTE),
        round(open_spill_file.read / MEGABYTE),
        records,
    )


def _records(
    identity: tuple[bytes, bytes], enrollments: list[bytes], millions: int
) -> Iterator[bytes]:
    rng = np.random.default_rng(1)
    batches = millions * 1_000_000 // BATCH // len(enrollments)
    drawing = secrets.token_bytes(DRAWING_BYTES)
    for index in range(batches):
        for enrollment in enrollments:
            words = rng.integers(0, ROWS * BUCKETS, (BATCH, 1), np.uint32)
            batch = Batch(*identity, batch_id(drawing, index), enrollment, 1, Messages(words))
            yield encode_batch(batch)
    share = batches * BATCH
    for enrollment in enrollments:
        punctuation = Punctuation(*identity, enrollment, 1, batches, share, share, drawing)
        yield encode_punctuation(punctuation)


def job_values(order: str) -> dict[str, Any]:
    """Return a job with four-byte messages, which have too many values for a table."""
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
        "shuffle": {
            "minimum": 1_000_000,
            "grace": "1h",
            "producers": PRODUCERS,
            "order": order,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("millions", nargs="*", type=int)
    parser.add_argument("--order", default="sorted", choices=("sorted", "random"))
    parser.add_argument("--aggregate", action="store_true")
    parser.add_argument("--folder", type=Path)
    requested = parser.parse_args()
    sizes = requested.millions or list(MILLIONS)
    if requested.folder is not None:
        for each in measure(
            sizes[0], requested.folder, requested.order, aggregate=requested.aggregate
        ):
            print(json.dumps(asdict(each)), flush=True)
        return
    further = ["--order", requested.order, *(["--aggregate"] if requested.aggregate else [])]
    found = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", __spec__.name, str(size), "--folder", folder, *further]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found += [Figures(**json.loads(line)) for line in done.stdout.splitlines()]
    print_table(requested.order, found)


def print_table(order: str, found: Sequence[Figures]) -> None:
    title = f"A window of four-byte reports, order: {order}; processor time"
    console = Console(width=None if sys.stdout.isatty() else 132)
    console.print(table_of(title, [asdict(each) for each in found]))
    shuffled = [each for each in found if each.stage == "shuffle"]
    if len(shuffled) < 3:
        return
    millions = [each.millions for each in shuffled]
    slope, base = np.polyfit(millions, [each.seconds for each in shuffled], 1)
    each_million = ", ".join(
        f"{1000 * each.seconds / each.millions:.1f} ms at {each.millions}" for each in shuffled
    )
    memory = max(each.megabytes for each in shuffled)
    # A merge needs a page of each run.
    pages = PAGE_BYTES / _MEMORY_LIMIT * 1e9 * 4 / MEGABYTE
    console.print(
        f"A billion reports: {base + 1000 * slope:.0f} s of processor time, extrapolated linearly "
        f"from these {len(shuffled)} sizes. Per million: {each_million} million. The memory of the "
        f"shuffle stage grew by at most {memory:.0f} MB; for a billion sorted reports, pages of "
        f"runs would take {pages:.0f} MB."
    )


if __name__ == "__main__":
    main()
