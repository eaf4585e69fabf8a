"""A permanent backstop in jobs: its keys outlive a producer, and end with their horizon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.devices.producer_store import ProducerStore
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.names import Role

USERS = [f"user {number}" for number in range(40)]


def values(count: int = 2, **parameters: Any) -> dict[str, Any]:
    return {
        "name": "fruit",
        "protocol": "fragments",
        "parameters": {"epsilon": 1.0, "delta": 0.001, "domain": ["a", "b", "c"], **parameters},
        "epochs": {"count": count, "renew": True},
        "topics": {"partitions": 1},
        "shuffle": {"minimum": 20},
    }


def deployed(**parameters: Any) -> DeployedJob:
    return deploy_job(make_job(values(**parameters)), deployed_at=0, deployment=bytes(16))


def producer(job: DeployedJob, folder: Path, log: MemoryLog) -> Producer:
    """One whose reports are drawn from the epoch alone, and whose keys are not."""
    return Producer(
        job,
        folder,
        name="gateway",
        transport=MemoryDriver(log),
        generators=lambda purpose, number: seeded_generator(len(purpose), number),
        identifiers=lambda: bytes(range(16)),
    )


def stored_keys(folder: Path) -> NDArray[Any]:
    store = ProducerStore(folder / "producer.sqlite3")
    keys = store.arrays()["key"]
    store.close()
    return keys


def close(producer: Producer, epoch: int) -> None:
    producer.report_all(epoch, np.resize([1, 2, 3, 0], len(USERS))[:, None])
    producer.close(epoch)


def test_keys_are_kept_over_a_restart_and_drawn_anew_in_each_horizon(tmp_path: Path) -> None:
    job, log, undisturbed = deployed(permanent=True), MemoryLog(), MemoryLog()
    with producer(job, tmp_path / "one", undisturbed) as without_restart:
        without_restart.enrol(USERS)
        for epoch in (1, 2, 3):
            close(without_restart, epoch)
    keys = []
    for epoch in (1, 2, 3):
        with producer(job, tmp_path / "two", log) as restarted:
            restarted.enrol(USERS)
            close(restarted, epoch)
        keys.append(stored_keys(tmp_path / "two"))
    assert keys[0].shape == (len(USERS), 32)
    assert np.array_equal(keys[0], keys[1])
    assert not (keys[1] == keys[2]).all(axis=1).any()
    # Reports after a restart are those of the same bits.
    assert list(log.values(Role.REPORTS, 0)) == list(undisturbed.values(Role.REPORTS, 0))
    assert (tmp_path / "two" / "producer.sqlite3").stat().st_mode & 0o777 == 0o600


def test_a_horizon_of_one_epoch_is_refused_where_the_job_is_deployed() -> None:
    with pytest.raises(JobError, match=r"permanent: true .* has only 1: give epochs\.count"):
        deploy_job(make_job(values(count=1, permanent=True)), deployed_at=0)
    with pytest.raises(JobError, match=r"parameters.*with permanent: true take calibration: exact"):
        make_job(values(permanent=True, calibration="published", neighbours="removal"))
