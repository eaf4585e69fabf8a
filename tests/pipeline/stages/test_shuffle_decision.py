"""Test when a window is decided, and its manifest, without a stage."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.producer_registry import ProducerRegistry
from dpstream.pipeline.stages.decision_log import DecisionLog
from dpstream.pipeline.stages.multisets import MessageMultiset
from dpstream.pipeline.stages.shuffle_decision import ShuffleDecision
from dpstream.pipeline.stages.timeline import Timeline
from dpstream.pipeline.stages.window_states import Event
from dpstream.pipeline.stages.windows import Window
from dpstream.topics.batches import Punctuation
from dpstream.topics.manifests import Manifest, WindowStatus, encode_manifest
from dpstream.topics.records import Deregistration, Drain, Registration
from tests.support.new_jobs import new_job

DEPLOYMENT = bytes(range(16))
NORTH, SOUTH = bytes([1] * 16), bytes([2] * 16)
MINIMUM = 10
GRACE = 60.0
PARTITIONS = 2
PARTITION = 1
"""Partition of epochs 1 and 3."""


CHANGES: Mapping[str, float] = {"epsilon": 1, "max_changes": 1}


def deployed(
    protocol: str = "future_rand", parameters: Mapping[str, float] = CHANGES
) -> DeployedJob:
    job = new_job(
        "decided",
        protocol,
        dict(parameters),
        epochs={"count": 8},
        shuffle={"minimum": MINIMUM, "grace": "60 s", "producers": 2},
        topics={"partitions": PARTITIONS},
    )
    return deploy_job(job, deployment=DEPLOYMENT, deployed_at=0)


class Worker:
    def __init__(self, *producers: tuple[str, bytes], job: DeployedJob | None = None) -> None:
        self.job = job or deployed()
        self.registry = ProducerRegistry(self.job)
        self.log = DecisionLog(self.job)
        timeline = Timeline(self.job, lambda: None)
        self.decision = ShuffleDecision(self.job, self.registry, self.log, timeline)
        for name, enrollment in producers or (("north", NORTH), ("south", SOUTH)):
            self.read(Registration(DEPLOYMENT, name, enrollment, 1))

    def read(self, record: Registration | Deregistration | Drain) -> None:
        self.registry.apply(LogRecord(0, record.to_bytes()))

    def append(self, manifest: Manifest) -> None:
        self.log.apply(LogRecord(0, encode_manifest(manifest)))

    def window(self, epoch: int = 1, *, offset: int | None = 3) -> Window:
        window = Window(epoch, 0.0, lambda: MessageMultiset(self.job.message_format))
        if offset is not None:
            window.note_record(offset, 0.0)
        return window

    def close(
        self, window: Window, enrollment: bytes, contributors: int = 6, population: int = 9
    ) -> None:
        fingerprint, epoch = self.job.fingerprint, window.epoch
        window.add(
            Punctuation(
                fingerprint, DEPLOYMENT, enrollment, epoch, 0, contributors, population, bytes(8)
            )
        )


def test_window_is_complete_when_every_producer_is_included() -> None:
    worker = Worker()
    window = worker.window()
    worker.close(window, NORTH)
    assert worker.decision.event(window, 4, 0.0) is None
    assert [producer.name for producer in worker.decision.missing(window)] == ["south"]
    worker.close(window, SOUTH)
    assert worker.decision.event(window, 5, 0.0) is Event.COMPLETE
    assert not [*worker.decision.missing(window)]


def test_window_closes_after_its_grace_period() -> None:
    worker = Worker()
    window = worker.window()
    worker.close(window, NORTH)
    assert worker.decision.event(window, 4, 10 * GRACE) is None
    window.happens(Event.TIME_HAS_COME)
    window.due_at = 5.0
    assert worker.decision.event(window, 4, 4.9 + GRACE) is None
    assert worker.decision.event(window, 4, 5.0 + GRACE) is Event.GRACE_OVER
    window.happens(Event.GRACE_OVER)
    assert worker.decision.event(window, 4, 5.0 + GRACE) is None


def test_grace_period_restarts_when_a_window_that_is_closing_gets_its_first_record() -> None:
    worker = Worker()
    window = worker.window(offset=None)
    window.happens(Event.TIME_HAS_COME)
    window.due_at = 0.0
    assert worker.decision.event(window, 4, GRACE) is Event.GRACE_OVER
    window.happens(Event.GRACE_OVER)
    window.closing_end = 9
    window.note_record(4, 100.0)
    worker.close(window, NORTH)
    assert vars(window)["closing_end"] is None
    assert worker.decision.event(window, 5, 99.9 + GRACE) is None
    assert worker.decision.event(window, 5, 100.0 + GRACE) is Event.GRACE_OVER


def test_window_is_abandoned_when_all_its_producers_retire() -> None:
    worker = Worker()
    window = worker.window(3)
    worker.close(window, NORTH)
    worker.read(Deregistration(DEPLOYMENT, SOUTH, 1))
    assert worker.decision.event(window, 4, 0.0) is Event.COMPLETE
    worker.read(Deregistration(DEPLOYMENT, NORTH, 2))
    assert worker.decision.event(window, 4, 0.0) is Event.ABANDONED


@pytest.mark.parametrize(
    ("job", "populations"),
    [(deployed(), [20, 20, 20]), (deployed("sampled_response", {"epsilon": 1}), [20, 20, 9])],
    ids=["builds on earlier epochs", "sampled"],
)
def test_users_of_a_retired_producer_leave_at_once_in_jobs_that_sample_users(
    job: DeployedJob, populations: list[int]
) -> None:
    worker, found = Worker(job=job), []
    worker.read(Deregistration(DEPLOYMENT, SOUTH, 2))
    for epoch in (1, 2, 3):
        window = worker.window(epoch)
        worker.close(window, NORTH)
        if epoch == 1:
            worker.close(window, SOUTH, population=11)
        manifest = worker.decision.manifest(window, 5, 0)
        worker.append(manifest)
        found.append(manifest.population)
    assert found == populations


def test_decision_already_in_the_log_takes_precedence() -> None:
    worker = Worker()
    window = worker.window()
    for enrollment in (NORTH, SOUTH):
        worker.close(window, enrollment)
    worker.append(worker.decision.manifest(window, 5, 0))
    assert worker.decision.event(window, 5, 0.0) is Event.SETTLED


@pytest.mark.parametrize(
    ("contributors", "window_status"),
    [
        (0, WindowStatus.EMPTY),
        (MINIMUM - 1, WindowStatus.SUPPRESSED),
        (MINIMUM, WindowStatus.RELEASED),
    ],
)
def test_minimum_number_of_contributors_determines_the_window_status(
    contributors: int, window_status: WindowStatus
) -> None:
    worker = Worker()
    window = worker.window()
    worker.close(window, SOUTH, contributors, population=12)
    manifest = worker.decision.manifest(window, 7, 1234)
    assert manifest.window_status is window_status
    assert (manifest.producers, manifest.populations) == ((False, True), (12,))
    assert (manifest.contributors, manifest.population) == (contributors, 12)
    assert (manifest.first_offset, manifest.cut_offset, manifest.timestamp) == (3, 7, 1234)


def test_population_includes_the_latest_population_of_missing_producers() -> None:
    worker = Worker()
    first, later = worker.window(1), worker.window(3, offset=8)
    worker.close(first, NORTH, population=20)
    worker.append(worker.decision.manifest(first, 7, 0))
    worker.close(later, SOUTH, population=8)
    manifest = worker.decision.manifest(later, 9, 0)
    assert (manifest.producers, manifest.population) == ((False, True), 28)
    assert manifest.contributors == 6, "missing devices do not count"


def test_latest_population_of_a_producer_is_known_for_any_order_of_records() -> None:
    worker = Worker()
    earlier, last, open_one = worker.window(1), worker.window(2, offset=5), worker.window(3)
    for window, population in ((last, 25), (earlier, 20)):
        worker.close(window, NORTH, population=population)
        worker.append(worker.decision.manifest(window, 7, 0))
    worker.close(open_one, SOUTH, population=8)
    assert worker.decision.manifest(open_one, 9, 0).population == 33


def test_epochs_without_records_become_due_when_a_drain_follows_them() -> None:
    worker = Worker()
    window = worker.window(3)
    worker.close(window, NORTH)
    worker.append(worker.decision.manifest(window, 5, 0))
    assert [*worker.decision.due_epochs_without_records(PARTITION, 5, ())] == []
    worker.read(Drain(DEPLOYMENT, PARTITION, 5))
    assert [*worker.decision.due_epochs_without_records(PARTITION, 5, ())] == [1]
    assert [*worker.decision.due_epochs_without_records(PARTITION, 5, (1,))] == []
    assert [*worker.decision.due_epochs_without_records(0, 5, ())] == []
