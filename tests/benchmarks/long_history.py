"""Cost of starting processes and of queries after a long history of epochs.

``python -m tests.benchmarks.long_history FOLDER [--epochs N] [--horizon N] [--only WHAT ...]``

Topics are files in FOLDER, which later runs reuse. Product code makes manifests, partials,
estimates and documents from drawn reports. Every role and command is measured in a separate
process, which reads the files instead of a broker. Prints a `Restart` per line, in JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.actions import Append, LogRecord, LogSlice
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.memory import SLICE_BYTES, MemoryLog, MemoryWorker
from dpstream.pipeline.kafka.producer_checks import check_registered
from dpstream.pipeline.operations.processes import python_module
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.manifest_summaries import ManifestSummary
from dpstream.pipeline.stages.publish_stage import PublishStage
from dpstream.pipeline.stages.stage import Stage
from dpstream.pipeline.stages.stage_builder import build_stage
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import JOBS_TOPIC, Role
from tests.benchmarks.measuring import peak_megabytes
from tests.benchmarks.one_core import shuffle_stage
from tests.support.histories import NOW, fill, history_job
from tests.support.live_page import live_page
from tests.support.memory_cluster import MemoryCluster

EPOCHS = 200_000
JOB_FILE = "job.json"
KEPT = (Role.PRODUCERS, Role.MANIFESTS, Role.PARTIALS, Role.ESTIMATES, Role.RESULTS)


@dataclass(frozen=True, slots=True)
class Restart:
    """Cost of restoring a process from its topics, or of answering a query.

    Attributes:
        processor_seconds: Processor time, without starting Python and importing modules.
        peak_megabytes: Peak resident memory of the process, with the modules of all roles.
        more_megabytes: Increase of resident memory by reading.
    """

    what: str
    epochs: int
    horizon: int
    processor_seconds: float
    peak_megabytes: float
    more_megabytes: float


class TopicFile:
    """Topic with one partition in files: values, keys, and their end positions."""

    def __init__(self, folder: Path, role: Role) -> None:
        self._paths = {kind: folder / f"{role.value}.{kind}" for kind in ("values", "keys", "ends")}
        self._parts: dict[str, list[bytes]] = {"values": [], "keys": []}
        self._sizes: list[tuple[int, int]] = []
        self.ends = self._ends()
        self._files = {
            kind: os.open(self._paths[kind], os.O_RDWR | os.O_CREAT) for kind in ("values", "keys")
        }

    def append(self, value: bytes, key: bytes | None) -> None:
        """Buffer a record until `flush`."""
        self._parts["values"].append(value)
        self._parts["keys"].append(key or b"")
        self._sizes.append((len(value), len(key or b"")))

    def flush(self) -> None:
        for kind, parts in self._parts.items():
            with self._paths[kind].open("ab") as file:
                file.write(b"".join(parts))
            parts.clear()
        last = self.ends[-1] if len(self.ends) else np.zeros(2, np.uint64)
        sizes = np.array(self._sizes, np.uint64).reshape(-1, 2)
        with self._paths["ends"].open("ab") as ends:
            ends.write((last + np.cumsum(sizes, axis=0, dtype=np.uint64)).tobytes())
        self._sizes.clear()
        self.ends = self._ends()

    def read(self, start: int, stop: int, most: int = SLICE_BYTES) -> list[LogRecord]:
        """Return records at offsets in [start, stop), up to about `most` bytes."""
        stop = min(stop, len(self.ends))
        if start >= stop:
            return []
        begins = np.zeros((1, 2), np.uint64) if start == 0 else self.ends[start - 1 : start]
        limit = int(begins[0, 0]) + most
        stop = min(stop, start + 1 + int(np.searchsorted(self.ends[start:stop, 0], limit)))
        bounds = np.concatenate([begins, self.ends[start:stop]]).astype(np.int64)
        values, keys = (
            os.pread(self._files[kind], int(bounds[-1, at] - bounds[0, at]), int(bounds[0, at]))
            for at, kind in enumerate(("values", "keys"))
        )
        bounds -= bounds[0]
        each = bounds.tolist()
        return [
            LogRecord(
                start + number,
                values[each[number][0] : each[number + 1][0]],
                NOW + start + number,
                keys[each[number][1] : each[number + 1][1]] or None,
            )
            for number in range(stop - start)
        ]

    def _ends(self) -> NDArray[np.uint64]:
        path = self._paths["ends"]
        if not path.exists() or not path.stat().st_size:
            return np.zeros((0, 2), np.uint64)
        return np.memmap(path, np.uint64, "r").reshape(-1, 2)


class HistoryLog(MemoryLog):
    """Topics of a job in the files of a folder; raw and shuffled records are deleted.

    Appended records come after the records of the files, and are not written to files.
    """

    def __init__(self, folder: Path, job: DeployedJob, unpublished: int = 0) -> None:
        super().__init__()
        self.folder = folder
        self._unpublished = unpublished
        self.files = {role: TopicFile(folder, role) for role in KEPT}
        decided = len(self.files[Role.MANIFESTS].ends)
        for role in (Role.REPORTS, Role.SHUFFLED):
            for partition in range(job.topics.partitions):
                held = self._partitions[role, partition]
                held.base = self.committed[role, partition] = decided
        self.committed[Role.PARTIALS, 0] = self.end(Role.PARTIALS, 0)

    def end(self, role: Role, partition: int) -> int:
        return self._kept(role) + super().end(role, partition)

    def read(self, role: Role, partition: int, start: int, stop: int) -> LogSlice:
        """Return records at offsets in [start, stop), up to about `SLICE_BYTES` bytes."""
        kept = self._kept(role)
        if start >= kept:
            found = super().read(role, partition, start - kept, stop - kept)
            later = tuple(replace(each, offset=each.offset + kept) for each in found.records)
            return LogSlice(later, found.end + kept)
        records = tuple(self.files[role].read(start, min(stop, kept)))
        return LogSlice(records, start + len(records))

    def _kept(self, role: Role) -> int:
        if role not in self.files:
            return 0
        hidden = self._unpublished if role in (Role.ESTIMATES, Role.RESULTS) else 0
        return len(self.files[role].ends) - hidden


class HistoryCluster(MemoryCluster):
    """The same history for tools that query a cluster by topic names."""

    def __init__(self, job: DeployedJob, log: HistoryLog) -> None:
        super().__init__()
        self._kept = {job.topic(role): log.files[role] for role in KEPT}
        for settings in job.topic_settings().values():
            self.create_topics([settings])
        self.partitions[JOBS_TOPIC] = 1
        self.append(JOBS_TOPIC, job.to_bytes(), job.name.encode())
        self._write_manifests(job, log.files[Role.MANIFESTS])

    def _write_manifests(self, job: DeployedJob, manifests: TopicFile) -> None:
        """Write the heartbeat of a shuffle worker that was stopped a while ago."""
        offset = max(0, len(manifests.ends) - 1_000)
        last = manifests.read(offset - 1, offset)[0].value if offset else b""
        summary = ManifestSummary.after(offset, last, {WindowStatus.RELEASED.value: offset})
        words = {
            "deployment": job.deployment.hex(), "stage": "shuffle", "worker": "w",
            "stopped": True, "finalized": summary.to_json(),
        }  # fmt: skip
        self.append(job.topic(Role.STATUS), json.dumps(words).encode(), b"shuffle/w")

    def end_offsets(self, topic: str) -> list[int]:
        kept = self._kept.get(topic)
        return super().end_offsets(topic) if kept is None else [len(kept.ends)]

    def read(
        self, topic: str, partition: int = 0, start: int = 0, stop: int | None = None
    ) -> Iterator[LogRecord]:
        kept = self._kept.get(topic)
        if kept is None:
            yield from super().read(topic, partition, start, stop)
            return
        end = len(kept.ends) if stop is None else stop
        # A page requests a number of records before the end.
        start = start if start >= 0 else max(0, len(kept.ends) + start)
        while records := kept.read(start, end):
            yield from records
            start += len(records)


def _fill_folder(folder: Path, epochs: int, horizon: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    known = folder / JOB_FILE
    if known.exists():
        return
    job = history_job(epochs, horizon)
    files = {role: TopicFile(folder, role) for role in KEPT}

    def flush() -> None:
        for file in files.values():
            file.flush()

    fill(job, epochs, lambda each: files[each.role].append(each.value, each.key), flush)
    known.write_bytes(job.to_bytes())


def _publish(folder: Path, job: DeployedJob) -> None:
    log = HistoryLog(folder, job, unpublished=1)
    known = log.end(Role.ESTIMATES, 0)
    _start(PublishStage(job), log, job)
    assert log.end(Role.ESTIMATES, 0) == known + 1
    (published,) = log.read(Role.ESTIMATES, 0, known, known + 1).records
    assert published.value == log.files[Role.ESTIMATES].read(known, known + 1)[0].value


def _start(stage: Stage, log: HistoryLog, job: DeployedJob) -> None:
    worker = MemoryWorker(stage, log)
    for partition in range(len(job.start_offsets[stage.role])):
        worker.run(worker.assign(partition))
    worker.run(worker.drain())


def _producer(job: DeployedJob, log: HistoryLog) -> None:
    from dpstream.pipeline.devices.producer import Producer
    from dpstream.pipeline.kafka.memory import MemoryDriver

    class Transport(MemoryDriver):
        def carry_out(self, action: Any) -> object:
            return None if isinstance(action, Append) else super().carry_out(action)

    identifiers = iter([bytes(16)])
    with Producer(
        job, None, name="gateway 0", transport=Transport(log), identifiers=lambda: next(identifiers)
    ) as producer:
        producer.store.set_fact("closed_epoch", log.end(Role.MANIFESTS, 0))
        check_registered(cast(Cluster, HistoryCluster(job, log)), producer)


def _page(job: DeployedJob, log: HistoryLog, *, looked_at: bool = False) -> None:
    async def ask() -> None:
        async with live_page(HistoryCluster(job, log)) as page:
            await page.get("/api/jobs/long")
            await page.get("/api/jobs/long/curve")
            await page.get("/charts.json?job=long")
            if looked_at:
                await page.look()

    asyncio.run(ask())


def _command(*arguments: str) -> Callable[[DeployedJob, HistoryLog], None]:
    def run(job: DeployedJob, log: HistoryLog) -> None:
        from dpstream.pipeline import cli
        from dpstream.pipeline.cli import cluster_and_jobs

        cluster = HistoryCluster(job, log)
        found = cast(Any, cluster_and_jobs)
        found.connection_of = lambda *given, **options: cluster.connection
        found.Cluster = lambda connection, **options: cluster
        with (
            Path(os.devnull).open("w") as nowhere,
            redirect_stdout(nowhere),
            redirect_stderr(nowhere),
        ):
            cli.main([*arguments])

    return run


MEASURED: dict[str, Callable[[DeployedJob, HistoryLog], object]] = {
    "shuffle": lambda job, log: _start(shuffle_stage(job), log, job),
    "aggregate": lambda job, log: _start(build_stage(job, "aggregate", Environment()), log, job),
    "publish": lambda job, log: _start(PublishStage(job), log, job),
    "publish, with a pending epoch": lambda job, log: _publish(log.folder, job),
    "producer": _producer,
    "page": _page,
    "page, with a viewer": lambda job, log: _page(job, log, looked_at=True),
    "status": _command("status", "long"),
    "estimates": _command("estimates", "long"),
    "estimates --json": _command("estimates", "long", "--json"),
    "producers": _command("producers", "long"),
}
"""Measured roles and commands by name."""


def measure(what: str, folder: Path) -> Restart:
    job = DeployedJob.from_bytes((folder / JOB_FILE).read_bytes())
    _ = job.guarantee
    log = HistoryLog(folder, job)
    held, before = peak_megabytes(os.getpid()), time.process_time()
    MEASURED[what](job, log)
    seconds = time.process_time() - before
    return Restart(
        what=what,
        epochs=log.end(Role.ESTIMATES, 0),
        horizon=job.epochs.count,
        processor_seconds=round(seconds, 2),
        peak_megabytes=round(peak := peak_megabytes(os.getpid()), 1),
        more_megabytes=round(peak - held, 1),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.long_history")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--horizon", type=int, default=None, help="Epochs per horizon (all).")
    parser.add_argument("--only", nargs="*", choices=list(MEASURED), default=list(MEASURED))
    parser.add_argument("--here", action="store_true", help="Measure in this process.")
    given = parser.parse_args()
    if given.here:
        print(json.dumps(asdict(measure(given.only[0], given.folder))), flush=True)
        return
    _fill_folder(given.folder, given.epochs, given.horizon or given.epochs)
    for what in given.only:
        arguments = [str(given.folder), "--here", "--only", what]
        command = python_module("tests.benchmarks.long_history", *arguments)
        # `python_module` keeps the working directory out of the search path.
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        subprocess.run(command, env=environment, check=False, stdout=sys.stdout)


if __name__ == "__main__":
    main()
