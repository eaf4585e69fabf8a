"""In-memory pipeline with faults: producers, and shuffle, aggregate and publish workers.

Actions are counted. At a chosen count, the acting process is killed, and its unflushed data is lost
or kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from dpstream.pipeline.actions import Action, Commit, LogRecord, Steps
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.key_files import NoiseKey
from dpstream.pipeline.jobs.key_ring import NO_KEYS, KeyRing
from dpstream.pipeline.jobs.producer_registry import ProducerRegistry
from dpstream.pipeline.jobs.routes import SHARERS
from dpstream.pipeline.kafka.memory import DeletedError, MemoryDriver, MemoryLog, MemoryWorker
from dpstream.pipeline.stages.decision_log import DecisionLog
from dpstream.pipeline.stages.environment import Environment, WindowListener, ignore_window
from dpstream.pipeline.stages.estimate_records import EstimateRecord, FirstEstimates
from dpstream.pipeline.stages.partial_log import PartialLog
from dpstream.pipeline.stages.stage import Stage
from dpstream.pipeline.stages.stage_builder import build_stage
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.manifests import Manifest
from dpstream.topics.names import Role
from tests.support.new_jobs import new_job

SEED = 20240229
DEPLOYMENT = bytes(range(16))
BEGUN = 1_700_000_000_000
"""Initial time of the broker's clock, on 2023-11-14, in milliseconds since 1970."""


class CrashError(Exception):
    """The process that carried out this action was killed."""


@dataclass
class Accidents:
    """Count of actions over all processes, with faults at some actions."""

    at: frozenset[int] = frozenset()
    keep: bool = False
    count: int = 0

    def strike(self) -> None:
        self.count += 1
        if self.count in self.at:
            raise CrashError


class MortalDriver(MemoryDriver):
    """Driver that is killed at a chosen action; commits of a replaced owner are fenced."""

    def __init__(self, log: MemoryLog, accidents: Accidents) -> None:
        super().__init__(log)
        self.accidents = accidents
        self.fenced = False

    def carry_out(self, action: Action) -> object:
        if self.fenced and isinstance(action, Commit):
            raise CrashError
        reply = super().carry_out(action)
        try:
            self.accidents.strike()
        except CrashError:
            self.crash(keep=self.accidents.keep)
            raise
        return reply


def producer_generators(name: str) -> Callable[[str, int], np.random.Generator]:
    """Return randomness that depends only on producer and epoch."""
    number = int.from_bytes(name.encode(), "little")
    return lambda purpose, index: seeded_generator(SEED, number, len(purpose), index)


def reader_of(stage: str) -> str:
    """Return the consumer name under which a stage commits."""
    return stage if stage in SHARERS else ""


