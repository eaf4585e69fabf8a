"""Decisions that are read together are remembered as those that are read one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.actions import Append, LogRecord
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.jobs.job_range import EPOCHS_AHEAD
from dpstream.pipeline.simulation.memory import MemoryLog, MemoryWorker
from dpstream.pipeline.stages import decision_log
from dpstream.pipeline.stages.decision_log import Decision, DecisionLog, Decisions
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.frames import CodecError
from dpstream.topics.manifests import Fate, Manifest, decode_manifest, encode_manifest
from dpstream.topics.names import Role
from tests.benchmarks.one_core import shuffle_stage

EPOCHS = 20_000
PRODUCERS = 5


def job_of(partitions: int = 4, minimum: int = 1) -> DeployedJob:
    job = make_job(
        {
            "name": "rows",
            "protocol": "future_rand",
            "parameters": {"epsilon": 4, "changes": 4},
            "epochs": {"count": EPOCHS},
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
                values.append(manifest(rng, EPOCHS + 1))
            case 6:
                drawings = (bytes(8),) * PRODUCERS
                every = {"producers": (True,) * PRODUCERS, "populations": (50,) * PRODUCERS}
                values.append(manifest(rng, epoch, instance=2, drawings=drawings, **every))
    return [LogRecord(offset, value) for offset, value in enumerate(values)]


def epoch_of(record: bytes) -> int | None:
    try:
        manifest = decode_manifest(record)
    except CodecError:
        return None
    own = (manifest.deployment, manifest.instance) == (JOB.deployment, 1)
    return manifest.epoch if own else None


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


def test_what_was_read_before_reading_failed_is_known() -> None:
    rng = np.random.default_rng(1)
    records = [LogRecord(epoch, manifest(rng, epoch)) for epoch in range(3, 300)]

    def failing() -> Iterator[LogRecord]:
        yield from records[:200]
        raise ConnectionError

    log = DecisionLog(JOB)
    with pytest.raises(ConnectionError):
        log.apply_all(failing())
    assert log.decided.highest == 202
    log.apply_all(records[199:])
    assert log.decided.highest == 299


def test_who_is_shown_one_by_one_is_so_however_many_are_read() -> None:
    shown: list[int] = []
    log = DecisionLog(JOB, lambda decision: shown.append(decision.manifest.epoch))
    rng = np.random.default_rng(1)
    log.apply_all(LogRecord(epoch, manifest(rng, epoch)) for epoch in range(3, 200))
    assert shown == [*range(3, 200)]


@pytest.mark.parametrize("seed", range(2))
def test_a_worker_that_starts_owes_the_same_and_tells_the_same(seed: int) -> None:
    records = history(seed, 700)
    rng = np.random.default_rng(seed)
    for owns in (JOB.partitions, 1):
        floors = {each: 10 * int(rng.integers(500, 700)) for each in range(owns)}
        (proposed,) = (each.value for each in records if epoch_of(each.value) == 300)
        found = []
        for together in (False, True):
            stage = shuffle_stage(JOB)
            # As of a worker that was paused before it read on: one of these is its own.
            stage._proposed = decode_manifest(proposed)
            for partition, floor in floors.items():
                stage._partitions[partition] = stage._own(partition, floor)
            if together:
                stage._read_manifests(records)
            else:
                for record in records:
                    stage._read_manifest(record)
            owed = {each: state.owed for each, state in stage._partitions.items()}
            assert sum(map(len, owed.values())) > 0
            decided = stage.heartbeat()["decided"]
            found.append((owed, decided, dict(stage._furthest), stage._accepted))
            assert stage._accepted is not None
        assert found[0] == found[1]


def test_who_takes_another_partition_over_writes_what_was_decided_of_it_long_before() -> None:
    """Though all of it lies below what the worker had left to do when it read of it."""
    log, known, behind = MemoryLog(), Known(), 6_500
    for record in history(1, 700):
        log.append(Append(Role.MANIFESTS, 0, record.value))
        known.log.apply(record)
    owed = [
        epoch
        for epoch in range(1, 700)
        if JOB.partition_of(epoch) == 1
        and (outcome := known.log.recent(epoch)) is not None
        and outcome.fate is Fate.RELEASED
        and outcome.first_offset >= behind
    ]
    assert len(owed) > 5
    log.committed.update({(Role.REPORTS, 0): 10 * EPOCHS, (Role.REPORTS, 1): behind})
    worker = MemoryWorker(shuffle_stage(JOB), log)
    for partition in (0, 1):
        worker.run(worker.assign(partition))
    assert [decode_chunk(value).epoch for value in log.values(Role.SHUFFLED, 1)] == owed
