"""Small in-memory job: topic contents and ground truth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.devices.change_log import load_change_log
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.memory import MemoryDriver, SimulatedCluster
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.names import Role

EPOCHS = 12
USERS = 200
FUTURE_RAND = "protocol: future_rand\nparameters: {epsilon: 2, max_changes: 2}"


def job_text(
    name: str = "small", *, epochs: int = EPOCHS, more: str = "", requested: str = FUTURE_RAND
) -> str:
    return (
        f"name: {name}\n{requested}\nepochs: {{count: {epochs}{more}}}\ntopics: {{partitions: 2}}\n"
    )


def write_changes(path: Path, *, epochs: int = EPOCHS, users: int = USERS) -> Path:
    """Write a change log in which user u has value 1 from epoch u mod `epochs` + 1 on."""
    rows = (f"user{user},{user % epochs + 1},1\n" for user in range(users))
    path.write_text("user,epoch,value\n" + "".join(rows))
    return path


def generators(purpose: str, number: int) -> np.random.Generator:
    return seeded_generator(len(purpose), number)


@dataclass(frozen=True, slots=True, eq=False)
class SmallRun:
    """Completed job; `records` are in a possible order of consumption."""

    job: DeployedJob
    records: tuple[tuple[Role, bytes], ...]
    ground_truth: NDArray[np.int64]


def run_small_job(
    folder: Path,
    *,
    more: str = "",
    absent: frozenset[int] = frozenset(),
    requested: str = FUTURE_RAND,
) -> SmallRun:
    """Run the job; no device is present in `absent` epochs, which all producers close."""
    job = deploy_job(
        parse_job(job_text(more=more, requested=requested)), deployed_at=1_000, deployment=bytes(16)
    )
    change_log = load_change_log(write_changes(folder / "changes.csv"), last_epoch=EPOCHS)
    cluster = SimulatedCluster(job, generators)
    producer = Producer(
        job, None, name="p", transport=MemoryDriver(cluster.log), generators=generators
    )
    producer.enroll(change_log.users)
    for epoch, values in enumerate(change_log.values_by_epoch(), 1):
        if epoch not in absent:
            producer.report_all(epoch, values)
        producer.close(epoch)
        cluster.settle()
    producer.shut()
    records = []
    for role in (Role.ESTIMATES, Role.SHUFFLED):
        for partition in range(len(job.start_offsets[role])):
            found = cluster.log.read(role, partition, 0, cluster.log.end(role, partition))
            records += [(role, record.value) for record in found.records]
    return SmallRun(job, tuple(records), change_log.ground_truth())
