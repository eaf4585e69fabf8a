"""Resolve clusters from options, and jobs from arguments."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpstream.pipeline.cli.output import silence, tell
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import Job, load_job
from dpstream.pipeline.kafka.client_properties import read_client_properties
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import SERVERS_VARIABLE, Connection, find_cluster
from dpstream.pipeline.kafka.deployed_jobs import check_unchanged, find_deployed
from dpstream.pipeline.state import kafka_folder


def connection_of(
    servers: str | None, config: Path | None, *, start_if_missing: bool = False
) -> Connection:
    connection = find_cluster(servers, config, start_if_missing=start_if_missing, on_progress=tell)
    for warning in connection.warnings:
        tell(warning)
    return connection


@contextmanager
def cluster_of(
    servers: str | None, config: Path | None, *, start_if_missing: bool = False
) -> Iterator[Cluster]:
    silence("kafka")
    with Cluster(connection_of(servers, config, start_if_missing=start_if_missing)) as cluster:
        yield cluster


@contextmanager
def local_results(servers: str | None, config: Path | None) -> Iterator[None]:
    """Keep the local broker running for a block that reads its data, such as what `up` left."""
    local = servers is None and config is None and not os.environ.get(SERVERS_VARIABLE)
    if not local or not (kafka_folder() / "data" / "meta.properties").exists():
        yield
        return
    # Import on demand: not needed if the user selects a cluster.
    from dpstream.pipeline.kafka.local_kafka import LocalKafka
    from dpstream.pipeline.kafka.local_kafka.broker_users import running_broker

    with running_broker(LocalKafka(kafka_folder(), brief=True), tell):
        yield


@contextmanager
def events_cluster(cluster: Cluster, servers: str | None, config: Path | None) -> Iterator[Cluster]:
    """Open the cluster with an event topic: by default, the job's cluster."""
    connection = cluster.connection
    if servers or config:
        if config and not servers:
            # The environment variable names the cluster of the job.
            servers = ",".join(read_client_properties(config).bootstrap_servers)
        connection = connection_of(servers, config)
    with Cluster(connection, committed=True) as events:
        yield events


def name_of(job: str) -> str:
    loaded = job_of_file(job)
    return job if loaded is None else loaded.name


def find_job(cluster: Cluster, job: str) -> DeployedJob:
    """Return the deployed job that an argument names; a job file must match the deployment."""
    loaded = job_of_file(job)
    if loaded is None:
        return find_deployed(cluster, job)
    deployed = find_deployed(cluster, loaded.name)
    check_unchanged(deployed, loaded)
    return deployed


def job_of_file(job: str) -> Job | None:
    path = Path(job)
    if path.suffix.lower() not in (".yaml", ".yml") and not path.is_file():
        return None

    return load_job(path)
