"""Scenarios for attacks on the stage that finalizes windows.

Reports of producers or devices are drawn in advance. The attacker is the broker's operator, who
delivers them late, twice, in part or in another order, and stops and replaces workers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpstream.pipeline.actions import Action, Append, Commit, LogRecord, Steps
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.jobs.key_files import NoiseKey
from dpstream.pipeline.jobs.key_ring import NO_KEYS, KeyRing
from dpstream.pipeline.jobs.producer_registry import ProducerRegistry
from dpstream.pipeline.kafka.memory import DeletedError, MemoryDriver, MemoryLog, MemoryWorker
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.stage_builder import build_stage
from dpstream.topics.batches import Punctuation, decode_batch, decode_punctuation
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.frames import RecordType, kind_of
from dpstream.topics.manifests import Manifest, decode_manifest
from dpstream.topics.messages import Messages
from dpstream.topics.names import Role

NOW = 1_700_000_000_000
"""Time of the broker's clock after all epochs of `scenario_job`, in milliseconds since 1970."""
EPOCHS = 3
GRACE = 60.0
PATIENT = (0.0, GRACE + 1, 2 * GRACE + 2)
"""Times of ticks, in seconds, after which a worker has finalized all windows."""

Held = Counter[tuple[int, ...]]
"""Number of occurrences of each message."""


def scenario_job(
    protocol: str,
    parameters: Mapping[str, Any],
    *,
    minimum: int,
    producers: int | None = 2,
    deployment: bytes = bytes(16),
    key: NoiseKey | None = None,
    **sections: Any,
) -> DeployedJob:
    """Build a job with a few epochs in the past, and a grace period of a minute."""
    shuffle = {"minimum": minimum, "grace": f"{GRACE:g} s"}
    values = {
        "name": "audit",
        "protocol": protocol,
        "parameters": parameters,
        "epochs": {"count": EPOCHS, "start": "2023-01-01", "length": "PT1H"},
        "shuffle": shuffle if producers is None else {**shuffle, "producers": producers},
        "topics": {"partitions": 2},
        **sections,
    }
    job = deploy_job(make_job(values), deployed_at=0, deployment=deployment)
    return job if key is None else job.model_copy(update={"noise_key": key.digest})


@dataclass(frozen=True)
class Sent:
    """Records of a producer, and its present devices and messages, all by epoch."""

    name: str
    registration: bytes
    records: Mapping[int, tuple[bytes, ...]]
    present: Mapping[int, int]
    words: Mapping[int, Held]


def draw(
    job: DeployedJob, name: str, values: Sequence[Sequence[Any]], randomness: np.random.Generator
) -> Sent:
    """Let a producer randomize epochs from 1 on; None is the value of an absent device."""
    log = MemoryLog(clock=lambda: NOW)
    producer = Producer(
        job,
        None,
        name=name,
        transport=MemoryDriver(log),
        generators=lambda purpose, number: randomness,
        identifiers=lambda: randomness.bytes(16),
    )
    users = [f"{name} {user}" for user in range(len(values[0]))]
    producer.enroll(users)
    records: dict[int, tuple[bytes, ...]] = {}
    present: dict[int, int] = {}
    for epoch, held in enumerate(values, 1):
        partition = job.topics.partition_of(epoch)
        before = log.end(Role.REPORTS, partition)
        there = {user: value for user, value in zip(users, held, strict=True) if value is not None}
        producer.report(epoch, there)
        producer.close(epoch)
        records[epoch] = tuple(log.values(Role.REPORTS, partition)[before:])
        present[epoch] = len(there)
    producer.shut()
    words = {epoch: held_by(batches_of(values)) for epoch, values in records.items()}
    return Sent(name, log.values(Role.PRODUCERS)[0], records, present, words)


def batches_of(records: Sequence[bytes]) -> list[Messages]:
    return [decode_batch(each).words for each in records if kind_of(each) is RecordType.BATCH]


def punctuation_of(records: Sequence[bytes]) -> Punctuation:
    (found,) = (
        decode_punctuation(each) for each in records if kind_of(each) is RecordType.PUNCTUATION
    )
    return found


def held_by(chunks: Sequence[Messages]) -> Held:
    held: Held = Counter()
    for words in chunks:
        counts = np.ones(words.rows, np.int64) if words.counts is None else words.counts
        for row, times in zip(words.values.tolist(), counts.tolist(), strict=True):
            held[tuple(row)] += times
    return +held


