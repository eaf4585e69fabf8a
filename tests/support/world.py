"""The whole path in memory, with accidents: producers, shuffle, aggregate and publish workers.

Every action that any of them carries out is counted; at a chosen count the process that was
carrying it out dies, with what it had not flushed lost, or kept.
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
from dpstream.pipeline.jobs.roster import Roster
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
"""What the broker's clock says when a world begins, on 2023-11-14, in milliseconds since 1970."""


class CrashError(Exception):
    """The process that carried this action out is no more."""


@dataclass
class Accidents:
    """Counts actions over all processes, and strikes at some of them."""

    at: frozenset[int] = frozenset()
    keep: bool = False
    count: int = 0

    def strike(self) -> None:
        self.count += 1
        if self.count in self.at:
            raise CrashError


class MortalDriver(MemoryDriver):
    """A driver that dies when its time has come; a zombie's commits are fenced."""

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
    """Randomness as a function of producer and epoch alone."""
    number = int.from_bytes(name.encode(), "little")
    return lambda purpose, index: seeded_generator(SEED, number, len(purpose), index)


def reader_of(stage: str) -> str:
    """In whose name a stage commits."""
    return stage if stage in SHARERS else ""


@dataclass
class World:
    """A job, its topics, and processes that can be killed.

    `values` maps a producer's name to its users' values by epoch: values[name][epoch][user].
    """

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
        """The broker's clock, which goes with `now`."""
        return BEGUN + int(1000 * self.now)

    def identifier(self) -> bytes:
        """New for every call, as random ids are."""
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
        """A running producer, started when needed."""
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
        """A running worker that owns every partition, started when needed."""
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
        """Do work of a process; when it dies, start it again, until the work is done."""
        while True:
            try:
                work()
                return
            except CrashError:
                self.kill(name)

    def kill(self, name: str) -> None:
        """Forget all that a process held in memory, and free its folder."""
        self.restarts += 1
        self.workers.pop(name, None)
        producer = self.producers.pop(name, None)
        if producer is not None:
            producer.shut()

    def close_epoch(self, name: str, epoch: int) -> None:
        """Have a producer send an epoch, whatever happens."""

        def work() -> None:
            producer = self.producer(name)
            values = self.values[name][epoch]
            producer.enrol(list(values))
            if producer.closed_epoch < epoch:
                producer.report(epoch, values)
                producer.close(epoch)

        self.surviving(name, work)

    def settle(self, names: Iterable[str] | None = None) -> None:
        """Have the workers do all they can, whatever happens."""
        for name in self.job.route.stages if names is None else names:
            self.surviving(name, lambda name=name: self._drain(name))  # type: ignore[misc]

    def _drain(self, name: str) -> None:
        worker = self.worker(name)
        worker.run(worker.drain(self.now))

    def close_all(self, epoch: int) -> None:
        """Have every producer with values of an epoch send it, whatever happens."""
        for name, epochs in self.values.items():
            if epoch in epochs:
                self.close_epoch(name, epoch)

    def run(self, epochs: Iterable[int], rounds: int = 1) -> World:
        """Have one producer after the other send epochs, with the workers in between; then stop."""
        for epoch in epochs:
            for name in self.values:
                self.close_epoch(name, epoch)
                self.settle()
        return self.finish(rounds)

    def finish(self, rounds: int = 1) -> World:
        """Have the workers do all they can for so many rounds, and stop everything."""
        for _ in range(rounds):
            self.settle()
        self.shut()
        return self

    def shut(self) -> None:
        """Stop everything."""
        for name in [*self.producers, *self.workers]:
            self.kill(name)

    def manifests(self) -> dict[int, Manifest]:
        """The first manifest of every epoch, by which it is decided."""
        first: dict[int, Manifest] = {}
        decisions = DecisionLog(
            self.job, lambda each: first.update({each.manifest.epoch: each.manifest})
        )
        for offset, value in enumerate(self.log.values(Role.MANIFESTS)):
            decisions.apply(LogRecord(offset, value))
        return first

    def roster(self) -> Roster:
        """The producers, in the order of registration."""
        roster = Roster(self.job)
        for value in self.log.values(Role.PRODUCERS):
            roster.apply(LogRecord(0, value))
        return roster

    def published(self) -> dict[int, EstimateRecord]:
        """The first estimate of every epoch."""
        reader = FirstEstimates(self.job)
        records = (reader.apply(value) for value in self.log.values(Role.ESTIMATES))
        return {record.epoch: record for record in records if record is not None}

    def integers(self) -> dict[int, bytes]:
        """The first complete partial of every epoch."""
        partials: dict[int, bytes] = {}
        reader = PartialLog(self.job, partials.__setitem__)
        for offset, value in enumerate(self.log.values(Role.PARTIALS)):
            reader.apply(LogRecord(offset, value))
        return partials


class Owner:
    """A worker that takes every partition over, and is stepped through its actions one by one."""

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
        """Carry out so many actions, or all that are left."""
        for _ in range(actions):
            try:
                self._reply = self.driver.carry_out(self._steps.send(self._reply))
            except (StopIteration, CrashError):
                self.done = True
                return
            except DeletedError:
                # Its successor has finished with what it was about to read.
                assert self.driver.fenced
                self.done = True
                return


@contextmanager
def memory_folder() -> Iterator[Path]:
    """Make a folder in memory, where there is one, and delete it afterwards."""
    memory = Path("/dev/shm")
    # Containers have 64 MB of it unless they are told otherwise, which tests side by side fill.
    roomy = memory.is_dir() and disk_usage(memory).free > 1 << 30
    with TemporaryDirectory(dir=memory if roomy else None) as name:
        yield Path(name)


def world_job(name: str, protocol: str, parameters: Mapping[str, Any], **keys: Any) -> DeployedJob:
    """Deploy a job of two producers, whose epochs are over before a world begins."""
    times = {"start": "2023-01-01", "length": "PT1H", "grace": "60 s"}
    job = new_job(name, protocol, parameters, **{**times, "producers": 2, "partitions": 2, **keys})
    return deploy_job(job, deployment=DEPLOYMENT, deployed_at=0)


def own_cells(cells: int, epochs: int) -> dict[str, dict[int, dict[str, int]]]:
    """Give every device a cell of its own, the north's devices the lower half of them."""
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
    """Pause the owner of a stage anywhere, let its successor get anywhere, and wake the owner up.

    Args:
        begin: the world before the stage works.
        times: the times at which the owner works.
        meanwhile: what happens while the owner is paused.

    Yields:
        The actions before the pause, and the world once everything has settled.
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
