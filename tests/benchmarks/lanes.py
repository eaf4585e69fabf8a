"""One large epoch on a real broker: closed by one worker of a stage, or in two lanes by two.

``python -m tests.benchmarks.lanes [MILLIONS] [--runs N] [--order sorted] [--cores PART]``

Workers wait when the reports, of four bytes, are written, all but the last punctuation. What is
measured is how long they take to read them, and, from that punctuation on, until the window is
released and done with by the shuffle stage, and until the estimate is published. Beside seconds by
the wall, in which the producer and the broker have their part, there are those of processors: of
workers side by side the busiest one counts.

Two cores that are at work for one worker and the broker have none to spare for another. With
``--cores`` a worker of each stage are on a host of their own, which has so much of a core; the
broker has what is left. It takes root: see `tests.benchmarks.slow_hosts`.
"""

from __future__ import annotations

import argparse
import json
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from pipeline.actions import Append, Flush, Steps
from pipeline.devices.epoch_records import DrawnEpoch
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.job_files import make_job
from pipeline.kafka.cluster import Cluster, KafkaTransport
from pipeline.kafka.connection import Connection
from pipeline.kafka.workers.groups import group_name
from pipeline.operations.deployments import deploy, undeploy
from pipeline.operations.processes import dpstream_command
from pipeline.operations.restarted_processes import Child, RestartedProcesses
from pipeline.results.follow import EstimateReader
from randomizers.randomness import cryptographic_generator
from tests.benchmarks.end_to_end import BenchmarkError, local_broker
from tests.benchmarks.measuring import busy_seconds, processor_seconds
from tests.benchmarks.one_core import DIFFERENT, words_job_values
from tests.benchmarks.slow_hosts import SlowHost, slow_hosts
from topics.batches import DRAWING_BYTES
from topics.names import Role
from topics.records import Registration

MILLIONS = 20
PRODUCERS = 40
PARTITIONS = 2
MINIMUM = 100_000
WAYS = ((1, 1), (2, 2))
"""Lanes, and workers that shuffle and that add up."""
PHASES = ("read", "released", "published")

_PATIENCE = 300.0
_POLL_SECONDS = 0.02
_IDLE, _IDLE_SECONDS = 0.2, 1.5
"""Of a core, and for how long: a worker that waits uses less."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What one part of an epoch's way takes.

    Attributes:
        seconds: by the wall.
        busiest: processor seconds of the shuffle worker that has most to do.
        aggregate: those of the busiest one that adds up.
        others: cores that were busy with what is none of the job's or the broker's, on average.
    """

    seconds: float
    busiest: float
    aggregate: float
    others: float


def measure(
    connection: Connection,
    lanes: int,
    workers: int,
    millions: float,
    order: str,
    cores: float | None,
) -> list[Phase]:
    """Reading an epoch, releasing it, and that until it is published."""
    slow: AbstractContextManager[list[SlowHost]] = nullcontext([])
    if cores is not None:
        slow = slow_hosts(workers, cores)
    with Cluster(connection) as cluster, _deployed(cluster, lanes, order) as job:
        records = _records(cluster, job, round(millions * 1_000_000))
        with (
            tempfile.TemporaryDirectory() as folder,
            slow as hosts,
            RestartedProcesses(_unexpected) as processes,
        ):
            run = _Run(cluster, job, processes, Path(folder), connection, hosts)
            run.start("aggregate", workers)
            run.start("publish", 1)
            run.start("shuffle", workers)
            run.wait(run.is_assigned)
            run.wait(run.is_idle)
            run.slow_down()
            estimates, transport = EstimateReader(cluster, job), KafkaTransport(cluster, job.name)
            run.begin()
            transport.run(_append(records[:-1]))
            run.idle_since = 0.0
            run.wait(run.is_idle)
            # That the end was reached is known a while later.
            reading = run.phase(run.idle_since)
            run.begin()
            transport.run(_append(records[-1:]))
            run.wait(run.is_released)
            released = run.phase(time.monotonic())
            run.wait(lambda: bool(list(estimates.read())))
            return [reading, released, run.phase(time.monotonic())]


