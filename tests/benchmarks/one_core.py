"""Measure stages one at a time, in memory and on one core."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.projective_geometry import ProjectiveGeometryAggregator
from dpstream.aggregators.row_estimates import RowEstimates
from dpstream.pipeline.actions import Append
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.pipeline.stages.environment import Environment, OpenSpillFile, temporary_file
from dpstream.pipeline.stages.stage import Stage
from dpstream.pipeline.stages.stage_builder import build_stage
from dpstream.randomizers.cell_codes.hashed_rows import HashedRows
from dpstream.randomizers.counted_messages import CountedMessages, written_out
from dpstream.randomizers.dyadic import orders_due
from dpstream.randomizers.item_domains import Bits
from dpstream.randomizers.projective_geometry import (
    ProjectiveGeometry,
    ProjectiveGeometryLaw,
    ProjectiveGeometryParameters,
)
from dpstream.randomizers.projective_geometry.calibration import calibrate
from dpstream.randomizers.randomness import cryptographic_generator
from dpstream.topics.batches import (
    DRAWING_BYTES,
    Batch,
    Punctuation,
    batch_id,
    decode_batch,
    encode_batch,
    encode_punctuation,
)
from dpstream.topics.messages import Messages, split_messages
from dpstream.topics.names import Role
from dpstream.topics.records import Registration
from tests.benchmarks.measuring import Rate, rate

DEVICES = 1_000_000
WINDOW_REPORTS = 10_000_000


ITEMS = 10_000
SCANNED = 1_000_000
ROWS, BUCKETS = 64, 65_536
DIFFERENT = ROWS * BUCKETS
"""Job keys for four-byte messages, which have too many values for a table."""


def job_values(name: str, epochs: int, **shuffle: Any) -> dict[str, Any]:
    """Return a job over values 0 and 1 whose windows close only when complete."""
    return {
        "name": name,
        "protocol": "future_rand",
        "parameters": {"epsilon": 4, "max_changes": 4},
        "epochs": {"count": epochs},
        "shuffle": {"grace": "1h", **shuffle},
    }


def letters_job_values(name: str, epochs: int, **shuffle: Any) -> dict[str, Any]:
    """Return such a job in which every device reports a symbol at every epoch."""
    return {**job_values(name, epochs, **shuffle), "protocol": "value_stream"}


def items_job_values(name: str, epochs: int, **shuffle: Any) -> dict[str, Any]:
    """Return such a job over `ITEMS` items, each of which adds to five of 40,960 cells."""
    parameters = {
        "epsilon": 1,
        "delta": 1e-6,
        "domain": [f"item {number}" for number in range(ITEMS)],
        "rows": 5,
        "buckets": 8192,
    }
    return {
        **job_values(name, epochs, **shuffle),
        "protocol": "count_min",
        "parameters": parameters,
    }


class DrawnReports:
    """Registered producer whose reports are random messages, to measure later stages."""

    def __init__(self, job: DeployedJob) -> None:
        self._job = job
        self._enrollment = secrets.token_bytes(16)
        self._name = f"drawn {self._enrollment.hex()}"
        self._rng = np.random.default_rng()

    def registration(self) -> bytes:
        return Registration(self._job.deployment, self._name, self._enrollment, 1).to_bytes()

    def epoch(self, epoch: int, reports: int) -> list[bytes]:
        form = self._job.message_format
        different = 2 * orders_due(epoch) if form.report_bytes == 1 else form.distinct or DIFFERENT
        words = self._rng.integers(0, different, (reports, 1)).astype(form.dtype)
        chunks = split_messages(Messages(words))
        identity = (self._job.fingerprint, self._job.deployment)
        drawing = secrets.token_bytes(DRAWING_BYTES)
        records = [
            encode_batch(Batch(*identity, batch_id(drawing, index), self._enrollment, epoch, chunk))
            for index, chunk in enumerate(chunks)
        ]
        punctuation = Punctuation(
            *identity, self._enrollment, epoch, len(chunks), reports, reports, drawing
        )
        return [*records, encode_punctuation(punctuation)]


def measure(runs: int) -> Iterator[Rate]:
    yield _randomize(runs)
    yield from _cells(runs)
    yield from _projective(runs)
    yield from _codec(runs)
    for order in ("sorted", "random"):
        yield from _stages(order, runs)


def _randomize(runs: int) -> Rate:
    """Measure all epochs of a million devices, of which 2 % change per epoch."""
    job = deploy_job(make_job(job_values("randomize", 64)), deployed_at=0)
    generator = cryptographic_generator()
    enrolled = job.randomizer()
    enrolled.enroll(DEVICES, generator)
    arrays = enrolled.state_arrays()
    values = changing_values(DEVICES, job.epochs.count)

    def work() -> int:
        devices = job.protocol_entry.randomizer(job.law).restored(arrays, 0)
        epochs = enumerate(values, 1)
        return sum(
            len(written_out(devices.report(epoch, now, None, generator))) for epoch, now in epochs
        )

    reports = work()
    return rate("randomize", reports, reports, work, runs)


def _cells(runs: int) -> Iterator[Rate]:
    """Measure drawing cells and dummies for many devices, and estimating a million items."""
    users = 100_000
    job = deploy_job(make_job(items_job_values("cells", 1, minimum=users)), deployed_at=0)
    generator = cryptographic_generator()
    items = generator.integers(1, ITEMS + 1, (users, 1))

    def randomize() -> int:
        devices = job.randomizer()
        devices.enroll(users, generator)
        reports = devices.report(1, items, None, generator)
        return reports.messages if isinstance(reports, CountedMessages) else len(reports)

    messages = randomize()
    yield rate("randomize cells", messages, 4 * messages, randomize, runs)

    code = HashedRows(SCANNED, 5, 8192, "scan")
    cells = np.asarray(generator.poisson(200, code.cells) - 180.0, np.float64)
    estimates = RowEstimates.from_cells(code, cells, 180.0, users, "median")
    scanned = np.arange(1, SCANNED + 1)
    yield rate("scan items", SCANNED, 8 * SCANNED, lambda: estimates.values(scanned), runs)


def _projective(runs: int) -> Iterator[Rate]:
    """Measure few and very many items: draws of messages, counts, and estimates of all items."""
    generator = cryptographic_generator()
    for bits in (10, 20):
        law = calibrate(ProjectiveGeometryParameters(1.0, Bits(bits)), 1, DEVICES)
        aggregator = ProjectiveGeometryAggregator(law)
        items, size = (
            generator.integers(1, law.items + 1, (DEVICES, 1)),
            law.message_format.report_bytes,
        )

        def randomize(
            law: ProjectiveGeometryLaw = law, items: NDArray[np.int64] = items
        ) -> NDArray[np.unsignedinteger]:
            devices = ProjectiveGeometry(law)
            devices.enroll(DEVICES, generator)
            return devices.report(1, items, None, generator)

        name = f"projective, {law.items:,} items"
        yield rate(f"{name}: randomize", DEVICES, size * DEVICES, randomize, runs)
        words = generator.choice(randomize(), 10 * DEVICES)
        yield rate(
            f"{name}: count",
            len(words),
            size * len(words),
            partial(aggregator.add, 1, words, None),
            runs,
        )
        participation = Participation.constant(1, DEVICES)
        estimate = partial(aggregator.estimate, 1, participation)
        yield rate(f"{name}: estimate", law.items, 8 * law.items, estimate, runs)


def changing_values(devices: int, epochs: int) -> NDArray[np.int8]:
    """Return values 0 and 1 of shape (epochs, devices)."""
    rng = np.random.default_rng()
    values = np.empty((epochs, devices), np.int8)
    now = (rng.random(devices) < 0.3).astype(np.int8)
    for row in values:
        now[rng.integers(0, devices, devices // 50)] ^= 1
        row[:] = now
    return values


def _codec(runs: int) -> Iterator[Rate]:
    job = deploy_job(make_job(job_values("codec", 64)), deployed_at=0)
    source = DrawnReports(job)
    records = source.epoch(64, WINDOW_REPORTS)[:-1]
    batches = [decode_batch(record) for record in records]
    size = sum(map(len, records))

    def encode() -> None:
        for batch in batches:
            encode_batch(batch)

    def decode() -> None:
        for record in records:
            decode_batch(record)

    yield rate("encode", WINDOW_REPORTS, size, encode, runs)
    yield rate("decode", WINDOW_REPORTS, size, decode, runs)


def _stages(order: str, runs: int) -> Iterator[Rate]:
    job = deploy_job(make_job(job_values(order, 64, order=order)), deployed_at=0)
    source = DrawnReports(job)
    records = source.epoch(64, WINDOW_REPORTS)
    registration = source.registration()
    log = MemoryLog()

    def shuffle() -> None:
        nonlocal log
        log = MemoryLog()
        log.append(Append(Role.PRODUCERS, 0, registration))
        _show(shuffle_stage(job), job, log, job.topics.partition_of(64), records)

    yield rate(f"shuffle, {order}", WINDOW_REPORTS, sum(map(len, records)), shuffle, runs)
    chunks = log.values(Role.SHUFFLED, job.topics.partition_of(64))
    # A sorted window of one-byte messages is a record of a few hundred bytes; 1,000 are measured.
    windows = 1 if order == "random" else 1000
    size = sum(map(len, chunks))

    def aggregate() -> None:
        for _ in range(windows):
            _show(
                build_stage(job, "aggregate", Environment()),
                job,
                MemoryLog(),
                job.topics.partition_of(64),
                chunks,
            )

    yield rate(
        f"aggregate, {'chunks of messages' if order == 'random' else 'counted pairs'}",
        windows * WINDOW_REPORTS,
        windows * size,
        aggregate,
        runs,
    )


def shuffle_stage(job: DeployedJob, open_spill_file: OpenSpillFile = temporary_file) -> Stage:
    return build_stage(
        job,
        "shuffle",
        Environment(
            identifiers=lambda: secrets.token_bytes(16),
            wall_clock=lambda: 0,
            broker_time=lambda: 0,
            generator=cryptographic_generator(),
            open_spill_file=open_spill_file,
        ),
    )


def _show(
    stage: Stage, job: DeployedJob, log: MemoryLog, partition: int, values: Sequence[bytes]
) -> None:
    driver = MemoryDriver(log)
    driver.run(stage.assign(partition, None, 0.0))
    for offset, value in enumerate(values):
        driver.run(stage.record(partition, offset, value, 0.0))