@dataclass
class World:
    """Job, topics and killable processes; `values` is indexed by producer, epoch and user."""

    job: DeployedJob
    folder: Path
    values: Mapping[str, Mapping[int, Mapping[str, int]]]
    accidents: Accidents = field(default_factory=Accidents)
    now: float = 0.0
    identifiers: int = 0
    noise_key: NoiseKey | None = None
    keys: KeyRing = NO_KEYS
    listeners: defaultdict[str, WindowListener] = field(
        default_factory=lambda: defaultdict(lambda: ignore_window)
    )

    def __post_init__(self) -> None:
        self.log = MemoryLog(self.broker_time)
        self.producers: dict[str, Producer] = {}
        self.workers: dict[str, MemoryWorker] = {}
        self.restarts = 0

    def broker_time(self) -> int:
        """Return the broker's time, which follows `now`."""
        return BEGUN + int(1000 * self.now)

    def identifier(self) -> bytes:
        """Return a new id on every call, in place of random ids."""
        self.identifiers += 1
        return self.identifiers.to_bytes(16, "big")

    def stage(self, name: str) -> Stage:
        environment = Environment(
            identifiers=self.identifier,
            wall_clock=lambda: BEGUN,
            broker_time=self.broker_time,
            generator=seeded_generator(SEED, self.identifiers),
            noise_key=self.noise_key,
            keys=self.keys,
            listener=self.listeners[name],
        )
        return build_stage(self.job, name, environment)

    def producer(self, name: str) -> Producer:
        if name not in self.producers:
            self.producers[name] = Producer(
                self.job,
                self.folder / name,
                name=name,
                transport=MortalDriver(self.log, self.accidents),
                generators=producer_generators(name),
                identifiers=self.identifier,
                first_epoch=min(self.values[name]),
            )
        return self.producers[name]

    def worker(self, name: str) -> MemoryWorker:
        """Return a running worker that owns every partition, started on demand."""
        if name not in self.workers:
            worker = MemoryWorker(
                self.stage(name),
                self.log,
                MortalDriver(self.log, self.accidents),
                reader_of(name),
            )
            for partition in range(len(self.job.start_offsets[worker.stage.role])):
                worker.run(worker.assign(partition, self.now))
            self.workers[name] = worker
        return self.workers[name]

    def surviving(self, name: str, work: Callable[[], object]) -> None:
        """Run work of a process; restart it after crashes until the work is complete."""
        while True:
            try:
                work()
                return
            except CrashError:
                self.kill(name)

    def kill(self, name: str) -> None:
        """Drop a process's memory, and unlock its folder."""
        self.restarts += 1
        self.workers.pop(name, None)
        producer = self.producers.pop(name, None)
        if producer is not None:
            producer.shut()

    def close_epoch(self, name: str, epoch: int) -> None:
        """Send an epoch as a producer, across crashes."""

        def work() -> None:
            producer = self.producer(name)
            values = self.values[name][epoch]
            producer.enroll(list(values))
            if producer.closed_epoch < epoch:
                producer.report(epoch, values)
                producer.close(epoch)

        self.surviving(name, work)

    def settle(self, names: Iterable[str] | None = None) -> None:
        """Let the workers process all available records, across crashes."""
        for name in self.job.route.stages if names is None else names:
            self.surviving(name, lambda name=name: self._drain(name))  # type: ignore[misc]

    def _drain(self, name: str) -> None:
        worker = self.worker(name)
        worker.run(worker.drain(self.now))

    def close_all(self, epoch: int) -> None:
        """Send an epoch as every producer with values for it, across crashes."""
        for name, epochs in self.values.items():
            if epoch in epochs:
                self.close_epoch(name, epoch)

    def run(self, epochs: Iterable[int], rounds: int = 1) -> World:
        """Send epochs as one producer after another, run workers after each, then stop."""
        for epoch in epochs:
            for name in self.values:
                self.close_epoch(name, epoch)
                self.settle()
        return self.finish(rounds)

    def finish(self, rounds: int = 1) -> World:
        for _ in range(rounds):
            self.settle()
        self.shut()
        return self

    def shut(self) -> None:
        for name in [*self.producers, *self.workers]:
            self.kill(name)

    def manifests(self) -> dict[int, Manifest]:
        """Return the first manifest of every epoch, which finalizes the epoch."""
        first: dict[int, Manifest] = {}
        decisions = DecisionLog(
            self.job, lambda each: first.update({each.manifest.epoch: each.manifest})
        )
        for offset, value in enumerate(self.log.values(Role.MANIFESTS)):
            decisions.apply(LogRecord(offset, value))
        return first

    def registry(self) -> ProducerRegistry:
        registry = ProducerRegistry(self.job)
        for value in self.log.values(Role.PRODUCERS):
            registry.apply(LogRecord(0, value))
        return registry

    def published(self) -> dict[int, EstimateRecord]:
        """Return the first estimate of every epoch."""
        reader = FirstEstimates(self.job)
        records = (reader.apply(value) for value in self.log.values(Role.ESTIMATES))
        return {record.epoch: record for record in records if record is not None}

    def integers(self) -> dict[int, bytes]:
        """Return the first complete partial of every epoch."""
        partials: dict[int, bytes] = {}
        reader = PartialLog(self.job, partials.__setitem__)
        for offset, value in enumerate(self.log.values(Role.PARTIALS)):
            reader.apply(LogRecord(offset, value))
        return partials


