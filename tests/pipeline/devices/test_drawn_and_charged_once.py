"""Test that a value_stream device draws its randomness once and spends its budget once per epoch.

This holds across crashes and disk failures. Choosing again which devices are input-independent
would reveal them; a second report of an epoch would spend the budget twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.pipeline.actions import Append, Flush, Result, Steps
from dpstream.pipeline.devices.producer import Producer, ProducerError, ProducerTransport
from dpstream.pipeline.devices.producer_store import ProducerStore
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.kafka.memory import MemoryLog
from dpstream.randomizers.value_stream import ValueStream, ValueStreamLaw
from dpstream.topics.batches import decode_batch
from dpstream.topics.frames import RecordType, kind_of
from dpstream.topics.names import Role
from tests.support.gateway import open_producer, seeded

HORIZON, DEVICES = 8, 400
USERS = [f"user {number}" for number in range(DEVICES)]
VALUES = np.random.default_rng(3).integers(0, 2, (2 * HORIZON, DEVICES))

State = Mapping[str, NDArray[Any]]


def deployed(**more: object) -> DeployedJob:
    job = {
        "name": "clocks",
        "protocol": "value_stream",
        "parameters": {"epsilon": 2.0, "max_changes": 2},
        "epochs": {"count": HORIZON, "renew": True},
        "topics": {"partitions": 1},
        **more,
    }
    return deploy_job(make_job(job), deployed_at=0, deployment=bytes(16))


def law_of(job: DeployedJob) -> ValueStreamLaw:
    law = job.law
    assert isinstance(law, ValueStreamLaw)
    return law


def close(producer: Producer, epoch: int, values: NDArray[np.int64] | None = None) -> None:
    producer.report_all(epoch, VALUES[epoch - 1] if values is None else values)
    producer.close(epoch)


def on_disk(folder: Path) -> State:
    store = ProducerStore(folder / "producer.sqlite3")
    try:
        return store.arrays()
    finally:
        store.close()


def assert_same(one: State, other: State) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


def sent(log: MemoryLog) -> list[bytes]:
    batches = [
        decode_batch(value)
        for value in log.values(Role.REPORTS)
        if kind_of(value) is RecordType.BATCH
    ]
    return list({batch.batch: batch.words.values.tobytes() for batch in batches}.values())


class KilledAfter:
    """Simulate Kafka storing some records without acknowledging them to the producer."""

    def __init__(self, log: MemoryLog, records: int) -> None:
        self._log, self._records = log, records

    def run(self, steps: Steps[Result], /) -> Result:
        for action in steps:
            if self._records == 0:
                raise ConnectionError
            if isinstance(action, Append):
                self._log.append(action)
                self._records -= 1
            else:
                assert isinstance(action, Flush)
                raise ConnectionError
        raise AssertionError


def test_restart_keeps_the_stored_randomness(tmp_path: Path) -> None:
    """Restarts use another generator, as with system randomness."""
    job, log = deployed(), MemoryLog()
    with open_producer(job, tmp_path, log) as producer:
        producer.enroll(USERS)
    enrolled = on_disk(tmp_path)
    law = law_of(job)
    share = law.probability_of_noise
    deviation = math.sqrt(share * (1 - share) / DEVICES)
    assert abs(enrolled["noise"].mean() - share) < 7 * deviation
    for epoch in range(1, HORIZON + 1):
        with open_producer(job, tmp_path, log, seed=10 + epoch) as producer:
            close(producer, epoch)
        kept = on_disk(tmp_path)
        np.testing.assert_array_equal(kept["noise"], enrolled["noise"])
        # Input-independent devices spend no budget.
        assert ((kept["left"] == law.squared_norm_budget) == (kept["noise"] == 1)).all()


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_crash_between_draw_and_send_charges_the_epoch_once(tmp_path: Path, taken: int) -> None:
    """Messages drawn before the crash are sent, and the device state is as without a crash."""
    job, law = deployed(), law_of(deployed())
    logs = {name: MemoryLog() for name in ("undisturbed", "killed")}
    for name, log in logs.items():
        folder = tmp_path / name
        with open_producer(job, folder, log) as producer:
            producer.enroll(USERS)
            close(producer, 1)
            producer.report_all(2, VALUES[1])
            if name == "undisturbed":
                producer.close(2)
            else:
                transport: ProducerTransport = KilledAfter(log, taken)
                producer._transport = transport
                with pytest.raises(ConnectionError):
                    producer.close(2)
    expected = on_disk(tmp_path / "undisturbed")
    assert_same(on_disk(tmp_path / "killed"), expected)
    # What devices report at the second epoch, computed only from values.
    first, second = VALUES[0], VALUES[1]
    followed = law.boost * first * law.decay + law.boost * (second - first)
    spent = np.square(first - 0.5 + law.boost * first) + np.square(second - 0.5 + followed)
    tilted = expected["noise"] == 0
    assert expected["left"][tilted] == pytest.approx((law.squared_norm_budget - spent)[tilted])
    # The next run has other randomness and other values, and would draw differently.
    with open_producer(job, tmp_path / "killed", logs["killed"], seed=2) as producer:
        assert sent(logs["killed"]) == sent(logs["undisturbed"])
        with pytest.raises(ProducerError, match="epoch 2 is closed"):
            close(producer, 2, 1 - VALUES[1])
    assert_same(on_disk(tmp_path / "killed"), expected)
    for name, log in logs.items():
        with open_producer(job, tmp_path / name, log) as producer:
            close(producer, 3)
    assert_same(on_disk(tmp_path / "killed"), on_disk(tmp_path / "undisturbed"))
    assert sent(logs["killed"]) == sent(logs["undisturbed"])


def test_recurring_device_gets_new_randomness_in_each_horizon() -> None:
    """Devices get new randomness and a new budget; an unchanged value of 1 counts as a change.

    After the first epoch, the state is that of devices enrolled for the new horizon.
    """
    job, log = deployed(), MemoryLog()
    law, values = law_of(job), VALUES[HORIZON]
    with open_producer(job, None, log) as producer:
        producer.enroll(USERS)
        before = producer._randomizer.state_arrays()["noise"].copy()
        for epoch in range(1, HORIZON + 1):
            # Values that use up all changes, and finally equal `values`.
            close(producer, epoch, values if (HORIZON - epoch) % 2 == 0 else 1 - values)
        assert producer.exhausted > 0
        close(producer, HORIZON + 1, values)
        state = {name: array.copy() for name, array in producer._randomizer.state_arrays().items()}
    newcomers, drawn = ValueStream(law), seeded(1)
    newcomers.enroll(DEVICES, drawn("horizon", 1))
    newcomers.report(1, values, None, drawn("report", HORIZON + 1))
    assert_same(state, newcomers.state_arrays())
    assert not np.array_equal(state["noise"], before)
    np.testing.assert_array_equal(state["changes"], values)
    np.testing.assert_array_equal(state["followed"], law.boost * values)
    tilted = state["noise"] == 0
    pulls = values - 0.5 + law.boost * values
    assert state["left"][tilted] == pytest.approx((law.squared_norm_budget - pulls**2)[tilted])