@dataclass(eq=False)
class AttackScenario:
    """Topics of a job whose delivery and workers an attacker controls."""

    job: DeployedJob
    randomness: np.random.Generator
    noise_key: NoiseKey | None = None
    keys: KeyRing = NO_KEYS
    log: MemoryLog = field(default_factory=lambda: MemoryLog(clock=lambda: NOW))

    def register(self, *senders: Sent) -> None:
        for sent in senders:
            self.log.append(Append(Role.PRODUCERS, 0, sent.registration))

    def deliver(self, epoch: int, records: Sequence[bytes]) -> None:
        for value in records:
            self.log.append(Append(Role.REPORTS, self.job.topics.partition_of(epoch), value))

    def worker(self, *moments: float) -> SteppedWorker:
        """Return a worker that takes over all partitions and runs at these times, in seconds."""
        stage = build_stage(
            self.job,
            "shuffle",
            Environment(
                identifiers=lambda: self.randomness.bytes(16),
                wall_clock=lambda: NOW,
                broker_time=self.log.clock,
                generator=self.randomness,
                noise_key=self.noise_key,
                keys=self.keys,
            ),
        )
        partitions = len(self.job.start_offsets[Role.REPORTS])
        return SteppedWorker(MemoryWorker(stage, self.log, _Fenced(self.log)), partitions, moments)

    def work(self, *moments: float) -> None:
        self.worker(*moments).step()

    def manifests(self) -> dict[int, Manifest]:
        first: dict[int, Manifest] = {}
        for manifest in map(decode_manifest, self.log.values(Role.MANIFESTS)):
            first.setdefault(manifest.epoch, manifest)
        return first

    def inside(self, epoch: int) -> set[str]:
        registry = ProducerRegistry(self.job)
        for value in self.log.values(Role.PRODUCERS):
            registry.apply(LogRecord(0, value))
        included = self.manifests()[epoch].producers
        return {each.name for each, is_in in zip(registry, included, strict=False) if is_in}

    def writings(self, epoch: int) -> list[Held]:
        """Return the content of each complete write of a window."""
        attempts: defaultdict[bytes, list[Messages]] = defaultdict(list)
        totals: dict[bytes, int] = {}
        for partition in range(len(self.job.start_offsets[Role.SHUFFLED])):
            for chunk in map(decode_chunk, self.log.values(Role.SHUFFLED, partition)):
                if chunk.epoch == epoch:
                    attempts[chunk.attempt].append(chunk.words)
                    totals[chunk.attempt] = chunk.total
        return [held_by(words) for name, words in attempts.items() if len(words) == totals[name]]


class _FencedError(Exception):
    """Another worker has taken over the partition of this commit."""


class _Fenced(MemoryDriver):
    """Driver that rejects commits once another worker has taken over, as Kafka does."""

    taken_over = False

    def carry_out(self, action: Action) -> object:
        if self.taken_over and isinstance(action, Commit):
            raise _FencedError
        return super().carry_out(action)


class SteppedWorker:
    """Worker that can be stopped between any two actions; `done` after its last action."""

    def __init__(self, worker: MemoryWorker, partitions: int, moments: tuple[float, ...]) -> None:
        self.done = False
        self._driver = worker.driver
        self._steps = _work(worker, partitions, moments)
        self._reply: object = None

    def step(self, actions: int | None = None) -> None:
        while not self.done and actions != 0:
            try:
                self._reply = self._driver.carry_out(self._steps.send(self._reply))
            # Its successor has processed and deleted the records it was about to read.
            except (StopIteration, _FencedError, DeletedError):
                self.done = True
            actions = None if actions is None else actions - 1

    def fence(self) -> None:
        """Let another worker take over without notifying this one."""
        assert isinstance(self._driver, _Fenced)
        self._driver.taken_over = True


def _work(worker: MemoryWorker, partitions: int, moments: tuple[float, ...]) -> Steps[None]:
    for partition in range(partitions):
        yield from worker.assign(partition, moments[0])
    for now in moments:
        yield from worker.drain(now)


def taken_over_at_every_step(
    begin: Callable[[], AttackScenario],
    late: Callable[[AttackScenario], None],
    *,
    just_decided: bool = False,
) -> Iterator[AttackScenario]:
    """Stop a worker after each of its actions, let another take over, and resume the first.

    The first resumes when the other has finished, and with `just_decided` also right after the
    other has finalized the window. `late` delivers records after the stop.
    """
    actions, done = 0, False
    while not done:
        actions += 1
        for only_decides in (False, True)[: 1 + just_decided]:
            scenario = begin()
            first = scenario.worker(*PATIENT)
            first.step(actions)
            done = first.done
            late(scenario)
            second = scenario.worker(*(moment + 2 * PATIENT[-1] for moment in PATIENT))
            while not second.done and not (only_decides and scenario.manifests()):
                second.step(1)
            first.fence()
            first.step()
            second.step()
            scenario.work(*(moment + 4 * PATIENT[-1] for moment in PATIENT))
            yield scenario