@contextmanager
def _deployed(cluster: Cluster, lanes: int, order: str) -> Iterator[DeployedJob]:
    """A job for as long as it is needed, its topics included."""
    name = f"lanes-{secrets.token_hex(4)}"
    values = words_job_values(name, 1, producers=PRODUCERS, minimum=MINIMUM, order=order)
    values["topics"] = {"partitions": PARTITIONS, "lanes": lanes}
    job = make_job(values)
    now = time.time_ns() // 1_000_000
    yield deploy(cluster, job, deployment=secrets.token_bytes(16), now=now)
    undeploy(cluster, name, delete_topics=True)


def _records(cluster: Cluster, job: DeployedJob, reports: int) -> list[Append]:
    """Let producers register; what they send of an epoch, which the last record decides."""
    transport, generator = KafkaTransport(cluster, job.name), cryptographic_generator()
    batches: list[Append] = []
    punctuations: list[Append] = []
    for number in range(PRODUCERS):
        enrolment = secrets.token_bytes(16)
        registration = Registration(job.deployment, f"{number}", enrolment, 1)
        transport.run(_append([Append(Role.PRODUCERS, 0, registration.to_bytes())]))
        share = reports // PRODUCERS
        drawn = DrawnEpoch(
            job, 1, enrolment, secrets.token_bytes(DRAWING_BYTES), share, share, most=None
        )
        words = generator.integers(0, DIFFERENT, (share, 1), job.word_form.dtype)
        for role, partition, values in drawn.records(words, generator):
            *those, punctuation = (Append(role, partition, value) for value in values)
            batches += those
            punctuations.append(punctuation)
    return batches + punctuations


def _append(records: list[Append]) -> Steps[None]:
    yield from records
    yield Flush()


