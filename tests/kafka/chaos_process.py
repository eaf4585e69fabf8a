"""Run a worker or producer of the fleet as a process.

Its argument is a JSON file with `tests.support.fleet.Orders`. A producer logs each epoch before and
after it closes the epoch. It closes epochs in order up to the epoch in the file ``stop``, and also,
out of order, the epoch in its own file ``ahead``.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kafka.errors import KafkaError

from dpstream.pipeline.connect import ask_broker_clock
from dpstream.pipeline.devices.producer import Producer, ProducerError
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_files import NoiseKey
from dpstream.pipeline.kafka.broker_clock import BrokerClock
from dpstream.pipeline.kafka.cluster import Cluster, ClusterError, KafkaTransport
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.kafka.workers.timings import Timings
from dpstream.pipeline.kafka.workers.worker import run_worker
from dpstream.pipeline.results.follow import EstimateReader
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.stage import Stage
from dpstream.pipeline.stages.stage_builder import build_stage
from dpstream.pipeline.state import FolderInUse
from tests.support import cells
from tests.support.fleet import LEAD, Orders

TIMINGS = Timings(session=3.0, heartbeat=0.5, rebalance=10.0, request=10.0, probe=1.0)
# Exit code for failures that a retry might fix, after which an operator's supervisor restarts the
# process.
AGAIN = 3
_PAUSE = 0.2


def stage_of(orders: Orders, job: DeployedJob, clock: BrokerClock) -> Stage:
    environment = Environment(
        wall_clock=clock.milliseconds,
        broker_time=clock.now,
        noise_key=NoiseKey(bytes.fromhex(orders.noise_key)) if orders.noise_key else None,
    )
    return build_stage(job, orders.what, environment)


class Gateway:
    def __init__(
        self, orders: Orders, job: DeployedJob, cluster: Cluster, watched: Cluster
    ) -> None:
        self._orders = orders
        self._job = job
        self._devices = orders.devices()
        self._estimates = EstimateReader(watched, job)
        self._published = orders.first_epoch - 1
        clock = ask_broker_clock(cluster, job, _print_message)
        self._producer = Producer(
            job,
            Path(orders.folder),
            name=orders.producer,
            transport=KafkaTransport(cluster, job.name, _print_message, clock),
            clock=clock.milliseconds,
            generators=self._devices.generators,
            first_epoch=orders.first_epoch,
        )

    def run(self) -> None:
        with self._producer as producer:
            self._try(lambda: producer.enroll(self._devices.users))
            while not self._is_finished():
                ahead = self._ahead()
                if ahead is not None:
                    with suppress(ProducerError):
                        self._close(ahead)
                    self._orders.ahead.unlink()
                elif producer.closed_epoch < self._published + LEAD:
                    self._try(lambda: self._close(producer.closed_epoch + 1))
                self._look()

    def _is_finished(self) -> bool:
        stop = Path(self._orders.stop)
        return stop.exists() and self._producer.closed_epoch >= int(stop.read_text())

    def _ahead(self) -> int | None:
        return int(self._orders.ahead.read_text()) if self._orders.ahead.exists() else None

    def _close(self, epoch: int) -> None:
        producer, devices = self._producer, self._devices
        values, present = devices.values(self._job, epoch), devices.present(self._job, epoch)
        self._note("closing", epoch)
        try:
            if present.all():
                producer.report_all(epoch, values)
            else:
                held = zip(devices.users, values.tolist(), present.tolist(), strict=True)
                producer.report(epoch, {user: value for user, value, here in held if here})
            producer.close(epoch)
        except ProducerError as error:
            self._note("rejected", epoch)
            _print_message(str(error))
            raise
        self._note("closed", epoch)

    def _try(self, work: Callable[[], None]) -> None:
        """Repeat a call until the producer accepts it."""
        while True:
            try:
                work()
                return
            except ProducerError:
                time.sleep(_PAUSE)

    def _look(self) -> None:
        time.sleep(self._orders.pace)
        with suppress(KafkaError, ClusterError):
            for record in self._estimates.read():
                self._published = max(self._published, record.epoch)

    def _note(self, what: str, epoch: int) -> None:
        with Path(self._orders.journal).open("a") as journal:
            journal.write(f"{what} {epoch}\n")


def _print_message(words: str) -> None:
    """Log a line with the seconds of a clock that the faults do not change."""
    print(f"{time.monotonic():.1f} {words}", flush=True)


def main() -> int:
    orders = Orders.read(Path(sys.argv[1]))
    cells.register()
    connection = Connection(tuple(orders.servers.split(",")))
    try:
        # Reading publications needs a short timeout, because reporting must not wait for it.
        with Cluster(connection) as cluster, Cluster(connection, timeout=5.0) as watched:
            job = find_deployed(cluster, orders.job)
            if orders.what == "producer":
                Gateway(orders, job, cluster, watched).run()
                return 0
    except (ClusterError, KafkaError, ProducerError, FolderInUse, sqlite3.Error) as error:
        _print_message(f"{type(error).__name__}: {error}")
        return AGAIN
    clock = BrokerClock()
    return run_worker(
        stage_of(orders, job, clock),
        job,
        connection,
        stage_name=orders.what,
        worker=orders.producer,
        directory=Path(orders.folder),
        timings=TIMINGS,
        clock=clock,
    )


if __name__ == "__main__":
    sys.exit(main())
