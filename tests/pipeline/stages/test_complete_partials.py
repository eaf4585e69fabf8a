"""Test that a starting aggregator reads the latest partials, and older ones if necessary."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from dpstream.pipeline import actions
from dpstream.pipeline.actions import Append
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.memory import MemoryLog, MemoryWorker
from dpstream.pipeline.stages.attempts import chunks_of_attempt
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.ordered_chunks import Chunks
from dpstream.pipeline.stages.partial_log import PartialLog
from dpstream.pipeline.stages.stage_builder import build_stage
from dpstream.topics.messages import Messages
from dpstream.topics.names import Role
from dpstream.topics.partials import encode_partial, split_partial
from tests.pipeline.stages.test_restarts import ReadingDriver
from tests.support.histories import history_job

EPOCHS = 600


@pytest.fixture(autouse=True)
def small_first_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "_READ_FIRST", 4)


def chunks(job: DeployedJob, epoch: int, attempt: int = 1, total: int = 2) -> list[Append]:
    words = [Messages(np.full((5, 1), index % 2, np.uint8), None) for index in range(total)]
    return list(
        chunks_of_attempt(
            job, Role.SHUFFLED, epoch, epoch - 1, attempt.to_bytes(16, "big"), Chunks.of(words)
        )
    )


class Aggregator:
    def __init__(self, complete: Iterable[int]) -> None:
        self.job = history_job(EPOCHS, EPOCHS)
        self.log = MemoryLog()
        for epoch in complete:
            for part in split_partial(
                fingerprint=self.job.fingerprint,
                deployment=self.job.deployment,
                epoch=epoch,
                manifest_offset=epoch - 1,
                attempt=bytes(16),
                payload=self.job.aggregator().to_bytes(),
            ):
                self.log.append(Append(Role.PARTIALS, 0, encode_partial(part)))
        self.known = self.log.end(Role.PARTIALS, 0)
        self.start()

    def start(self) -> None:
        self.stage = build_stage(self.job, "aggregate", Environment())
        self.worker = MemoryWorker(self.stage, self.log)
        self.worker.driver = self.driver = ReadingDriver(self.log)
        for partition in range(self.job.topics.partitions):
            self.worker.run(self.worker.assign(partition))

    def append_and_drain(self, records: Iterable[Append]) -> None:
        for record in records:
            self.log.append(record)
        self.worker.run(self.worker.drain())

    def tick(self, now: float) -> None:
        self.worker.run(self.stage.tick(now))

    def written(self) -> list[int]:
        epochs: list[int] = []
        log = PartialLog(self.job, lambda epoch, payload: epochs.append(epoch))
        for record in self.log.read(
            Role.PARTIALS, 0, self.known, self.log.end(Role.PARTIALS, 0)
        ).records:
            log.apply(record)
        return epochs

    def floors(self) -> list[tuple[int, int]]:
        return [
            (self.log.committed.get((Role.SHUFFLED, each), 0), self.log.end(Role.SHUFFLED, each))
            for each in range(self.job.topics.partitions)
        ]


def test_aggregator_reads_only_the_latest_partials() -> None:
    aggregator = Aggregator(range(1, 501))
    read = aggregator.driver.records[Role.PARTIALS]
    assert read < 40
    aggregator.append_and_drain(chunks(aggregator.job, 501))
    assert aggregator.written() == [501]
    # The aggregator also reads its own write.
    assert aggregator.driver.records[Role.PARTIALS] == read + 1
    assert all(floor == end for floor, end in aggregator.floors())


@pytest.mark.parametrize("epoch", [1, 17, 300, 499])
@pytest.mark.parametrize("total", [1, 2])
def test_aggregator_drops_leftover_chunks_of_a_complete_window(epoch: int, total: int) -> None:
    aggregator = Aggregator(range(1, 501))
    before = aggregator.driver.records[Role.PARTIALS]
    # Half a window, or all of it.
    aggregator.append_and_drain(chunks(aggregator.job, epoch, attempt=7)[:total])
    assert aggregator.written() == []
    assert all(floor == end for floor, end in aggregator.floors())
    again = aggregator.driver.records[Role.PARTIALS]
    assert (again > before) == (epoch < 490), "read only as far back as needed"
    assert epoch == 1 or again < 10 * (501 - epoch)
    aggregator.append_and_drain(chunks(aggregator.job, 501))
    assert aggregator.written() == [501]


def test_aggregator_searches_for_a_partial_written_out_of_order() -> None:
    order = [each for each in range(1, 501) if each != 498]
    aggregator = Aggregator([*order[:100], 498, *order[100:]])
    left, *_ = chunks(aggregator.job, 498, attempt=7)
    aggregator.append_and_drain([left])
    (floor,) = [each for each in aggregator.floors() if each[0] < each[1]]
    assert aggregator.stage.idle_seconds() is None
    for now in (1.0, 29.0):
        aggregator.tick(now)
        assert floor in aggregator.floors()
    for now in (31.0, 32.0, 33.0, 34.0):
        aggregator.tick(now)
    assert all(floor == end for floor, end in aggregator.floors())
    assert aggregator.written() == []
    assert aggregator.stage.idle_seconds() is not None
    read = aggregator.driver.records[Role.PARTIALS]
    # The whole topic has been read.
    aggregator.append_and_drain(chunks(aggregator.job, 501)[:1])
    for now in (70.0, 71.0):
        aggregator.tick(now)
    assert aggregator.driver.records[Role.PARTIALS] == read


def test_rewritten_window_counts_once() -> None:
    order = [each for each in range(1, 501) if each != 498]
    aggregator = Aggregator([*order[:100], 498, *order[100:]])
    aggregator.append_and_drain(chunks(aggregator.job, 498, attempt=7))
    assert aggregator.written() == [498]
    payloads: list[bytes] = []
    log = PartialLog(aggregator.job, lambda epoch, payload: payloads.append(payload))
    for record in aggregator.log.read(
        Role.PARTIALS, 0, 0, aggregator.log.end(Role.PARTIALS, 0)
    ).records:
        log.apply(record)
    assert len(payloads) == 500
    assert set(payloads) == {aggregator.job.aggregator().to_bytes()}, "the first counts"
