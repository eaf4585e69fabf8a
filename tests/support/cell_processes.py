"""Job of the cells protocol on a real broker, with its processes, estimates and counts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from kafka.errors import KafkaError
from numpy.typing import NDArray

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster, ClusterError
from dpstream.pipeline.results.follow import EstimateReader
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.stages.partial_log import PartialLog
from dpstream.topics.names import Role
from tests.support import cells
from tests.support.warm import WarmPopen

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "kafka" / "cells_process.py"
TIMEOUT = 180.0


@dataclass
class Processes:
    """Processes by name, which are restarted when they exit.

    `workers` contains the number of workers per stage, `producers` each producer's first cell and
    number of cells; `options` are passed to all processes.
    """

    servers: str
    job: DeployedJob
    folder: Path
    workers: Mapping[str, int]
    producers: Mapping[str, tuple[int, int]]
    options: tuple[str, ...] = ()
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)

    @property
    def names(self) -> list[str]:
        return [*self.worker_names, *self.producers]

    @property
    def worker_names(self) -> list[str]:
        return [
            f"{stage}-{number}"
            for stage, count in self.workers.items()
            for number in range(1, count + 1)
        ]

    def keep_alive(self) -> None:
        """Start all processes that are not running, except producers that have finished."""
        for name in self.names:
            process = self.running.get(name)
            if process is not None and process.poll() is None:
                continue
            if process is not None and process.returncode == 0 and name in self.producers:
                self.finished.add(name)
            if name not in self.finished:
                self.running[name] = self._start(name)

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        what = "producer" if name in self.producers else name.rpartition("-")[0]
        numbers = [str(number) for number in self.producers.get(name, ())]
        arguments = [*self.options, what, self.job.name, name, self.servers]
        arguments += [str(self.folder / name), *numbers]
        with (self.folder / f"{name}.log").open("ab") as log:
            return WarmPopen(
                [sys.executable, str(SCRIPT), *arguments],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    def signal(self, name: str, number: signal.Signals) -> None:
        if self.running[name].poll() is None:
            os.kill(self.running[name].pid, number)

    def stop(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()

    def logs(self) -> str:
        """Return the last log lines of all processes, for failure messages."""
        tails = (
            f"--- {name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-8:])
            for name in self.names
            if (path := self.folder / f"{name}.log").exists()
        )
        return "\n".join(tails)

    def said(self, name: str, words: str) -> int:
        """Count the occurrences of a text in a process's log."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace").count(words) if path.exists() else 0


class Published:
    """Published estimates, read while the broker can be unavailable."""

    def __init__(self, cluster: Cluster, job: DeployedJob) -> None:
        self._reader = EstimateReader(cluster, job)
        self.records: dict[int, EstimateRecord] = {}

    def read(self) -> None:
        """Read new estimates, if the broker answers."""
        with suppress(KafkaError, ClusterError):
            self.records.update({record.epoch: record for record in self._reader.read()})

    def wait_for(self, count: int, processes: Processes) -> None:
        """Wait until `count` epochs are published; restart processes that exit meanwhile."""
        deadline = time.monotonic() + TIMEOUT
        while len(self.records) < count:
            processes.keep_alive()
            self.read()
            assert time.monotonic() < deadline, (
                f"{len(self.records)} of {count} epochs published after {TIMEOUT} s\n"
                + processes.logs()
            )


def read_counts(cluster: Cluster, job: DeployedJob) -> NDArray[np.int64]:
    """Count the reports by epoch and cell, from the first complete partial of every epoch."""
    law = job.law
    assert isinstance(law, cells.CellsLaw)
    counts = cells.CellsAggregator(law)

    def merge(epoch: int, payload: bytes) -> None:
        counts.merge(cells.CellsAggregator.from_bytes(counts.law, payload))

    log = PartialLog(job, merge)
    for record in cluster.read(job.topic(Role.PARTIALS)):
        log.apply(record)
    return counts.counts


def expect_every_cell_once(
    cluster: Cluster, job: DeployedJob, published: Published, last_epoch: int | None = None
) -> None:
    """Check that every report of every epoch is counted once in partials and in estimates."""
    law = job.law
    assert isinstance(law, cells.CellsLaw)
    last = last_epoch or law.last_epoch
    assert sorted(published.records) == list(range(1, last + 1))
    wrong = np.argwhere(read_counts(cluster, job)[1 : last + 1] != 1)
    assert not len(wrong), f"counts other than 1, at (epoch - 1, cell): {wrong[:10]}, ..."
    for record in published.records.values():
        assert record.headline is not None
        assert (record.headline.ci95_low, record.headline.ci95_high) == (1.0, 1.0)
        assert (record.headline.value, record.contributors) == (law.cells, law.cells)
    assert not list(cluster.read(job.topic(Role.DEAD_LETTERS)))
