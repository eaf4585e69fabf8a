"""Open a producer in one line, for a device or for a gateway of many devices."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_bytes

from dpstream.pipeline.actions import Append, Flush, Steps
from dpstream.pipeline.devices.producer import STATE_FILE, Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.broker_clock import BrokerClock
from dpstream.pipeline.kafka.cluster import Cluster, KafkaTransport
from dpstream.pipeline.kafka.connection import find_cluster
from dpstream.pipeline.kafka.deployed_jobs import (
    check_has_devices,
    check_has_producers,
    find_deployed,
)
from dpstream.pipeline.kafka.producer_checks import check_registered, ends_before
from dpstream.pipeline.kafka.stored_topics import check_stored
from dpstream.topics.names import Role
from dpstream.topics.records import Deregistration


def _to_stderr(message: str) -> None:
    print(message, file=sys.stderr)


def ask_broker_clock(
    cluster: Cluster, job: DeployedJob, notify: Callable[[str], None] = _to_stderr
) -> BrokerClock:
    """Return the broker's clock, and read it now if the job's epochs follow a calendar.

    A broker states its time only in replies to writes. This function therefore writes a record,
    which deregisters an enrollment that does not exist, so that readers skip it. Calls `notify` if
    the clocks differ.
    """
    clock = BrokerClock()
    if job.epochs.calendar is None:
        return clock

    def ask() -> Steps[None]:
        yield Append(
            Role.PRODUCERS, 0, Deregistration(job.deployment, token_bytes(16), 0).to_bytes()
        )
        yield Flush()

    KafkaTransport(cluster, job.name, notify, clock).run(ask())
    problem = clock.problem()
    if problem is not None:
        notify(f"{problem}: epochs start and end by the broker's clock. Set this machine's clock")
    return clock


@contextmanager
def open_producer(
    cluster: Cluster,
    job: DeployedJob,
    state_directory: Path,
    *,
    name: str,
    first_epoch: int = 1,
    notify: Callable[[str], None] = _to_stderr,
    clock: BrokerClock | None = None,
) -> Iterator[Producer]:
    """Open a producer as `connect_producer` does, with a clock from `ask_broker_clock`.

    Checks that the producer's registration is the first under its name.
    """
    check_has_devices(job)
    check_has_producers(job)
    check_stored(cluster, job, (*job.route.reports, Role.PRODUCERS))
    clock = clock or ask_broker_clock(cluster, job, notify)
    before = ends_before(cluster, job, state_directory / STATE_FILE)
    with Producer(
        job,
        state_directory,
        name=name,
        transport=KafkaTransport(cluster, job.name, notify, clock),
        first_epoch=first_epoch,
        clock=clock.milliseconds,
    ) as producer:
        check_registered(cluster, producer, notify, before)
        yield producer


@contextmanager
def connect_producer(
    job: str,
    *,
    name: str,
    state_directory: Path,
    bootstrap_servers: str | None = None,
    kafka_config: Path | None = None,
    first_epoch: int = 1,
    notify: Callable[[str], None] = _to_stderr,
) -> Iterator[Producer]:
    """Open a producer for a deployed job.

    Args:
        job: Name of the deployed job.
        name: Name of the producer, unique within the job.
        state_directory: Folder for this producer and deployment only. It stores the randomness that
            the devices have drawn: preserve it, and keep it secret.
        bootstrap_servers: ``host:port`` pairs separated by commas. Default:
            DPSTREAM_BOOTSTRAP_SERVERS, else the local broker.
        kafka_config: File with TLS and SASL settings, such as client.properties.
        first_epoch: First epoch to report, used when the producer is first opened.
        notify: Called with a message when Kafka becomes unreachable, and when it is back.

    Raises:
        ClusterError: If the cluster cannot be reached.
        ContradictionError: If topics of the job have lost data.
        DeploymentError: If no job of this name is deployed, or if it is a replay.
        ProducerError: If the directory cannot be used or belongs to another producer or deployment,
            or if another producer registered first under this name.
        FolderInUse: If another process has the directory open.
    """
    with Cluster(find_cluster(bootstrap_servers, kafka_config)) as cluster:
        deployed = find_deployed(cluster, job)
        with open_producer(
            cluster,
            deployed,
            state_directory,
            name=name,
            first_epoch=first_epoch,
            notify=notify,
        ) as producer:
            yield producer
