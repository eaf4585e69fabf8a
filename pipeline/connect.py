"""A producer in one line, for programs: a device, or a gateway that stands for many."""

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
from dpstream.pipeline.kafka.kept_topics import check_kept
from dpstream.pipeline.kafka.producer_checks import check_registered, ends_before
from dpstream.topics.names import Role
from dpstream.topics.records import Farewell


def _to_stderr(message: str) -> None:
    print(message, file=sys.stderr)


def ask_broker_clock(
    cluster: Cluster, job: DeployedJob, notify: Callable[[str], None] = _to_stderr
) -> BrokerClock:
    """The broker's clock, where a job has a calendar by which epochs begin and end.

    A broker tells the time only to whoever writes. What is written is the farewell of an enrolment
    that nobody has, which every reader passes over. `notify` is told if our own clock is off.
    """
    clock = BrokerClock()
    if job.epochs.calendar is None:
        return clock

    def ask() -> Steps[None]:
        yield Append(Role.PRODUCERS, 0, Farewell(job.deployment, token_bytes(16), 0).to_bytes())
        yield Flush()

    KafkaTransport(cluster, job.name, notify, clock).run(ask())
    problem = clock.problem()
    if problem is not None:
        notify(f"{problem}: epochs begin and end by the broker's; set this one")
    return clock


@contextmanager
def open_producer(
    cluster: Cluster,
    job: DeployedJob,
    state_directory: Path,
    *,
    name: str,
    first_epoch: int = 1,
    group: int | None = None,
    notify: Callable[[str], None] = _to_stderr,
    clock: BrokerClock | None = None,
) -> Iterator[Producer]:
    """Open a producer on a cluster, and see that its registration is the one that counts.

    Arguments and errors are those of `connect_producer`; `clock` is one of `ask_broker_clock`.
    """
    check_has_devices(job)
    check_has_producers(job)
    check_kept(cluster, job, (*job.report_roles, Role.PRODUCERS))
    clock = clock or ask_broker_clock(cluster, job, notify)
    before = ends_before(cluster, job, state_directory / STATE_FILE)
    with Producer(
        job,
        state_directory,
        name=name,
        transport=KafkaTransport(cluster, job.name, notify, clock),
        first_epoch=first_epoch,
        group=group,
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
    group: int | None = None,
    notify: Callable[[str], None] = _to_stderr,
) -> Iterator[Producer]:
    """Open a producer of a deployed job.

    Args:
        job: the name it is deployed under.
        name: of the producer, unique among the job's.
        state_directory: for this producer of this deployment alone. What the devices have drawn
            lives there: keep it, and keep it secret.
        bootstrap_servers: of the cluster, ``host:port`` separated by commas; by default what
            DPSTREAM_BOOTSTRAP_SERVERS says, or else the local broker.
        kafka_config: a client.properties file with TLS and SASL settings.
        first_epoch: the first epoch to report, when the producer is opened for the first time.
        group: of a job that learns, the one that all its devices are in; None: they are spread
            over all groups.
        notify: is told once when Kafka is away, and once when it is back.

    Raises:
        ClusterError: the cluster cannot be reached.
        ContradictionError: topics of the job have lost what they held.
        DeploymentError: no job of this name is deployed, or it is a replay.
        ProducerError: the directory belongs to another producer or deployment, or cannot be read
            or written, or another one registered first under this name.
        FolderInUse: another process has it open.
    """
    with Cluster(find_cluster(bootstrap_servers, kafka_config)) as cluster:
        deployed = find_deployed(cluster, job)
        with open_producer(
            cluster,
            deployed,
            state_directory,
            name=name,
            first_epoch=first_epoch,
            group=group,
            notify=notify,
        ) as producer:
            yield producer
