"""Whom a window waits for: what is counted as they come in is what a walk over all would find."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.jobs.roster import EnrolledProducer, Roster
from dpstream.pipeline.stages.decision_log import PATIENCE, DecisionLog
from dpstream.pipeline.stages.multisets import WordMultiset
from dpstream.pipeline.stages.shuffle_decision import ShuffleDecision
from dpstream.pipeline.stages.timeline import Timeline
from dpstream.pipeline.stages.windows import Window
from dpstream.topics.batches import Batch, Punctuation
from dpstream.topics.manifests import Fate, Manifest, encode_manifest
from dpstream.topics.records import Farewell, Registration
from dpstream.topics.words import Words

DEPLOYMENT = bytes(range(16))
EPOCHS, MOST, WANTED = 8, 6, 2


def _job() -> DeployedJob:
    values = {
        "name": "awaited",
        "protocol": "future_rand",
        "parameters": {"epsilon": 1, "changes": 1},
        "epochs": {"count": EPOCHS},
        "shuffle": {"minimum": 1, "producers": WANTED},
    }
    return deploy_job(make_job(values), deployment=DEPLOYMENT, deployed_at=0)


JOB = _job()


def enrolment(number: int) -> bytes:
    return bytes([number + 1]) * 16


@dataclass
class Arrived:
    """What a plain reader notes of an epoch: who has sent anything, and who everything."""

    anything: set[int] = field(default_factory=set)
    everything: set[int] = field(default_factory=set)


class Plain:
    """The stage's own objects, and beside them sets that say the same."""

    def __init__(self) -> None:
        self.roster, self.log = Roster(JOB), DecisionLog(JOB)
        self.timeline = Timeline(JOB, lambda: None)
        self.decision = ShuffleDecision(JOB, self.roster, self.log, self.timeline)
        self.windows = {epoch: self._window(epoch) for epoch in range(1, EPOCHS + 1)}
        self.arrived = {epoch: Arrived() for epoch in self.windows}
        self.decided: dict[int, set[int]] = {}
        self.punctuated: dict[int, int] = {}
        self.sizes: dict[int, tuple[int, int]] = {}

    def _window(self, epoch: int) -> Window:
        return Window(epoch, 0.0, lambda: WordMultiset(JOB.word_form))

    def register(self, number: int, epoch: int) -> None:
        record = Registration(DEPLOYMENT, f"p{number}", enrolment(number), epoch)
        self.roster.apply(LogRecord(0, record.to_bytes()))

    def leave(self, number: int, epoch: int) -> None:
        record = Farewell(DEPLOYMENT, enrolment(number), epoch)
        self.roster.apply(LogRecord(0, record.to_bytes()))

    def begin(self, number: int, epoch: int) -> None:
        """Say that one batch is to come."""
        self._punctuate(number, epoch, 1)

    def finish(self, number: int, epoch: int) -> None:
        """Send it, or say that there is none."""
        if number not in self.arrived[epoch].anything:
            self._punctuate(number, epoch, 0)
        else:
            words = Words(np.zeros((1, JOB.word_form.width), JOB.word_form.dtype))
            identity = JOB.fingerprint, DEPLOYMENT
            batch = Batch(*identity, bytes(16), enrolment(number), epoch, words)
            self.windows[epoch].add(batch)
        self.arrived[epoch].everything.add(number)

    def _punctuate(self, number: int, epoch: int, batches: int) -> None:
        # Of those who have not registered nothing gets here.
        if self.roster.find(enrolment(number)) is None or number in self.arrived[epoch].anything:
            return
        numbers = epoch, batches, number + 1, number + 2
        said = Punctuation(JOB.fingerprint, DEPLOYMENT, enrolment(number), *numbers, bytes(8))
        self.windows[epoch].add(said)
        self.timeline.note_punctuation(enrolment(number), epoch)
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
            JOB.fingerprint, DEPLOYMENT, epoch, Fate.RELEASED if known else Fate.EMPTY, 0, 1, 1,
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


NUMBERS, IN = st.integers(0, MOST - 1), st.integers(1, EPOCHS)
ACTIONS = st.one_of(
    st.tuples(st.just("register"), NUMBERS, IN),
    st.tuples(st.just("leave"), NUMBERS, IN),
    st.tuples(st.just("begin"), NUMBERS, IN),
    st.tuples(st.just("finish"), NUMBERS, IN),
    st.tuples(st.just("decide"), IN, st.sets(NUMBERS)),
)
SETTLED = st.lists(st.sets(NUMBERS, max_size=2), min_size=PATIENCE, max_size=PATIENCE)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, MOST), SETTLED, st.lists(ACTIONS, max_size=30), st.data())
def test_who_is_counted_as_missing_is_who_a_walk_over_all_would_name(
    registered: int, settled: list[set[int]], actions: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    plain = Plain()
    for number in range(registered):
        plain.register(number, 1)
    for epoch, inside in enumerate(settled, 1):
        plain.decide(epoch, inside)
    for name, *arguments in actions:
        if name == "finish" and arguments[0] in plain.arrived[arguments[1]].everything:
            continue
        if name == "finish" and plain.roster.find(enrolment(arguments[0])) is None:
            continue
        getattr(plain, name)(*arguments)
        # Looked at now and then: what has changed meanwhile must not be forgotten.
        for epoch in data.draw(st.sets(IN, max_size=3)):
            plain.check(epoch)
    for epoch in plain.windows:
        plain.check(epoch)
    plain.check_log()


def test_what_is_remembered_of_a_decision_is_a_bit_for_each_producer() -> None:
    plain = Plain()
    for number in range(3):
        plain.register(number, 1)
    plain.decide(1, {0, 2})
    plain.decide(2, {0, 2})
    first, second = plain.log.recent(1), plain.log.recent(2)
    assert first is not None
    assert second is not None
    assert first.bits == b"\x05"
    assert first.bits is second.bits, "equal ones are one object"
    assert [first.has(index) for index in range(9)] == [True, False, True, *[False] * 6]
    assert first.inside(9).tolist() == [first.has(index) for index in range(9)]


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
