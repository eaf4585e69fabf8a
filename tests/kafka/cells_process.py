"""A worker or a producer of the cells protocol, as a process of its own that can be killed.

Arguments: what ("shuffle", "aggregate", "publish" or "producer"), job, name, servers, folder; for a
producer also the first of its cells, and how many it has.
"""

from __future__ import annotations

import secrets
import sys
import time
from pathlib import Path

import numpy as np

from pipeline.aggregate_stage import AggregateStage
from pipeline.cluster import Cluster, KafkaTransport
from pipeline.connection import Connection
from pipeline.deployed_job import DeployedJob
from pipeline.deployments import find_deployed
from pipeline.follow import EstimateReader
from pipeline.producer import Producer
from pipeline.publish_stage import PublishStage
from pipeline.shuffle_stage import ShuffleStage
from pipeline.stage import Stage
from pipeline.workers.timings import Timings
from pipeline.workers.worker import run_worker
from randomizers.randomness import cryptographic_generator
from tests.support import cells

TIMINGS = Timings(session=3.0, heartbeat=0.5, rebalance=10.0, request=10.0, probe=1.0)
# A producer closes epochs no further ahead of the last published one than this.
EPOCHS_AHEAD = 12


def stage_of(what: str, job: DeployedJob) -> Stage:
    """A new stage."""
    if what == "shuffle":
        return ShuffleStage(
            job,
            identifiers=lambda: secrets.token_bytes(16),
            wall_clock=lambda: time.time_ns() // 1_000_000,
            generator=cryptographic_generator(),
        )
    return AggregateStage(job) if what == "aggregate" else PublishStage(job)


def produce(
    job: DeployedJob, cluster: Cluster, name: str, folder: Path, first: int, count: int
) -> int:
    """Report every epoch, in step with what is published."""
    estimates = EstimateReader(cluster, job)
    published = 0
    with Producer(
        job, folder, name=name, transport=KafkaTransport(cluster, job.name, notify=print)
    ) as producer:
        producer.enrol([f"{name}{cell}" for cell in range(count)])
        values = np.arange(first, first + count)
        followed = estimates.follow()
        while producer.closed_epoch < job.epochs.count:
            while producer.closed_epoch >= published + EPOCHS_AHEAD:
                published = max(published, next(followed).epoch)
            epoch = producer.closed_epoch + 1
            producer.report_all(epoch, values)
            producer.close(epoch)
    return 0


def main() -> int:
    """Run until killed, or for a producer until the last epoch is closed."""
    what, name_of_job, name, servers, folder, *numbers = sys.argv[1:]
    cells.register()
    connection = Connection((servers,))
    with Cluster(connection) as cluster:
        job = find_deployed(cluster, name_of_job)
        if what == "producer":
            first, count = map(int, numbers)
            return produce(job, cluster, name, Path(folder), first, count)
    return run_worker(
        stage_of(what, job),
        job,
        connection,
        stage_name=what,
        worker=name,
        directory=Path(folder),
        timings=TIMINGS,
    )


if __name__ == "__main__":
    sys.exit(main())
