"""Memory of all stages in one process during a job of many small epochs.

``python -m tests.benchmarks.many_epochs EPOCHS FOLDER``

Topics are files, so that only the memory of the stages can grow. Prints a `Point` per line, in
JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from array import array
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

from dpstream.pipeline.actions import Append, LogRecord, LogSlice
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.kafka.memory import SLICE_BYTES, MemoryLog, MemoryWorker
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.publish_stage import PublishStage
from dpstream.pipeline.stages.stage import Stage
from dpstream.pipeline.stages.stage_builder import build_stage
from dpstream.topics.names import Role
from tests.benchmarks.measuring import peak_megabytes
from tests.benchmarks.one_core import DrawnReports, job_values, shuffle_stage

_POINTS = 8
_REPORTS = 100


@dataclass(frozen=True, slots=True)
class Point:
    """Progress since the previous point, and peak resident memory of the process so far."""

    what: str
    epochs: int
    seconds: float
    peak_megabytes: float


@dataclass(slots=True)
class _FilePartition:
    file: BinaryIO
    starts: array[int] = field(default_factory=lambda: array("Q", [0]))
    stamps: array[int] = field(default_factory=lambda: array("Q"))


class FileLog(MemoryLog):
    """Topics of a job in files, with 16 bytes of memory per record."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._files: defaultdict[tuple[Role, int], _FilePartition] = defaultdict(
            lambda: _FilePartition((folder / str(len(self._files))).open("w+b", buffering=0))
        )

    def append(self, action: Append) -> None:
        """Append a record without key or headers to its partition."""
        held = self._files[action.role, action.partition]
        held.file.write(action.value)
        held.starts.append(held.starts[-1] + len(action.value))
        held.stamps.append(self.clock())

    def end(self, role: Role, partition: int) -> int:
        return len(self._files[role, partition].stamps)

    def read(self, role: Role, partition: int, start: int, stop: int) -> LogSlice:
        held = self._files[role, partition]
        records: list[LogRecord] = []
        size = 0
        for offset in range(start, min(stop, len(held.stamps))):
            begin, length = held.starts[offset], held.starts[offset + 1] - held.starts[offset]
            value = os.pread(held.file.fileno(), length, begin)
            records.append(LogRecord(offset, value, held.stamps[offset]))
            size += length
            if size >= SLICE_BYTES:
                break
        return LogSlice(tuple(records), start + len(records))

    def delete_below(self, role: Role, partition: int, offset: int) -> None:
        """Do nothing, because the folder is deleted as a whole."""


def main() -> None:
    """Run the job, then restart each stage on its topics."""
    epochs, folder = int(sys.argv[1]), Path(sys.argv[2])
    job = deploy_job(make_job(job_values("many", epochs)), deployed_at=0)
    log = FileLog(folder)
    stages: dict[str, Stage] = {
        "shuffle": shuffle_stage(job),
        "aggregate": build_stage(job, "aggregate", Environment()),
        "publish": PublishStage(job),
    }
    partitions = {name: range(len(job.start_offsets[stages[name].role])) for name in stages}

    def start(name: str, stage: Stage) -> MemoryWorker:
        worker = MemoryWorker(stage, log)
        for partition in partitions[name]:
            worker.run(worker.assign(partition))
        return worker

    workers = [start(name, stage) for name, stage in stages.items()]
    source = DrawnReports(job)
    log.append(Append(Role.PRODUCERS, 0, source.registration()))
    before = time.monotonic()

    def tell(what: str) -> None:
        nonlocal before
        now = time.monotonic()
        point = Point(what, log.end(Role.ESTIMATES, 0), now - before, peak_megabytes(os.getpid()))
        print(json.dumps(asdict(point)), flush=True)
        before = time.monotonic()

    for epoch in range(1, epochs + 1):
        for value in source.epoch(epoch, _REPORTS):
            log.append(Append(Role.REPORTS, job.topics.partition_of(epoch), value))
        for worker in workers:
            worker.run(worker.drain())
        if epoch % (epochs // _POINTS) == 0:
            tell("all stages")
    workers.clear()
    restarted: dict[str, Stage] = {
        "shuffle": shuffle_stage(job),
        "aggregate": build_stage(job, "aggregate", Environment()),
        "publish": PublishStage(job),
    }
    for name, stage in restarted.items():
        start(name, stage)
        tell(f"{name} restarted")


if __name__ == "__main__":
    main()
