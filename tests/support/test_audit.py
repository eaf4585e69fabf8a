"""The audit detects a single lost, repeated or altered report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.key_files import NoiseKey
from dpstream.pipeline.kafka.memory import MemoryDriver, SimulatedCluster
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role
from dpstream.topics.partials import decode_partial, encode_partial
from tests.support import cells
from tests.support.audit import Account, AuditError, Drawn, Logs, audit
from tests.support.new_jobs import new_job
from tests.support.seeded_devices import SeededDevices

EPOCHS = 8
SEED = 7
KEY = NoiseKey(bytes(range(32)))
PARAMETERS: dict[str, dict[str, object]] = {
    cells.NAME: {"cells": 500},
    "future_rand": {"epsilon": 2, "max_changes": 2},
    "shuffled_counts": {"epsilon": 20, "delta": 1e-3, "dummies": "shuffle"},
}


@dataclass(frozen=True)
class Run:
    job: DeployedJob
    logs: Logs
    drawn: tuple[Drawn, ...]

    def audit(self, logs: Logs | None = None, drawn: Sequence[Drawn] | None = None) -> Account:
        return audit(self.job, logs or self.logs, drawn or self.drawn, EPOCHS, KEY)

    def changed(
        self, role: Role, change: Callable[[list[LogRecord]], Sequence[LogRecord]]
    ) -> Account:
        """Audit the run with one topic changed."""
        return self.audit({**self.logs, role: tuple(change(list(self.logs[role])))})


def run_job(protocol: str, count: int = EPOCHS) -> Run:
    job = deploy_job(
        new_job(
            "audited",
            protocol,
            PARAMETERS[protocol],
            epochs={"count": count, "renew": count < EPOCHS},
            shuffle={"minimum": 50, "producers": 2},
            topics={"partitions": 2},
        ),
        deployed_at=0,
        deployment=bytes(16),
    )
    cluster = SimulatedCluster(job, lambda purpose, number: seeded_generator(number), KEY)
    job = cluster.job
    devices = [SeededDevices(SEED, "north", 300), SeededDevices(SEED, "south", 200, 300)]
    producers = [
        Producer(
            job,
            None,
            name=each.name,
            transport=MemoryDriver(cluster.log),
            generators=each.generators,
        )
        for each in devices
    ]
    for each, producer in zip(devices, producers, strict=True):
        producer.enroll(each.users)
    for epoch in range(1, EPOCHS + 1):
        for each, producer in zip(devices, producers, strict=True):
            present = each.present(job, epoch)
            values = zip(each.users, each.values(job, epoch).tolist(), present, strict=True)
            producer.report(epoch, {user: value for user, value, here in values if here})
            producer.close(epoch)
        cluster.settle()
    drawn = tuple(
        Drawn(each, producer.enrollment, tuple(range(1, EPOCHS + 1)))
        for each, producer in zip(devices, producers, strict=True)
    )
    for producer in producers:
        producer.shut()
    logs = {
        role: tuple(LogRecord(at, value) for at, value in enumerate(cluster.log.values(role)))
        for role in Role
    }
    return Run(job, logs, drawn)


@pytest.fixture(scope="module")
def registered() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PROTOCOLS, cells.NAME, cells.CELLS)
        yield


@pytest.fixture(scope="module")
def runs(registered: None) -> dict[str, Run]:
    return {protocol: run_job(protocol) for protocol in PARAMETERS}


@pytest.fixture(params=list(PARAMETERS))
def run(request: pytest.FixtureRequest, runs: dict[str, Run]) -> Run:
    return runs[request.param]


def test_audit_passes_an_undisturbed_run(run: Run) -> None:
    account = run.audit()
    assert (account.epochs, account.late, account.rejected) == (EPOCHS, 0, 0)
    assert account.windows_by_status == {WindowStatus.RELEASED: EPOCHS}
    assert account.counted > 0


def recounted(run: Run, epoch: int, words: np.ndarray, counts: np.ndarray) -> Account:
    """Audit the run with these messages added to the partial of an epoch."""

    def change(records: list[LogRecord]) -> list[LogRecord]:
        at, part = next(
            (at, part)
            for at, part in enumerate(decode_partial(record.value) for record in records)
            if part.epoch == epoch
        )
        aggregator = run.job.aggregator_from_bytes(part.payload)
        aggregator.add(epoch, words, counts)
        records[at] = LogRecord(at, encode_partial(replace(part, payload=aggregator.to_bytes())))
        return records

    return run.changed(Role.PARTIALS, change)


def first_word(run: Run, epoch: int) -> np.ndarray:
    made = next(iter(run.drawn[1].devices.reports(run.job, range(1, epoch + 1))))
    return made.values[:1]


def test_audit_detects_a_report_that_is_counted_twice(run: Run) -> None:
    with pytest.raises(AuditError, match="epoch 1: the partial is wrong"):
        recounted(run, 1, first_word(run, 1), np.ones(1, np.uint32))


@pytest.mark.parametrize("run", [cells.NAME], indirect=True)
def test_audit_detects_one_lost_or_replaced_report(run: Run) -> None:
    def change(records: list[LogRecord], move: bool) -> list[LogRecord]:
        part = decode_partial(records[2].value)
        aggregator = cells.CellsAggregator.from_bytes(run.job.law, part.payload)  # type: ignore[arg-type]
        aggregator.counts[part.epoch, 17] -= 1
        aggregator.counts[part.epoch, 18] += move
        records[2] = LogRecord(2, encode_partial(replace(part, payload=aggregator.to_bytes())))
        return records

    for move in (False, True):
        with pytest.raises(AuditError, match="epoch 3: the partial is wrong: it differs"):
            run.changed(Role.PARTIALS, partial(change, move=move))


@pytest.mark.parametrize(("times", "words"), [(0, "lost"), (2, "counted twice")])
def test_audit_names_a_lost_or_duplicated_producer(run: Run, times: int, words: str) -> None:
    def change(records: list[LogRecord]) -> list[LogRecord]:
        part = decode_partial(records[0].value)
        aggregator = run.job.aggregator()
        north, south = (next(iter(d.devices.reports(run.job, [1]))) for d in run.drawn)
        for made in (north, *[south] * times):
            aggregator.add(1, made.values, made.counts)
        noise = run.job.stage_dummies
        if noise is not None:
            dummies = noise(1, KEY.generator(run.job.deployment, 1))
            aggregator.add(1, dummies.values, dummies.counts)
        records[0] = LogRecord(0, encode_partial(replace(part, payload=aggregator.to_bytes())))
        return records

    with pytest.raises(AuditError, match=f"epoch 1: .* all reports of south are {words}"):
        run.changed(Role.PARTIALS, change)


def test_audit_detects_an_estimate_with_a_wrong_last_bit(run: Run) -> None:
    def change(records: list[LogRecord]) -> list[LogRecord]:
        body = json.loads(records[4].value)
        body["estimate"]["value"] = float(np.nextafter(body["estimate"]["value"], np.inf))
        records[4] = LogRecord(4, json.dumps(body).encode())
        return records

    with pytest.raises(AuditError, match="epoch 5: published"):
        run.changed(Role.ESTIMATES, change)