class Owner:
    """Worker that takes over every partition and advances one action at a time."""

    def __init__(self, world: World, stage: str, *nows: float) -> None:
        driver = MortalDriver(world.log, world.accidents)
        self.worker = MemoryWorker(world.stage(stage), world.log, driver, reader_of(stage))
        self.driver = driver
        self.done = False
        self._steps = self._work(len(world.job.start_offsets[self.worker.stage.role]), nows)
        self._reply: object = None

    def _work(self, partitions: int, nows: tuple[float, ...]) -> Steps[None]:
        for partition in range(partitions):
            yield from self.worker.assign(partition, nows[0])
        for now in nows:
            yield from self.worker.drain(now)

    def step(self, actions: int = 1_000_000) -> None:
        """Carry out a number of actions, or all remaining ones."""
        for _ in range(actions):
            try:
                self._reply = self.driver.carry_out(self._steps.send(self._reply))
            except (StopIteration, CrashError):
                self.done = True
                return
            except DeletedError:
                # The successor has processed and deleted the records that this worker would read.
                assert self.driver.fenced
                self.done = True
                return


@contextmanager
def memory_folder() -> Iterator[Path]:
    """Create a folder in memory where possible, and delete it afterwards."""
    memory = Path("/dev/shm")
    # In containers, /dev/shm has 64 MB by default, which concurrent tests fill.
    roomy = memory.is_dir() and disk_usage(memory).free > 1 << 30
    with TemporaryDirectory(dir=memory if roomy else None) as name:
        yield Path(name)


def world_job(name: str, protocol: str, parameters: Mapping[str, Any], **keys: Any) -> DeployedJob:
    """Deploy a job of two producers; all epochs end before a world starts."""
    times = {"start": "2023-01-01", "length": "PT1H", "grace": "60 s"}
    job = new_job(name, protocol, parameters, **{**times, "producers": 2, "partitions": 2, **keys})
    return deploy_job(job, deployment=DEPLOYMENT, deployed_at=0)


def own_cells(cells: int, epochs: int) -> dict[str, dict[int, dict[str, int]]]:
    """Give every device its own cell; the north's devices get the lower half."""
    half = cells // 2
    return {
        name: {
            epoch: {f"{name}{cell}": cell for cell in range(first, first + half)}
            for epoch in range(1, epochs + 1)
        }
        for name, first in (("north", 0), ("south", half))
    }


def interleavings(
    begin: Callable[[Path], World],
    folder: Path,
    stage: str = "shuffle",
    times: tuple[float, ...] = (0.0, 61.0, 122.0),
    meanwhile: Callable[[World], object] = lambda world: world.close_epoch("south", 1),
) -> Iterator[tuple[int, World]]:
    """Pause a stage's owner at any point, advance its successor to any point, resume the owner.

    Args:
        begin: Builds the world before the stage runs.
        times: Broker times at which the owner runs.

    Yields:
        The number of actions before the pause, and the world after all workers have settled.
    """
    for pause in count(1):
        for progress in count():
            world = begin(folder / f"{pause}-{progress}")
            owner = Owner(world, stage, *times)
            owner.step(pause)
            if owner.done:
                world.shut()
                return
            meanwhile(world)
            successor = Owner(world, stage, 200.0)
            successor.step(progress)
            finished = successor.done
            owner.driver.fenced = True
            owner.step()
            successor.step()
            world.workers[stage] = successor.worker
            for world.now in (300.0, 400.0):
                world.settle()
            yield pause, world
            world.shut()
            if finished:
                break
