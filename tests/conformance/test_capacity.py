"""Protocols that rely on the shuffler hide the number of messages of a producer.

The number and sizes of a producer's records depend only on presence, epoch and mechanism. Records
have space for all dummies drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.batches import Batch, decode_batch
from dpstream.topics.fixed_sizes import table_cells
from dpstream.topics.frames import RecordType, kind_of
from dpstream.topics.names import Role
from dpstream.topics.shares import MOST_SHARED, table_of
from experiments.protocols.hadamard import Hadamard
from tests.conformance.cases import CASES, Case
from tests.conformance.jobs import LAST_EPOCH, job_of
from tests.support.new_jobs import new_job

SHUFFLED = [case for case in CASES if case.protocol.shuffling is not None]

TABLES = [
    case
    for case in CASES
    if (table_cells(case.protocol.message_format(case.law)) or MOST_SHARED + 1) <= MOST_SHARED
]
"""Cases whose reports can be divided into shares."""

shuffled_cases = pytest.mark.parametrize("case", SHUFFLED, ids=str)


def test_suite_covers_all_protocols_with_a_capacity() -> None:
    assert len({case.protocol.name for case in SHUFFLED}) >= 6


def records_of(job: DeployedJob, values: NDArray[Any], seed: int) -> list[bytes]:
    log = MemoryLog()
    identifiers = seeded_generator(seed)
    with Producer(
        job,
        None,
        name="producer",
        transport=MemoryDriver(log),
        generators=lambda purpose, number: seeded_generator(seed, len(purpose), number),
        identifiers=lambda: identifiers.bytes(16),
    ) as producer:
        producer.enroll([f"user {number}" for number in range(values.shape[1])])
        for epoch, now in enumerate(values, 1):
            producer.report_all(epoch, now)
            producer.close(epoch)
    return [
        value
        for partition in range(job.topics.partitions)
        for value in log.values(Role.REPORTS, partition)
    ]


def streams(case: Case, devices: int) -> Iterator[NDArray[np.integer]]:
    indices = range(len(case.values))
    for first in indices:
        for second in (first, indices[-1 - first]):
            pattern = np.resize([first, second], LAST_EPOCH)
            yield case.array_of(np.repeat(pattern[:, None], devices, axis=1))


@shuffled_cases
@pytest.mark.parametrize("devices", [1, 2, 30])
def test_record_sizes_and_counts_do_not_depend_on_values(case: Case, devices: int) -> None:
    for dummies in {None, "shuffle"} if hasattr(case.parameters, "dummies") else {None}:
        try:
            job = job_of(case, dummies=dummies)
        except ValueError:
            assert dummies == "shuffle"  # Shuffler dummies do not apply to all parameters.
            continue
        shapes = {
            tuple(map(len, records_of(job, values, seed)))
            for seed, values in enumerate(streams(case, devices))
        }
        assert len(shapes) == 1
        (shape,) = shapes
        # Each epoch has one batch and one punctuation, for all values.
        assert len(shape) >= 2 * LAST_EPOCH


@shuffled_cases
def test_messages_fit_the_capacity(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overflows, normally negligible, are given a probability of about 1/2."""
    assert case.protocol.shuffling is not None
    law = case.law
    monkeypatch.setattr("dpstream.randomizers.dummies.REDRAW_PROBABILITY", 0.5)
    for seed, values in enumerate(streams(case, 25)):
        devices = case.protocol.randomizer(law)
        devices.enroll(25, seeded_generator(seed))
        for epoch in range(1, case.last_epoch + 1):
            now, present = values[epoch - 1], np.arange(25) < 25 - seed % 3
            sent = devices.report(epoch, now, present, seeded_generator(seed, epoch))
            most = case.protocol.shuffling.capacity(law, epoch, int(present.sum()))
            assert len(written_out(sent)) <= most


@pytest.mark.parametrize("devices", [1, 25])
@pytest.mark.parametrize("case", TABLES, ids=str)
def test_number_of_equal_messages_stays_within_the_bound_that_shares_require(
    case: Case, devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a single device, a second equal report would exceed the bound."""
    monkeypatch.setattr("dpstream.randomizers.dummies.REDRAW_PROBABILITY", 0.5)
    law, cells = case.law, table_cells(case.protocol.message_format(case.law))
    assert cells is not None
    for seed, values in enumerate(streams(case, devices)):
        population = case.protocol.randomizer(law)
        population.enroll(devices, seeded_generator(seed))
        for epoch in range(1, case.last_epoch + 1):
            sent = population.report(epoch, values[epoch - 1], None, seeded_generator(seed, epoch))
            table = table_of(written_out(sent), None, cells)
            assert table.max() <= case.protocol.most_alike(law, epoch, devices)


def test_bound_on_equal_messages_is_the_device_count_if_devices_reverse_bits() -> None:
    law = {case.protocol.name: case.law for case in SHUFFLED}
    for name in ("fragments", "count_mean_sketch"):
        assert PROTOCOLS[name].most_alike(law[name], 1, 1_000) == 1_000
    assert PROTOCOLS["future_rand"].most_alike(None, 1, 1_000) == 1_000  # type: ignore[arg-type]
    assert PROTOCOLS["count_min"].most_alike(law["count_min"], 1, 1_000) > 1_000


@shuffled_cases
def test_batch_messages_are_in_canonical_order(case: Case) -> None:
    """Real messages do not precede dummies. Rows of several messages are permuted instead."""
    job = job_of(case)
    if job.message_format.width > 1:
        return
    for seed, values in enumerate(streams(case, 30)):
        epochs: dict[int, list[Batch]] = {}
        for record in records_of(job, values, seed):
            if kind_of(record) is RecordType.BATCH:
                batch = decode_batch(record)
                epochs.setdefault(batch.epoch, []).append(batch)
        for batches in epochs.values():
            words = np.concatenate([batch.words.values[:, 0] for batch in batches])
            assert (words[1:] >= words[:-1]).all()


def test_rows_of_several_messages_are_permuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first message, which is a real one, is equally likely at each position."""
    job = deploy_job(
        new_job(
            "tuples",
            "hadamard",
            {"epsilon": 4, "delta": 0.01, "domain": ["a", "b"], "rows": 3},
            count=1,
            minimum=10,
        ),
        deployed_at=0,
    )
    width, messages = job.message_format.width, 6

    def marked(*arguments: object) -> NDArray[np.unsignedinteger]:
        rows = np.arange(messages, dtype=job.message_format.dtype)[:, None]
        return np.repeat(rows, width, axis=1)

    monkeypatch.setattr(Hadamard, "report", marked)
    values = np.zeros((1, 30, job.domain.slots or 1), np.int8)
    places = np.zeros(messages, np.int64)
    for seed in range(600):
        batch = decode_batch(records_of(job, values, seed)[0])
        places[int(np.flatnonzero(batch.words.values[:, 0] == 0)[0])] += 1
    assert stats.chisquare(places).pvalue > 1e-11
    assert places.max() < 300


@shuffled_cases
def test_overflows_are_charged_to_delta(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """With such frequent overflows, calibration fails."""
    parameters = case.parameters
    if getattr(parameters, "dummies", "none") in ("none", "shuffle"):
        return
    if case.protocol.name == "single_message":
        return
    if case.protocol.name == "hadamard" and parameters.dummies == "bernoulli":
        return
    monkeypatch.setattr("dpstream.randomizers.accounting.table_distances.REDRAW_PROBABILITY", 1e-6)
    with pytest.raises(
        ValueError, match=("requires a more precise distribution of dummies than is available")
    ):
        case.protocol.calibrate(parameters, case.last_epoch, case.minimum)
