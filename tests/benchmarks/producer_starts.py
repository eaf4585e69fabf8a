"""How long a producer takes to start where many epochs of many producers have been decided.

``python -m tests.benchmarks.producer_starts [PRODUCERS EPOCHS [whole]]``

On the local broker, with manifests as they are written, or whole ones, as those of earlier
deployments are. Prints `Starts`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.connect import open_producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.operations.deployments import deploy, undeploy
from dpstream.pipeline.operations.registrations import Registrations
from dpstream.pipeline.stages.decision_log import DecisionLog
from dpstream.topics.manifests import SHORT, Fate, Manifest, encode_manifest
from dpstream.topics.names import Role
from dpstream.topics.records import Registration
from tests.benchmarks.end_to_end import local_broker
from tests.benchmarks.many_producers import many_job
from tests.benchmarks.measuring import MEGABYTE


@dataclass(frozen=True, slots=True)
class Starts:
    """Seconds of the processor, connections included, and of the clock on the wall.

    Attributes:
        producers: of the job.
        epochs: decided, in all of which all are.
        megabytes: of their manifests.
        every_manifest: reading all of them, as operators who list producers do.
        new: the start of a producer that registers now.
        long_after: of one that has drawn all epochs since it was started.
        later: the start after that.
    """

    producers: int
    epochs: int
    megabytes: float
    every_manifest: Seconds
    new: Seconds
    long_after: Seconds
    later: Seconds


Seconds = tuple[float, float]
"""Of the processor, and on the wall."""


def measure(cluster: Cluster, producers: int, epochs: int, folder: Path, whole: bool) -> Starts:
    """Make the logs, and start."""
    job = deploy(cluster, many_job(producers), deployment=bytes(16), now=time.time_ns() // 10**6)
    try:
        old, fresh = folder / "old", folder / "new"
        with open_producer(cluster, job, old, name="measured") as producer:
            producer.store.set_fact("closed_epoch", epochs)
        size = _decide(cluster, job, producers, epochs, whole)
        every = _seconds(lambda: Registrations(cluster, job))
        new = _seconds(lambda: _start(cluster, job, fresh, "new"))
        # As if it had run from the first epoch to the last.
        long_after, later = (
            _seconds(lambda: _start(cluster, job, old, "measured")) for _ in range(2)
        )
    finally:
        undeploy(cluster, job.name, delete_topics=True)
    megabytes = round(size / MEGABYTE, 1)
    return Starts(producers, epochs, megabytes, every, new, long_after, later)


def _decide(cluster: Cluster, job: DeployedJob, producers: int, epochs: int, whole: bool) -> int:
    send, size = cluster.producer.send, 0
    for number in range(1, producers):
        enrolment = number.to_bytes(16, "big")
        registration = Registration(job.deployment, f"{number}", enrolment, 1)
        send(job.topic(Role.PRODUCERS), registration.to_bytes(), partition=0)
    everybody = Manifest(
        job.fingerprint, job.deployment, 1, Fate.RELEASED, 0, 1, 1, (True,) * producers,
        (1_000,) * producers, producers, 1_000 * producers, 0,
    )  # fmt: skip
    first = encode_manifest(everybody)
    record, decisions = first, DecisionLog(job)
    decisions.apply(LogRecord(job.start_offset(Role.MANIFESTS), first))
    fields = SHORT.open(decisions.encode(replace(everybody, epoch=2)))
    payload = decisions.encode(replace(everybody, epoch=2))[SHORT.size :]
    for epoch in range(1, epochs + 1):
        if whole:
            record = encode_manifest(replace(everybody, epoch=epoch))
        elif epoch > 1:
            record = SHORT.seal(*fields[:2], epoch, *fields[3:], payload=payload)
        send(job.topic(Role.MANIFESTS), record, partition=0)
        size += len(record)
    cluster.producer.flush()
    return size


def _start(cluster: Cluster, job: DeployedJob, folder: Path, name: str) -> None:
    with Cluster(cluster.connection) as own, open_producer(own, job, folder, name=name):
        pass


def _seconds(work: Callable[[], object]) -> Seconds:
    before, spent = time.monotonic(), time.process_time()
    work()
    return round(time.process_time() - spent, 2), round(time.monotonic() - before, 2)


def main() -> None:
    """Measure a job of so many producers and epochs."""
    producers, epochs = (*map(int, sys.argv[1:3]),) or (1_000, 10_000)
    with (
        TemporaryDirectory() as state,
        local_broker(lambda line: print(line, file=sys.stderr)) as connection,
        Cluster(connection) as cluster,
    ):
        starts = measure(cluster, producers, epochs, Path(state), sys.argv[3:] == ["whole"])
    print(json.dumps(asdict(starts)))


if __name__ == "__main__":
    main()
