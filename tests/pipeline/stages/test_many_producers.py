"""Windows and decisions of many producers: short manifests, and many that are read together."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpstream.pipeline.actions import Append, LogRecord
from dpstream.pipeline.jobs.deployed_job import MANY_PRODUCERS, DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.jobs.job_range import EPOCHS_AHEAD
from dpstream.pipeline.jobs.roster import EnrolledProducer, Roster
from dpstream.pipeline.kafka.memory import MemoryLog, MemoryWorker
from dpstream.pipeline.ledger.releases import releases_in
from dpstream.pipeline.stages import decision_log
from dpstream.pipeline.stages.decision_log import (
    PATIENCE,
    Decision,
    DecisionLog,
    Decisions,
    manifest_reader,
)
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.multisets import WordMultiset
from dpstream.pipeline.stages.shuffle_decision import ShuffleDecision
from dpstream.pipeline.stages.stage_builder import build_stage
from dpstream.pipeline.stages.timeline import Timeline
from dpstream.pipeline.stages.windows import Window
from dpstream.topics.batches import Batch, Punctuation, batch_id, encode_batch, encode_punctuation
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.manifests import Fate, Manifest, decode_manifest, encode_manifest, is_short
from dpstream.topics.names import Role
from dpstream.topics.records import Farewell, Registration
from dpstream.topics.words import Words
from tests.benchmarks.one_core import shuffle_stage

EPOCHS = 4


def deployed(producers: int, epochs: int = EPOCHS, **shuffle: Any) -> DeployedJob:
    values = {
        "name": "many",
        "protocol": "future_rand",
        "parameters": {"epsilon": 1, "changes": 1},
        "epochs": {"count": epochs},
        "shuffle": {"minimum": 1, "grace": "1h", "producers": producers, **shuffle},
        "topics": {"partitions": 1},
    }
    return deploy_job(make_job(values), deployment=bytes(range(16)), deployed_at=0)


def worker_of(job: DeployedJob, log: MemoryLog, attempts: count[int]) -> MemoryWorker:
    stage = build_stage(
        job,
        "shuffle",
        Environment(
            identifiers=lambda: next(attempts).to_bytes(16, "big"),
            wall_clock=lambda: 5,
            broker_time=lambda: None,
            generator=np.random.default_rng(0),
        ),
    )
    return MemoryWorker(stage, log)


class KeepingLog(MemoryLog):
    """Deletes nothing, so that what was released may be released again."""

    def delete_below(self, role: Role, partition: int, offset: int) -> None:
        pass


def enrolment(number: int) -> bytes:
    return number.to_bytes(16, "big")


def register(job: DeployedJob, log: MemoryLog, producers: int) -> None:
    for number in range(producers):
        record = Registration(job.deployment, f"p{number}", enrolment(number), 1)
        log.append(Append(Role.PRODUCERS, 0, record.to_bytes()))


def send(job: DeployedJob, log: MemoryLog, epoch: int, number: int) -> None:
    """One report, which says whose it is."""
    identity = job.fingerprint, job.deployment
    words = Words(np.full((1, job.word_form.width), number % 2, job.word_form.dtype))
    batch = Batch(*identity, batch_id(bytes(8), 0), enrolment(number), epoch, words)
    log.append(Append(Role.REPORTS, 0, encode_batch(batch)))
    said = Punctuation(*identity, enrolment(number), epoch, 1, 1, 500 + 7 * number, bytes(8))
    log.append(Append(Role.REPORTS, 0, encode_punctuation(said)))


def released(log: MemoryLog) -> dict[bytes, tuple[int, Any, Any]]:
    """By attempt, its epoch and its words."""
    chunks = [decode_chunk(value) for value in log.values(Role.SHUFFLED)]
    return {
        each.attempt: (
            each.epoch,
            each.words.values.tolist(),
            None if each.words.counts is None else each.words.counts.tolist(),
        )
        for each in chunks
    }


def test_a_worker_that_takes_over_goes_on_under_short_manifests() -> None:
    job, log, attempts = deployed(MANY_PRODUCERS), KeepingLog(), count(1)
    register(job, log, MANY_PRODUCERS)
    first = worker_of(job, log, attempts)
    first.run(first.assign(0))
    for epoch in (1, 2):
        for number in range(MANY_PRODUCERS):
            send(job, log, epoch, number)
        first.run(first.drain())
    records = log.values(Role.MANIFESTS)
    assert [is_short(record) for record in records] == [False, True]
    once = released(log)
    assert sorted(epoch for epoch, *_ in once.values()) == [1, 2]
    # Nothing was committed, as far as the next one knows: it writes both again, all the same.
    log.committed.clear()
    second = worker_of(job, log, attempts)
    second.run(second.assign(0))
    twice = [each for attempt, each in released(log).items() if attempt not in once]
    assert sorted(twice) == sorted(once.values())
    for number in range(MANY_PRODUCERS):
        send(job, log, 3, number)
    second.run(second.drain())
    assert [is_short(record) for record in log.values(Role.MANIFESTS)] == [False, True, True]


def test_a_window_is_decided_with_the_record_that_completes_it() -> None:
    """Before the stage looks at all windows the next time; what follows is not in it."""
    job, log = deployed(2), MemoryLog()
    register(job, log, 2)
    worker = worker_of(job, log, count(1))
    worker.run(worker.assign(0))
    for number in (0, 1, 1):
        send(job, log, 1, number)
    decided = []
    while worker.run(worker.poll()):
        decided.append(len(log.values(Role.MANIFESTS)))
    assert decided == [0, 0, 0, 1, 1, 1]
    (manifest,) = map(decode_manifest, log.values(Role.MANIFESTS))
    assert (manifest.first_offset, manifest.cut_offset) == (0, 4)


def test_all_who_read_manifests_read_short_ones() -> None:
    job, log = deployed(MANY_PRODUCERS), MemoryLog()
    register(job, log, MANY_PRODUCERS)
    worker = worker_of(job, log, count(1))
    worker.run(worker.assign(0))
    for epoch in range(1, EPOCHS + 1):
        for number in range(MANY_PRODUCERS):
            send(job, log, epoch, number)
        worker.run(worker.drain())

    def read(role: Role, partition: int) -> list[LogRecord]:
        return list(log.read(role, partition, 0, log.end(role, partition)).records)

    reader = manifest_reader(job)
    manifests = [reader.decode(each.offset, each.value) for each in read(Role.MANIFESTS, 0)]
    assert [each.epoch for each in manifests] == [1, 2, 3, 4]
    populations = tuple(500 + 7 * number for number in range(MANY_PRODUCERS))
    for each in manifests:
        assert each.producers == (True,) * MANY_PRODUCERS
        assert each.populations == populations
    name = job.deployment.hex()
    found = releases_in(job.name, read(Role.MANIFESTS, 0), [], {name: EPOCHS})[name]
    assert (found.fates, found.contributors) == ({Fate.RELEASED: EPOCHS}, (MANY_PRODUCERS,) * 2)
    (present,) = found.present.values()
    assert (present.windows, present.producers) == (EPOCHS, MANY_PRODUCERS)
    decisions = DecisionLog(job)
    for record in read(Role.MANIFESTS, 0):
        decisions.apply(record)
    assert decisions.decided.highest == EPOCHS
    assert [decisions.population(index) for index in range(100)] == list(populations)


DECIDED_EPOCHS = 20_000
PRODUCERS = 5


def job_of(partitions: int = 4, minimum: int = 1) -> DeployedJob:
    job = make_job(
        {
            "name": "rows",
            "protocol": "future_rand",
            "parameters": {"epsilon": 4, "changes": 4},
            "epochs": {"count": DECIDED_EPOCHS},
            "shuffle": {"grace": "1h", "minimum": minimum, "producers": PRODUCERS},
            "topics": {"partitions": partitions},
        }
    )
    return deploy_job(job, deployed_at=0, deployment=bytes(range(16)))


JOB = job_of()


def manifest(rng: np.random.Generator, epoch: int, **changes: Any) -> bytes:
    inside = [True] * PRODUCERS
    if rng.random() < 0.02:
        inside[rng.integers(PRODUCERS)] = False
    populations = [int(number) for number in rng.integers(50, 60, sum(inside))]
    fate = Fate.EMPTY if rng.random() < 0.05 else Fate.RELEASED
    values: dict[str, Any] = {
        "fingerprint": JOB.fingerprint, "deployment": JOB.deployment, "epoch": epoch, "fate": fate,
        "first_offset": 10 * epoch, "cut_offset": 10 * epoch + 5, "first_epoch": 3,
        "producers": tuple(inside), "populations": tuple(populations),
        "contributors": 0 if fate is Fate.EMPTY else 9, "population": 400, "timestamp": epoch,
    }  # fmt: skip
    return encode_manifest(Manifest(**(values | changes)))


def history(seed: int, epochs: int = 1_300) -> list[LogRecord]:
    """Nearly in order; some are repeated, out of range, damaged, or of others."""
    rng = np.random.default_rng(seed)
    order = np.argsort(np.arange(3, epochs) + rng.uniform(0, rng.choice([1, 6, 40]), epochs - 3))
    values = []
    for epoch in (order + 3).tolist():
        values.append(manifest(rng, epoch))
        match int(rng.integers(150)):
            case 0:
                values.append(manifest(rng, int(rng.integers(3, epoch + 1))))
            case 1:
                values.append(manifest(rng, epoch + EPOCHS_AHEAD + int(rng.integers(50, 99))))
            case 2:
                values.append(b"\x01" + values[-1][1:])
            case 3:
                values.append(manifest(rng, epoch + 50, deployment=bytes(16)))
            case 4:
                values.append(manifest(rng, 2, first_epoch=2))
            case 5:
                values.append(manifest(rng, DECIDED_EPOCHS + 1))
            case 6:
                drawings = (bytes(8),) * PRODUCERS
                every = {"producers": (True,) * PRODUCERS, "populations": (50,) * PRODUCERS}
                values.append(manifest(rng, epoch, instance=2, drawings=drawings, **every))
    return [LogRecord(offset, value) for offset, value in enumerate(values)]


class Known:
    """What a reader of the log knows, and was shown."""

    def __init__(self) -> None:
        self.shown: list[tuple[int, int]] = []
        self.rows = 0
        self.log = DecisionLog(JOB, self._one, self._many)

    def _one(self, decision: Decision) -> None:
        self.shown.append((decision.offset, decision.manifest.epoch))

    def _many(self, decisions: Decisions) -> None:
        self.rows += len(decisions.offsets)
        for row, offset in enumerate(decisions.offsets):
            decision = decisions.decision(row)
            assert (decision.offset, decision.manifest.epoch) == (
                offset,
                decisions.rows.epochs[row],
            )
            self._one(decision)

    def all(self) -> tuple[object, ...]:
        log = self.log
        outcomes = {}
        for epoch in range(1, 1_500):
            outcome = log.recent(epoch)
            if outcome is not None:
                outcomes[epoch] = (
                    outcome.fate, outcome.first_offset, outcome.cut_offset, outcome.bits,
                )  # fmt: skip
        return (
            self.shown,
            log.first_epoch,
            list(log.decided.missing(1, 1_400)),
            log.decided.highest,
            outcomes,
            [log.population(index) for index in range(PRODUCERS)],
            [log.last_in(index) for index in range(PRODUCERS)],
        )


@pytest.mark.parametrize("seed", range(3))
def test_what_is_read_together_is_known_as_what_is_read_one_by_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So few are remembered that most are forgotten, and that what lies ahead matters.
    monkeypatch.setattr(decision_log, "EPOCHS_AHEAD", 300)
    records = history(seed)
    alone, together = Known(), Known()
    for record in records:
        alone.log.apply(record)
    sizes, start = np.random.default_rng(seed), 0
    while start < len(records):
        size = int(sizes.integers(1, 700))
        together.log.apply_all(records[start : start + size])
        start += size
    assert together.all() == alone.all()
    assert together.rows > len(records) // 4


def test_who_takes_another_partition_over_writes_what_was_decided_of_it_long_before() -> None:
    """Though all of it lies below what the worker had left to do when it read of it."""
    log, known, behind = MemoryLog(), Known(), 6_500
    for record in history(1, 700):
        log.append(Append(Role.MANIFESTS, 0, record.value))
        known.log.apply(record)
    owed = [
        epoch
        for epoch in range(1, 700)
        if JOB.topics.partition_of(epoch) == 1
        and (outcome := known.log.recent(epoch)) is not None
        and outcome.fate is Fate.RELEASED
        and outcome.first_offset >= behind
    ]
    assert len(owed) > 5
    log.committed.update({(Role.REPORTS, 0): 10 * DECIDED_EPOCHS, (Role.REPORTS, 1): behind})
    worker = MemoryWorker(shuffle_stage(JOB), log)
    for partition in (0, 1):
        worker.run(worker.assign(partition))
    assert [decode_chunk(value).epoch for value in log.values(Role.SHUFFLED, 1)] == owed


DEPLOYMENT = bytes(range(16))
WATCHED_EPOCHS, MOST, WANTED = 8, 6, 2


def _job() -> DeployedJob:
    values = {
        "name": "awaited",
        "protocol": "future_rand",
        "parameters": {"epsilon": 1, "changes": 1},
        "epochs": {"count": WATCHED_EPOCHS},
        "shuffle": {"minimum": 1, "producers": WANTED},
    }
    return deploy_job(make_job(values), deployment=DEPLOYMENT, deployed_at=0)


WATCHED = _job()


def enrolment_of(number: int) -> bytes:
    return bytes([number + 1]) * 16


@dataclass
class Arrived:
    """What a plain reader notes of an epoch: who has sent anything, and who everything."""

    anything: set[int] = field(default_factory=set)
    everything: set[int] = field(default_factory=set)


class Plain:
    """The stage's own objects, and beside them sets that say the same."""

    def __init__(self) -> None:
        self.roster, self.log = Roster(WATCHED), DecisionLog(WATCHED)
        self.timeline = Timeline(WATCHED, lambda: None)
        self.decision = ShuffleDecision(WATCHED, self.roster, self.log, self.timeline)
        self.windows = {epoch: self._window(epoch) for epoch in range(1, WATCHED_EPOCHS + 1)}
        self.arrived = {epoch: Arrived() for epoch in self.windows}
        self.decided: dict[int, set[int]] = {}
        self.punctuated: dict[int, int] = {}
        self.sizes: dict[int, tuple[int, int]] = {}

    def _window(self, epoch: int) -> Window:
        return Window(epoch, 0.0, lambda: WordMultiset(WATCHED.word_form))

    def register(self, number: int, epoch: int) -> None:
        record = Registration(DEPLOYMENT, f"p{number}", enrolment_of(number), epoch)
        self.roster.apply(LogRecord(0, record.to_bytes()))

    def leave(self, number: int, epoch: int) -> None:
        record = Farewell(DEPLOYMENT, enrolment_of(number), epoch)
        self.roster.apply(LogRecord(0, record.to_bytes()))

    def begin(self, number: int, epoch: int) -> None:
        """Say that one batch is to come."""
        self._punctuate(number, epoch, 1)

    def finish(self, number: int, epoch: int) -> None:
        """Send it, or say that there is none."""
        if number not in self.arrived[epoch].anything:
            self._punctuate(number, epoch, 0)
        else:
            words = Words(np.zeros((1, WATCHED.word_form.width), WATCHED.word_form.dtype))
            identity = WATCHED.fingerprint, DEPLOYMENT
            batch = Batch(*identity, bytes(16), enrolment_of(number), epoch, words)
            self.windows[epoch].add(batch)
        self.arrived[epoch].everything.add(number)

    def _punctuate(self, number: int, epoch: int, batches: int) -> None:
        # Of those who have not registered nothing gets here.
        if self.roster.find(enrolment_of(number)) is None or number in self.arrived[epoch].anything:
            return
        numbers = epoch, batches, number + 1, number + 2
        said = Punctuation(
            WATCHED.fingerprint, DEPLOYMENT, enrolment_of(number), *numbers, bytes(8)
        )
        self.windows[epoch].add(said)
        self.timeline.note_punctuation(enrolment_of(number), epoch)
        self.arrived[epoch].anything.add(number)
        self.punctuated[number] = max(epoch, self.punctuated.get(number, 0))

    def decide(self, epoch: int, inside: set[int]) -> None:
        """A manifest of another worker."""
        if epoch in self.decided:
            return
        numbers = [int(producer.name[1:]) for producer in self.roster]
        known = [number for number in numbers if number in inside]
        populations = tuple(10 * epoch + number for number in known)
        manifest = Manifest(
            WATCHED.fingerprint, DEPLOYMENT, epoch, Fate.RELEASED if known else Fate.EMPTY, 0, 1, 1,
            tuple(number in inside for number in numbers), populations, len(known),
            sum(populations), 0,
        )  # fmt: skip
        self.log.apply(LogRecord(epoch, encode_manifest(manifest)))
        self.decided[epoch] = set(known)
        for number, size in zip(known, populations, strict=True):
            self.sizes[number] = max(self.sizes.get(number, (0, 0)), (epoch, size))

    def missed(self, producer: EnrolledProducer, epoch: int) -> bool:
        latest = sorted((each for each in self.decided if each < epoch), reverse=True)[:PATIENCE]
        number = int(producer.name[1:])
        return (
            len(latest) == PATIENCE
            and latest[-1] >= producer.first_epoch
            and not any(number in self.decided[each] for each in latest)
        )

    def check(self, epoch: int) -> None:
        window, arrived = self.windows[epoch], self.arrived[epoch]
        reporting = [producer for producer in self.roster if producer.reports_at(epoch)]
        standing = [each for each in reporting if not self.missed(each, epoch)]
        expected = [
            each for each in reporting if each in standing or int(each.name[1:]) in arrived.anything
        ]
        missing = [each for each in expected if int(each.name[1:]) not in arrived.everything]
        complete = len(self.roster) >= WANTED and bool(expected) and not missing
        assert [*self.decision.missing(window)] == missing
        assert self.decision.complete(window) == complete
        for waited, opened in ((expected, window), (standing, None)):
            reached = [self._reached(int(each.name[1:])) >= epoch for each in waited]
            waiting = reached.count(False) + max(0, WANTED - len(self.roster))
            come = sum(reached) > waiting or not (sum(reached) or waiting)
            assert self.decision.time_has_come(epoch, opened) == come

    def _reached(self, number: int) -> int:
        return max(self.punctuated.get(number, 0), self.sizes.get(number, (0, 0))[0])

    def check_log(self) -> None:
        for producer in self.roster:
            number = int(producer.name[1:])
            then = self.log.last_in(producer.index), self.log.population(producer.index)
            assert then == self.sizes.get(number, (0, 0))
            for epoch in self.windows:
                missed = self.log.missed(producer.index, producer.first_epoch, epoch)
                assert missed == self.missed(producer, epoch)


