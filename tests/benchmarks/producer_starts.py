"""How long a producer takes to start where many epochs of many producers have been decided.

``python -m tests.benchmarks.producer_starts PRODUCERS EPOCHS FOLDER``

On the local broker, with whole manifests, as those of earlier deployments are. Prints `Starts`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.connect import open_producer
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.kafka.cluster import Cluster
from pipeline.operations.deployments import deploy, undeploy
from pipeline.operations.registrations import Registrations
from tests.benchmarks.end_to_end import local_broker
from tests.benchmarks.many_producers import many_job
from tests.benchmarks.measuring import MEGABYTE
from topics.manifests import Fate, Manifest, encode_manifest
from topics.names import Role
from topics.records import Registration


@dataclass(frozen=True, slots=True)
class Starts:
    """Seconds on the clock on the wall, connections included.

    Attributes:
        producers: of the job.
        epochs: decided, in all of which all are.
        megabytes: of their manifests.
        every_manifest: reading all of them, as operators who list producers do.
        first: a start of a producer that has drawn the last epoch, and was never started again.
        later: the start after that.
    """

    producers: int
    epochs: int
    megabytes: float
    every_manifest: float
    first: float
    later: float


def measure(cluster: Cluster, producers: int, epochs: int, folder: Path) -> Starts:
    """Make the logs, and start."""
    job = deploy(cluster, many_job(producers), deployment=bytes(16), now=time.time_ns() // 10**6)
    try:
        with open_producer(cluster, job, folder, name="measured") as producer:
            producer.store.set_fact("closed_epoch", epochs)
        size = _decide(cluster, job, producers, epochs)
        every = _seconds(lambda: Registrations(cluster, job))
        # As if it had run from the first epoch to the last.
        first, later = (_seconds(lambda: _start(cluster, job, folder)) for _ in range(2))
    finally:
        undeploy(cluster, job.name, delete_topics=True)
    return Starts(producers, epochs, round(size / MEGABYTE, 1), every, first, later)


def _decide(cluster: Cluster, job: DeployedJob, producers: int, epochs: int) -> int:
    send, size = cluster.producer.send, 0
    for number in range(1, producers):
        enrolment = number.to_bytes(16, "big")
        registration = Registration(job.deployment, f"{number}", enrolment, 1)
        send(job.topic(Role.PRODUCERS), registration.to_bytes(), partition=0)
    everybody = Manifest(
        job.fingerprint, job.deployment, 1, Fate.RELEASED, 0, 1, 1, (True,) * producers,
        (1_000,) * producers, producers, 1_000 * producers, 0,
    )  # fmt: skip
    for epoch in range(1, epochs + 1):
        record = encode_manifest(replace(everybody, epoch=epoch))
        send(job.topic(Role.MANIFESTS), record, partition=0)
        size += len(record)
    cluster.producer.flush()
    return size


def _start(cluster: Cluster, job: DeployedJob, folder: Path) -> None:
    with Cluster(cluster.connection) as own, open_producer(own, job, folder, name="measured"):
        pass


def _seconds(work: Callable[[], object]) -> float:
    before = time.monotonic()
    work()
    return round(time.monotonic() - before, 2)


def main() -> None:
    """Measure a job of so many producers and epochs."""
    producers, epochs, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    with (
        TemporaryDirectory(dir=folder) as state,
        local_broker(print) as connection,
        Cluster(connection) as cluster,
    ):
        starts = measure(cluster, producers, epochs, Path(state) / "producer")
    print(json.dumps(asdict(starts)))


if __name__ == "__main__":
    main()
