"""Run a worker or producer of the protocol `tests.support.cells` as a killable process.

Arguments: component ("shuffle", "instance-2", "aggregate", "publish" or "producer"), job, name,
servers, folder; for a producer also its first cell and the number of cells. Options come first.
With ``--steady SECONDS --until FILE``, a producer closes epochs at this interval, whatever is
published, until the file exists. With ``--production``, workers have production timeouts.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.broker_clock import own_milliseconds
from dpstream.pipeline.kafka.cluster import Cluster, KafkaTransport
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.kafka.workers.timings import Timings
from dpstream.pipeline.kafka.workers.worker import run_worker
from dpstream.pipeline.results.follow import EstimateReader
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.stage import Stage
from dpstream.pipeline.stages.stage_builder import build_stage
from tests.support import cells

TIMINGS = Timings(session=3.0, heartbeat=0.5, rebalance=10.0, request=10.0, probe=1.0)
# Maximum number of epochs by which a producer is ahead of the last published epoch.
EPOCHS_AHEAD = 12


def stage_of(what: str, job: DeployedJob) -> Stage:
    return build_stage(job, what, Environment(wall_clock=own_milliseconds))


def produce(
    job: DeployedJob, cluster: Cluster, name: str, folder: Path, first: int, count: int
) -> int:
    estimates = EstimateReader(cluster, job)
    published = 0
    with Producer(
        job, folder, name=name, transport=KafkaTransport(cluster, job.name, notify=print)
    ) as producer:
        producer.enroll([f"{name}{cell}" for cell in range(count)])
        values = np.arange(first, first + count)
        followed = estimates.follow()
        while producer.closed_epoch < job.epochs.count:
            while producer.closed_epoch >= published + EPOCHS_AHEAD:
                published = max(published, next(followed).epoch)
            epoch = producer.closed_epoch + 1
            producer.report_all(epoch, values)
            producer.close(epoch)
    return 0


def produce_steadily(
    job: DeployedJob, cluster: Cluster, given: argparse.Namespace, seconds: float
) -> int:
    """Report epochs at a constant rate, whatever is published."""
    first, count = given.numbers
    with Producer(
        job, given.folder, name=given.name, transport=KafkaTransport(cluster, job.name)
    ) as producer:
        producer.enroll([f"{given.name}{cell}" for cell in range(count)])
        due = time.monotonic()
        while not given.until.exists():
            epoch = producer.closed_epoch + 1
            producer.report_all(epoch, np.arange(first, first + count))
            producer.close(epoch)
            print(f"closed {epoch}", flush=True)
            due += seconds
            time.sleep(max(0.0, due - time.monotonic()))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steady", type=float)
    parser.add_argument("--until", type=Path)
    parser.add_argument("--production", action="store_true")
    for argument in ("what", "job", "name", "servers"):
        parser.add_argument(argument)
    parser.add_argument("folder", type=Path)
    parser.add_argument("numbers", type=int, nargs="*")
    given = parser.parse_args()
    cells.register()
    connection = Connection(tuple(given.servers.split(",")))
    with Cluster(connection) as cluster:
        job = find_deployed(cluster, given.job)
        if given.what == "producer" and given.steady is not None:
            return produce_steadily(job, cluster, given, given.steady)
        if given.what == "producer":
            return produce(job, cluster, given.name, given.folder, *given.numbers)
    return run_worker(
        stage_of(given.what, job),
        job,
        connection,
        stage_name=given.what,
        worker=given.name,
        directory=given.folder,
        timings=Timings() if given.production else TIMINGS,
    )


if __name__ == "__main__":
    sys.exit(main())
