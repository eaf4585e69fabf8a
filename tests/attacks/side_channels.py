"""Independence of all observations from values, except for randomized reports.

Two runs of the installed producer and stages on in-memory topics have the same users, presence,
times and randomness, but different values. The second run releases the messages of the first, so
that all results computed from them must be the same. All other observations must be the same, too.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.actions import Append, LogRecord
from dpstream.pipeline.audit.plans import job_of
from dpstream.pipeline.conformance.cases import Case
from dpstream.pipeline.devices.producer import Generators, Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_times import LAST_MOMENT
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog, SimulatedCluster
from dpstream.pipeline.kafka.workers.log_lines import LogLines
from dpstream.pipeline.kafka.workers.metrics import WorkerSnapshot, metrics_text
from dpstream.pipeline.kafka.workers.observer import WindowCounters
from dpstream.pipeline.stages.environment import FinishedWindow, WindowListener
from dpstream.pipeline.stages.topic_uses import hides_messages
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.names import Role
from tests.attacks.changed_values import other_values
from tests.support.records_seen import seen_chunk, seen_record

EPOCHS, MINIMUM = 4, 12
PRODUCERS = {"gateway": 9, "house": 2, "phone": 1}
"""Number of devices of each producer."""
ON_DISK = "gateway"
"""Producer whose state is written to files."""
# The neighbors differ in a device behind the gateway, and in the only device of the phone.
_CHANGED = np.array([8, 11])

Seen = dict[str, object]


def compare_neighbors(case: Case, *, seed: int, released: bool = True) -> str:
    """Run two neighbors and return what differs, or an empty text."""
    job = job_of(case, epochs=EPOCHS, minimum=MINIMUM if released else 10 * MINIMUM)
    devices = sum(PRODUCERS.values())
    release: dict[int, list[bytes]] = {}
    runs = [
        _run(job, values, seed, release) for values in other_values(case, EPOCHS, devices, _CHANGED)
    ]
    different = [name for name, seen in runs[0].items() if runs[1][name] != seen]
    if different:
        return f"{', '.join(different)}: observations depend on values"
    if not released and release:
        return f"windows of {devices} devices are released, below the job's minimum"
    return ""


class _Log(MemoryLog):
    """Topics that record all writes, and release the messages of a first run in a second."""

    def __init__(self, job: DeployedJob, release: dict[int, list[bytes]]) -> None:
        super().__init__(clock=lambda: LAST_MOMENT)
        self._job = job
        self._again = bool(release)
        self._release = release
        self.seen: dict[Role, list[object]] = {role: [] for role in job.start_offsets}

    def append(self, action: Append) -> None:
        role, partition = action.role, action.partition
        place = self.end(role, partition)
        record = LogRecord(place, action.value, 0, action.key, action.headers)
        if role is Role.SHUFFLED:
            beside_words = (place, action.key, action.headers, *seen_chunk(action.value))
            self.seen[role].append((partition, beside_words))
            first = self._release.setdefault(partition, [])
            if not self._again:
                first.append(action.value)
            elif place < len(first):
                action = replace(action, value=first[place])
        else:
            self.seen[role].append((partition, seen_record(self._job, record, timed=False)))
        super().append(action)


@dataclass
class _Listener:
    job: DeployedJob
    stage: str
    text: io.StringIO = field(default_factory=io.StringIO)
    lines: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        self.windows = WindowCounters(self._window, lambda: 0.0, lambda: 0.0)

    def _window(self, window: FinishedWindow) -> None:
        for as_json, stream in ((False, self.text), (True, self.lines)):
            LogLines(
                self.job.name, self.stage, "worker", as_json, stream, lambda: 0.0, lambda: 0.0
            ).window(window)

    def metrics(self, heartbeat: Mapping[str, Any]) -> bytes:
        snapshot = WorkerSnapshot(
            self.job.name,
            self.stage,
            "group",
            "topic",
            hides_messages(self.job, self.stage),
            heartbeat=heartbeat,
            windows=dict(self.windows.windows_by_status),
            last_epoch=self.windows.last_epoch,
        )
        return metrics_text(snapshot).encode()


def _run(
    job: DeployedJob, values: NDArray[np.int8], seed: int, release: dict[int, list[bytes]]
) -> Seen:
    listeners: dict[str, _Listener] = {}

    def listener(stage: str) -> WindowListener:
        listeners[stage] = _Listener(job, stage)
        return listeners[stage].windows

    log = _Log(job, release)
    cluster = SimulatedCluster(job, _generators(seed, 0), log=log, listeners=listener)
    job = cluster.job
    seen: Seen = {}
    with tempfile.TemporaryDirectory() as folder:
        producers = list(_producers(job, log, Path(folder), seed))
        heartbeats: list[object] = []
        for epoch in range(1, EPOCHS + 1):
            at = 0
            for producer in producers:
                count = len(producer.users)
                producer.report_all(epoch, values[epoch - 1, at : at + count])
                producer.close(epoch)
                at += count
            cluster.settle()
            heartbeats.append(
                [json.dumps(worker.stage.heartbeat()) for worker in cluster.workers.values()]
            )
        for producer in producers:
            producer.shut()
        seen["files"] = sorted(
            (str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mode)
            for path in Path(folder).rglob("*")
            if path.is_file()
        )
    seen |= {role.value: (records, _bounds(job, log, role)) for role, records in log.seen.items()}
    seen["heartbeats"] = heartbeats
    seen["progress"] = {name: dict(done) for name, done in log.committed_by.items()}
    seen["log lines"] = [
        (each.text.getvalue(), each.lines.getvalue()) for each in listeners.values()
    ]
    seen["metrics"] = [
        listeners[name].metrics(worker.stage.heartbeat())
        for name, worker in cluster.workers.items()
        if name in listeners
    ]
    return seen


def _producers(job: DeployedJob, log: MemoryLog, folder: Path, seed: int) -> Iterator[Producer]:
    for number, (name, devices) in enumerate(PRODUCERS.items(), 1):
        identifiers = seeded_generator(seed, number, 1)
        producer = Producer(
            job,
            # One producer on disk suffices to check whether file sizes depend on values.
            folder / name if name == ON_DISK else None,
            name=name,
            transport=MemoryDriver(log),
            generators=_generators(seed, number),
            identifiers=lambda identifiers=identifiers: identifiers.bytes(16),  # type: ignore[misc]
        )
        producer.enroll([f"{name}-{each}" for each in range(devices)])
        yield producer


def _generators(seed: int, who: int) -> Generators:
    """Return generators that depend only on `who`, purpose and number."""
    return lambda purpose, number: seeded_generator(seed, who, len(purpose), number)


def _bounds(job: DeployedJob, log: MemoryLog, role: Role) -> list[tuple[int, int]]:
    partitions = range(len(job.start_offsets[role]))
    return [(log.start(role, each), log.end(role, each)) for each in partitions]
