"""Test that a publisher resumed from a checkpoint publishes the same as without one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline import actions
from dpstream.pipeline.actions import Append, LogRecord, Steps, scan
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.kafka import memory
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.pipeline.stages import checkpoints
from dpstream.pipeline.stages.checkpoints import KEY, Checkpoint
from dpstream.pipeline.stages.decision_log import DecisionLog
from dpstream.pipeline.stages.epoch_log import EpochLog, EpochPosition
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.frames import CodecError
from dpstream.topics.manifests import Manifest, WindowStatus
from dpstream.topics.names import Role
from dpstream.topics.partials import encode_partial, split_partial
from tests.pipeline.stages.test_restarts import ReadingDriver, publish
from tests.support.histories import NOW, fill, history_job, history_values

EPOCHS, HORIZON, INTERVAL, WRITTEN = 120, 256, 8, 100
"""Numbers of epochs; the first `WRITTEN` are published, with checkpoints, before a restart."""


_PUBLISHED: dict[int, tuple[list[LogRecord], list[LogRecord]]] = {}


def published(job: DeployedJob, written: list[Append]) -> tuple[list[LogRecord], list[LogRecord]]:
    """Return the estimates (with checkpoints) and documents that a publisher writes.

    Cached by horizon length.
    """
    horizon = job.epochs.count
    if horizon not in _PUBLISHED:
        log = written_up_to(written, MemoryLog(lambda: NOW), WRITTEN)
        publish(job, log)
        _PUBLISHED[horizon] = records_of(log), records_of(log, Role.RESULTS)
    return _PUBLISHED[horizon]


@pytest.fixture(scope="module")
def history() -> tuple[DeployedJob, list[Append]]:
    job, written = history_job(EPOCHS, HORIZON), list[Append]()
    fill(job, EPOCHS, written.append)
    return job, written


@pytest.fixture(autouse=True)
def frequent_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "INTERVAL", INTERVAL)
    monkeypatch.setattr(checkpoints, "NEAR", 2 * INTERVAL)
    monkeypatch.setattr(actions, "_READ_FIRST", 4)
    # In operation, few epochs are read together, too.
    monkeypatch.setattr(memory, "SLICE_BYTES", 1_000)


def records_of(log: MemoryLog, role: Role = Role.ESTIMATES) -> list[LogRecord]:
    found: list[LogRecord] = []
    MemoryDriver(log).run(scan(role, 0, 0, log.end(role, 0), found.append))
    return found


def estimates(log: MemoryLog) -> list[bytes]:
    return [record.value for record in records_of(log) if record.key != KEY]


def written_up_to(written: list[Append], log: MemoryLog, last: int) -> MemoryLog:
    seen: Counter[Role] = Counter()
    for each in written:
        seen[each.role] += 1
        kept = each.role not in (Role.ESTIMATES, Role.RESULTS)
        if kept and seen[each.role] <= last:
            log.append(each)
    return log


def interrupted(
    written: list[Append],
    job: DeployedJob,
    change: Callable[[list[LogRecord]], list[tuple[bytes, bytes | None]]],
) -> tuple[MemoryLog, ReadingDriver]:
    before, documents = published(job, written)
    log = written_up_to(written, MemoryLog(lambda: NOW), EPOCHS)
    for value, key in change(before):
        log.append(Append(Role.ESTIMATES, 0, value, key))
    for document in documents:
        log.append(Append(Role.RESULTS, 0, document.value, document.key))
    return log, publish(job, log)


def unchanged(records: list[LogRecord]) -> list[tuple[bytes, bytes | None]]:
    return [(record.value, record.key) for record in records]


def test_publisher_resumes_from_a_checkpoint(
    history: tuple[DeployedJob, list[Append]],
) -> None:
    job, written = history
    log, driver = interrupted(written, job, unchanged)
    expected = [each.value for each in written if each.role is Role.ESTIMATES]
    assert estimates(log) == expected
    left = EPOCHS - WRITTEN + 2 * INTERVAL
    assert driver.records[Role.PARTIALS] < left
    assert driver.records[Role.MANIFESTS] < left
    assert driver.records[Role.ESTIMATES] < 3 * left
    keys = [record.key for record in records_of(log)]
    assert EPOCHS // INTERVAL - 2 <= keys.count(KEY) <= EPOCHS // INTERVAL + 1


def changed(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda body: {**body, **fields}


def in_state(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], Any]:
    def change_it(body: dict[str, Any]) -> dict[str, Any]:
        copy: dict[str, Any] = json.loads(json.dumps(body))
        change(copy["state"])
        return copy

    return change_it


def _longest(state: dict[str, Any]) -> dict[str, Any]:
    interval: dict[str, Any] = state["counts"]["pieces"][-1][1]
    return interval


WRONG: dict[str, Callable[[dict[str, Any]], Any]] = {
    "wrong value": in_state(
        lambda state: _longest(state).update(value=[_longest(state)["value"][0] + 1])
    ),
    "wrong variance": in_state(lambda state: _longest(state).update(variance=1.0)),
    "wrong population": in_state(lambda state: state["participation"][-1].__setitem__(2, 7)),
    "missing interval": in_state(lambda state: state["counts"]["pieces"].pop()),
    "future epoch": in_state(lambda state: state["participation"].append([200, 1, 1])),
    "empty state": changed(state={}),
    "counts are a list": in_state(lambda state: state.update(counts=[])),
    "wrong digest": changed(manifest_digest="00" * 32),
    "later manifest": lambda body: {**body, "manifest_offset": body["manifest_offset"] + 1},
    "wrong earlier manifests": changed(whole_manifests=[10**9]),
    "negative offset": changed(partials_offset=-1),
    "unpublished epoch": changed(epoch=WRITTEN + 5),
    "epoch outside the job": changed(epoch=10**6),
    "another deployment": changed(deployment="ab" * 16),
    "another fingerprint": changed(fingerprint="ab" * 16),
    "not an object": lambda body: [body],
}


@pytest.mark.parametrize("kind", WRONG)
def test_publisher_ignores_invalid_checkpoints(
    history: tuple[DeployedJob, list[Append]], kind: str
) -> None:
    """The logs stay authoritative: they are read from the start of the horizon."""
    job, written = history

    def corrupt(records: list[LogRecord]) -> list[tuple[bytes, bytes | None]]:
        return [
            (
                json.dumps(WRONG[kind](json.loads(record.value))).encode()
                if record.key == KEY
                else record.value,
                record.key,
            )
            for record in records
        ]

    log, driver = interrupted(written, job, corrupt)
    assert estimates(log) == [each.value for each in written if each.role is Role.ESTIMATES]
    assert driver.records[Role.PARTIALS] >= EPOCHS, "the invalid checkpoint was used"


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 100_000])
def test_checkpoint_rejects_invalid_json(
    history: tuple[DeployedJob, list[Append]], text: bytes
) -> None:
    with pytest.raises(CodecError, match="not a checkpoint"):
        Checkpoint.from_bytes(text)
    assert checkpoints.own_checkpoint(history[0], KEY, text) is None


@pytest.mark.parametrize("corrupted", [2, 8])
def test_publisher_resumes_from_the_latest_valid_checkpoint(
    history: tuple[DeployedJob, list[Append]], corrupted: int
) -> None:
    job, written = history

    def corrupt(records: list[LogRecord]) -> list[tuple[bytes, bytes | None]]:
        last = [record.offset for record in records if record.key == KEY][-corrupted:]
        return [
            (b'{"checkpoint":1}' if record.offset in last else record.value, record.key)
            for record in records
        ]

    log, driver = interrupted(written, job, corrupt)
    assert estimates(log) == [each.value for each in written if each.role is Role.ESTIMATES]
    assert (driver.records[Role.PARTIALS] < EPOCHS - WRITTEN + 3 * INTERVAL) is (corrupted < 8)


def test_checkpoint_is_ignored_if_its_estimates_differ(
    history: tuple[DeployedJob, list[Append]],
) -> None:
    job, written = history

    def corrupt(records: list[LogRecord]) -> list[tuple[bytes, bytes | None]]:
        found = []
        for record in records:
            value = record.value
            if record.key != KEY:
                body = json.loads(value)
                body["estimate"]["value"] += 1.0
                value = EstimateRecord.from_bytes(json.dumps(body).encode()).to_bytes()
            found.append((value, record.key))
        return found

    log, driver = interrupted(written, job, corrupt)
    later = [each.value for each in written if each.role is Role.ESTIMATES][WRITTEN:]
    assert estimates(log)[WRITTEN:] == later
    assert driver.records[Role.PARTIALS] >= EPOCHS


def _many(job: DeployedJob, rng: np.random.Generator) -> list[Append]:
    order = np.argsort(np.arange(EPOCHS) + rng.uniform(0, 3, EPOCHS) * (rng.random(EPOCHS) < 0.3))
    populations = np.full(200, 500)
    decisions, written = DecisionLog(job), list[Append]()
    for offset, epoch in enumerate((1 + order).tolist()):
        if rng.random() < 0.1:
            populations = rng.integers(1, 900, 200)
        populations[rng.integers(200)] += 1
        total = int(populations.sum())
        manifest = Manifest(
            job.fingerprint, job.deployment, epoch, WindowStatus.RELEASED, 0, 1, 1, (True,) * 200,
            tuple(populations.tolist()), total, total, NOW,
        )  # fmt: skip
        record = decisions.encode(manifest)
        decisions.apply(LogRecord(offset, record))
        written.append(Append(Role.MANIFESTS, 0, record))
    for epoch in (1 + order[np.argsort(np.arange(EPOCHS) + rng.uniform(0, 4, EPOCHS))]).tolist():
        window = job.aggregator()
        words = rng.integers(0, 2, (10, 1), np.uint8)
        window.add(job.epochs.local(epoch), words, None)
        for part in split_partial(
            fingerprint=job.fingerprint, deployment=job.deployment, epoch=epoch,
            manifest_offset=0, attempt=rng.bytes(16), payload=window.to_bytes(),
        ):  # fmt: skip
            written.append(Append(Role.PARTIALS, 0, encode_partial(part)))
    return written


def test_epoch_log_that_resumes_at_any_position_reads_the_same_epochs() -> None:
    values = history_values(HORIZON, renew=False)
    values["shuffle"]["producers"] = 200
    job = deploy_job(make_job(values), deployed_at=NOW, deployment=bytes(range(16)))
    assert job.short_manifests
    log = MemoryLog(lambda: NOW)
    for each in _many(job, np.random.default_rng(0)):
        log.append(each)
    driver = MemoryDriver(log)
    epochs, places = EpochLog(job), list[tuple[int, EpochPosition]]()
    driver.run(epochs.find_end())
    found = []
    while (epoch := driver.run(epochs.next())) is not None:
        found.append(epoch)
        if (place := epochs.place()) is not None:
            places.append((len(found), place))
    assert [each.epoch for each in found] == list(range(1, EPOCHS + 1))
    assert 10 < len(places) < EPOCHS
    assert any(place.whole_manifests for _, place in places)
    for read, place in places[::3]:
        reading = ReadingDriver(log)
        assert reading.run(_remaining(job, place)) == found[read:]
    assert reading.records[Role.PARTIALS] < EPOCHS / 2, "reading started too far back"


def _remaining(job: DeployedJob, place: EpochPosition) -> Steps[list[object]]:
    log = yield from EpochLog.resume_at(job, place, place.epoch + 1)
    assert log is not None
    found: list[object] = []
    while (epoch := (yield from log.next())) is not None:
        found.append(epoch)
    return found
