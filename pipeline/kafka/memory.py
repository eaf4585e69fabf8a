"""A job's topics in memory, a driver that carries out actions on them, and a whole job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpstream.pipeline.actions import (
    Action,
    Append,
    Commit,
    DeleteBelow,
    EndOffsets,
    Flush,
    LogRecord,
    LogSlice,
    ReadRange,
    Steps,
    carry_out,
)
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_times import LAST_MOMENT
from dpstream.pipeline.jobs.key_files import KEY_BYTES, NoiseKey
from dpstream.pipeline.jobs.key_ring import KeyRing
from dpstream.pipeline.jobs.sealing_keys import public_bytes
from dpstream.pipeline.kafka.broker_clock import own_milliseconds
from dpstream.pipeline.stages.checkpoints import estimates_in
from dpstream.pipeline.stages.environment import Environment, WindowListener, ignore_window
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.stages.stage import Stage
from dpstream.pipeline.stages.stage_builder import build_stage
from dpstream.randomizers.randomness import cryptographic_generator, seeded_generator
from dpstream.topics.names import COMPACTED, Role

# Small, so that reading in several slices is the usual case.
SLICE_BYTES = 1 << 20

Result = TypeVar("Result")


_PURPOSES = {
    "enroll": 1,
    "report": 2,
    "identifier": 3,
    "shuffle": 4,
    "horizon": 5,
    "noise key": 6,
    "items to evaluate": 7,
}


class DeletedError(LookupError):
    pass


@dataclass(slots=True)
class _MemoryPartition:
    """Records starting at offset `base`; `latest` maps keys to the offset of their last record."""

    base: int = 0
    records: list[LogRecord] = field(default_factory=list)
    latest: dict[bytes | None, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.base + len(self.records)


class MemoryLog:
    """The partitions of a job's topics, and the committed offsets, by (role, partition).

    `committed_by` maps each reader's name to its committed offsets, and `committed` has those of
    the unnamed reader. `clock` returns milliseconds since 1970 and stamps every record, as a broker
    does.
    """

    def __init__(self, clock: Callable[[], int] = own_milliseconds) -> None:
        self.clock = clock
        self._partitions: defaultdict[tuple[Role, int], _MemoryPartition] = defaultdict(
            _MemoryPartition
        )
        self.committed_by: defaultdict[str, dict[tuple[Role, int], int]] = defaultdict(dict)
        self.committed = self.committed_by[""]

    def append(self, action: Append) -> None:
        partition = self._partitions[action.role, action.partition]
        partition.latest[action.key] = partition.end
        partition.records.append(
            LogRecord(partition.end, action.value, self.clock(), action.key, action.headers)
        )

    def start(self, role: Role, partition: int) -> int:
        return self._partitions[role, partition].base

    def end(self, role: Role, partition: int) -> int:
        return self._partitions[role, partition].end

    def read(self, role: Role, partition: int, start: int, stop: int) -> LogSlice:
        """Return about `SLICE_BYTES` of records; raise DeletedError if the first was deleted."""
        stored = self._partitions[role, partition]
        if start < stored.base:
            raise DeletedError(f"{role} {partition}: offset {start} was deleted")
        taken: list[LogRecord] = []
        size = 0
        for index in range(start - stored.base, min(stop, stored.end) - stored.base):
            record = stored.records[index]
            if role in COMPACTED and stored.latest[record.key] != record.offset:
                continue
            taken.append(record)
            size += len(record.value)
            if size >= SLICE_BYTES:
                break
        return LogSlice(tuple(taken), taken[-1].offset + 1 if taken else start)

    def delete_below(self, role: Role, partition: int, offset: int) -> None:
        stored = self._partitions[role, partition]
        gone = min(max(offset - stored.base, 0), len(stored.records))
        del stored.records[:gone]
        stored.base += gone

    def values(self, role: Role, partition: int = 0) -> list[bytes]:
        return [record.value for record in self._partitions[role, partition].records]


@dataclass(slots=True)
class MemoryDriver:
    """Carry out the actions of one owner; `written` maps partitions to flushed end offsets."""

    log: MemoryLog
    pending: list[Append] = field(default_factory=list)
    reader: str = ""
    written: dict[tuple[Role, int], int] = field(default_factory=dict)

    def carry_out(self, action: Action) -> object:
        match action:
            case Append():
                self.pending.append(action)
            case Flush():
                self.crash(keep=True)
                return dict(self.written)
            case ReadRange(role, partition, start, stop):
                return self.log.read(role, partition, start, stop)
            case EndOffsets(places):
                return {place: self.log.end(*place) for place in places}
            case Commit(role, partition, offset):
                self.log.committed_by[self.reader][role, partition] = offset
            case DeleteBelow(role, partition, offset):
                self.log.delete_below(role, partition, offset)
        return None

    def crash(self, *, keep: bool) -> None:
        """Drop unflushed records, or with `keep` deliver them as if they had arrived."""
        if keep:
            for append in self.pending:
                self.log.append(append)
                place = append.role, append.partition
                self.written[place] = self.log.end(*place)
        self.pending.clear()

    def run(self, steps: Generator[Action, object, Result]) -> Result:
        return carry_out(steps, self.carry_out)


class MemoryWorker:
    """A stage that owns partitions of a `MemoryLog`, and reads each from its own position.

    `reader` is the name under which the stage commits offsets; it is required if other stages read
    the same topic.
    """

    def __init__(
        self,
        stage: Stage,
        log: MemoryLog,
        driver: MemoryDriver | None = None,
        reader: str = "",
    ) -> None:
        self.stage = stage
        self.log = log
        self.driver = driver if driver is not None else MemoryDriver(log)
        self.driver.reader = reader
        self.positions: dict[int, int] = {}

    def assign(self, partition: int, now: float = 0.0) -> Steps[None]:
        committed = self.log.committed_by[self.driver.reader].get((self.stage.role, partition))
        self.positions[partition] = yield from self.stage.assign(partition, committed, now)

    def run(self, steps: Generator[Action, object, Result]) -> Result:
        return self.driver.run(steps)

    def poll(self, now: float = 0.0) -> Steps[bool]:
        shown = False
        for partition, position in list(self.positions.items()):
            for record in self.log.read(self.stage.role, partition, position, position + 1).records:
                self.positions[partition] = record.offset + 1
                yield from self.stage.record(
                    partition, record.offset, record.value, now, record.timestamp
                )
                shown = True
        return shown

    def drain(self, now: float = 0.0) -> Steps[None]:
        while (yield from self.poll(now)):
            pass
        yield from self.stage.tick(now)


class SimulatedCluster:
    """All stages of a job on initially empty topics in memory, with one worker per stage.

    `generators` returns the random generator for a purpose and a number. `noise_key`, for the
    shuffler's dummy messages, is random by default. `workers` maps stage names to workers, in the
    order of the data flow.
    """

    def __init__(
        self,
        job: DeployedJob,
        generators: Callable[[str, int], np.random.Generator],
        noise_key: NoiseKey | None = None,
        log: MemoryLog | None = None,
        listeners: Callable[[str], WindowListener] = lambda stage: ignore_window,
    ) -> None:
        if job.needs_noise_key:
            noise_key = noise_key or NoiseKey(generators("noise key", 0).bytes(KEY_BYTES))
            job = job.model_copy(update={"noise_key": noise_key.digest})
        job, keys = with_own_keys(job)
        self.job, self.keys = job, keys
        # Stamp records with a time after all epochs of any calendar.
        self.log = MemoryLog(clock=lambda: LAST_MOMENT) if log is None else log
        self._read = 0
        identifiers = generators("identifier", 0)
        self.workers = {
            name: MemoryWorker(
                build_stage(
                    job,
                    name,
                    Environment(
                        identifiers=lambda: identifiers.bytes(16),
                        wall_clock=lambda: 0,
                        broker_time=self.log.clock,
                        # Each parallel shuffler has its own generator.
                        generator=generators("shuffle", number if "instance" in name else 0),
                        noise_key=noise_key,
                        keys=keys,
                        listener=listeners(name),
                    ),
                ),
                self.log,
                reader=name,
            )
            for number, name in enumerate(job.route.stages, 1)
        }
        for worker in self.workers.values():
            for partition in range(len(job.start_offsets[worker.stage.role])):
                worker.run(worker.assign(partition))

    def settle(self) -> None:
        for worker in self.workers.values():
            worker.run(worker.drain())

    def new_estimates(self) -> list[EstimateRecord]:
        end = self.log.end(Role.ESTIMATES, 0)
        records: list[EstimateRecord] = []
        while self._read < end:
            found = self.log.read(Role.ESTIMATES, 0, self._read, end)
            published = estimates_in(found.records)
            records += (record.shown_to_readers_of(self.job) for record in published)
            self._read = found.end
        return records


def seeded_generators(seed: int | None) -> Callable[[str, int], np.random.Generator]:
    """Return a function (purpose, number) -> generator; None seeds from the operating system."""
    if seed is None:
        generator = cryptographic_generator()
        return lambda purpose, number: generator
    return lambda purpose, number: seeded_generator(seed, _PURPOSES[purpose], number)


def with_own_keys(job: DeployedJob) -> tuple[DeployedJob, KeyRing]:
    """Replace a job's public keys by new keys; return the new job and the new private keys."""
    if job.sealed is None:
        return job, KeyRing({})
    sealed, pairs = job.sealed, list[X25519PrivateKey]()

    def others(keys: Sequence[str]) -> tuple[str, ...]:
        new_keys = [X25519PrivateKey.generate() for _ in keys]
        pairs.extend(new_keys)
        return tuple(public_bytes(key).hex() for key in new_keys)

    own = sealed.model_copy(
        update={
            "aggregate": others(sealed.aggregate),
            "stages": tuple(map(others, sealed.stages)),
            "shares": tuple(map(others, sealed.shares)),
        }
    )
    return job.model_copy(update={"sealed": own}), KeyRing.of(pairs, "the simulation")