NUMBERS, IN = st.integers(0, MOST - 1), st.integers(1, WATCHED_EPOCHS)
ACTIONS = st.one_of(
    st.tuples(st.just("register"), NUMBERS, IN),
    st.tuples(st.just("leave"), NUMBERS, IN),
    st.tuples(st.just("begin"), NUMBERS, IN),
    st.tuples(st.just("finish"), NUMBERS, IN),
    st.tuples(st.just("decide"), IN, st.sets(NUMBERS)),
)
SETTLED = st.lists(st.sets(NUMBERS, max_size=2), min_size=PATIENCE, max_size=PATIENCE)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, MOST),
    SETTLED,
    st.lists(ACTIONS, max_size=30),
    st.data(),
)
def test_who_is_counted_as_missing_is_who_a_walk_over_all_would_name(
    registered: int,
    settled: list[set[int]],
    actions: list[tuple[Any, ...]],
    data: st.DataObject,
) -> None:
    plain = Plain()
    for number in range(registered):
        plain.register(number, 1)
    for epoch, inside in enumerate(settled, 1):
        plain.decide(epoch, inside)
    for name, *arguments in actions:
        if name == "finish" and arguments[0] in plain.arrived[arguments[1]].everything:
            continue
        if name == "finish" and plain.roster.find(enrolment_of(arguments[0])) is None:
            continue
        getattr(plain, name)(*arguments)
        # Looked at now and then: what has changed meanwhile must not be forgotten.
        for epoch in data.draw(st.sets(IN, max_size=3)):
            plain.check(epoch)
    for epoch in plain.windows:
        plain.check(epoch)
    plain.check_log()


def test_of_a_window_before_all_registrations_nobody_is_remembered() -> None:
    """Whatever memory held before: bits that were never written say nothing."""
    plain = Plain()
    plain.decide(1, set())
    outcome = plain.log.recent(1)
    assert outcome is not None
    for producers in range(1, 40):
        held = np.full(producers, 255, np.uint8)
        del held
        assert not outcome.inside(producers).view(np.uint8).any()