@dataclass(slots=True)
class _Run:
    cluster: Cluster
    job: DeployedJob
    processes: RestartedProcesses
    folder: Path
    connection: Connection
    hosts: Sequence[SlowHost]
    spent: float = 0.0
    idle_since: float = 0.0
    workers: int = 0
    began: float = 0.0
    everything: float = 0.0
    before: dict[int, float] = field(default_factory=dict)

    def start(self, stage: str, workers: int) -> None:
        """Start workers of a stage."""
        self.workers = workers
        for number in range(workers):
            name = f"{stage}-{number}"
            command = ["run", stage, self.job.name, "--name", name, *self.connection.arguments()]
            self.processes.start(name, dpstream_command(*command), self.folder / f"{name}.log")

    def slow_down(self) -> None:
        """Let workers be on their hosts; one that publishes is nowhere in particular."""
        for number, host in enumerate(self.hosts):
            for child in self.children:
                if child.name in (f"shuffle-{number}", f"aggregate-{number}"):
                    host.take(child.process.pid)

    def begin(self) -> None:
        """Measure from here."""
        self.everything, self.began = busy_seconds(), time.monotonic()
        self.before = {
            each.process.pid: processor_seconds(each.process.pid) for each in self.children
        }

    def phase(self, end: float) -> Phase:
        """What was spent from the beginning to a moment."""
        seconds = end - self.began
        spent = {
            each.name: processor_seconds(each.process.pid) - self.before[each.process.pid]
            for each in self.children
        }
        busiest, adding = (
            max(each for name, each in spent.items() if name.startswith(stage))
            for stage in ("shuffle", "aggregate")
        )
        others = busy_seconds() - self.everything - sum(spent.values())
        return Phase(seconds, busiest, adding, others / seconds)

    @property
    def children(self) -> list[Child]:
        """All workers."""
        return list(self.processes.children)

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait for something while all workers run."""
        deadline = time.monotonic() + _PATIENCE
        while not condition():
            for child in self.children:
                if child.state != "running":
                    raise BenchmarkError(f"{child.name} has ended:{child.log_end()}")
            if time.monotonic() > deadline:
                raise BenchmarkError(f"nothing happens for {_PATIENCE:g} s")
            time.sleep(_POLL_SECONDS)

    def is_assigned(self) -> bool:
        """Whether every worker has its partitions."""
        latest = {(each["stage"], each["worker"]): each["partitions"] for each in self._statuses()}
        owners = [stage for (stage, _), partitions in latest.items() if partitions]
        divided = all(
            owners.count(stage) == self.workers
            and sorted(each for (owner, _), own in latest.items() if owner == stage for each in own)
            == list(range(PARTITIONS))
            for stage in ("shuffle", "aggregate")
        )
        return divided and "publish" in owners

    def is_released(self) -> bool:
        """Whether the shuffle workers are done with all there is."""
        topic = self.job.topic(Role.REPORTS)
        committed = self.cluster.committed(group_name(self.job, "shuffle"), topic)
        return all(
            (floor or 0) >= end
            for floor, end in zip(committed, self.cluster.end_offsets(topic), strict=True)
        )

    def is_idle(self) -> bool:
        """Whether the shuffle workers have had nothing to do for long."""
        now, workers = time.monotonic(), [c for c in self.children if c.name.startswith("shuffle")]
        spent = sum(processor_seconds(each.process.pid) for each in workers)
        if not self.idle_since or spent - self.spent > _IDLE * (now - self.idle_since):
            self.spent, self.idle_since = spent, now
        return now - self.idle_since > _IDLE_SECONDS

    def _statuses(self) -> list[dict[str, Any]]:
        heartbeats = self.cluster.read(self.job.topic(Role.STATUS))
        return [json.loads(heartbeat.value) for heartbeat in heartbeats]


def _unexpected(sentence: str) -> None:
    """What is said of a child that ended; `wait` says more."""


def main() -> None:
    """Measure both ways in turn, and print medians."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.lanes", description=__doc__)
    parser.add_argument("millions", type=float, nargs="?", default=MILLIONS)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--order", choices=("sorted", "random"), default="random")
    parser.add_argument("--cores", type=float, help="of each host, such as .4")
    arguments = parser.parse_args()
    console = Console()
    found: dict[tuple[int, int], list[list[Phase]]] = {way: [] for way in WAYS}
    with local_broker(console.print) as connection:
        # The first epoch of a broker is slow: its compiler is not through.
        measure(connection, 2, 2, arguments.millions / 10, arguments.order, None)
        for _ in range(arguments.runs):
            for way in WAYS:
                found[way].append(
                    measure(connection, *way, arguments.millions, arguments.order, arguments.cores)
                )
    table = Table("", "phase", "seconds", "busiest worker", "aggregate", "cores of others")
    for (lanes, workers), runs in found.items():
        for index, phase in enumerate(PHASES):
            phases = [run[index] for run in runs]
            table.add_row(
                f"lanes {lanes}, workers {workers}",
                phase,
                f"{median(each.seconds for each in phases):.2f} s",
                f"{median(each.busiest for each in phases):.2f} s",
                f"{median(each.aggregate for each in phases):.2f} s",
                f"{median(each.others for each in phases):.2f}",
            )
    console.print(table)
    _say_ratios(console, [found[way] for way in WAYS])


def _say_ratios(console: Console, found: list[list[list[Phase]]]) -> None:
    """What two workers take of the time of one, of every phase."""
    for index, name in enumerate(PHASES):
        one, two = ([run[index] for run in runs] for runs in found)
        wall = median(each.seconds for each in two) / median(each.seconds for each in one)
        busiest = median(each.busiest for each in two) / median(each.busiest for each in one)
        console.print(
            f"{name} in {wall:.2f} of the time, by the processor of the busier worker {busiest:.2f}"
        )


if __name__ == "__main__":
    np.seterr(all="raise")
    main()
