"""Arguments and options that several commands share, and what they mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.errors import UsageProblem
from pipeline.cli.output import tell

if TYPE_CHECKING:
    from pipeline.cluster import Cluster
    from pipeline.connection import Connection
    from pipeline.deployed_job import DeployedJob
    from pipeline.jobs import Job

Servers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        envvar="DPSTREAM_BOOTSTRAP_SERVERS",
        metavar="HOST:PORT,...",
        help="The Kafka cluster. Default: the local broker.",
        rich_help_panel="Cluster",
    ),
]
KafkaConfig = Annotated[
    Path | None,
    typer.Option(
        "--kafka-config",
        metavar="FILE",
        help="A client.properties, with the TLS and SASL settings of Kafka's own tools.",
        rich_help_panel="Cluster",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JobFile = Annotated[Path, typer.Argument(metavar="JOBFILE", help="The job file (YAML).")]
JobName = Annotated[
    str, typer.Argument(metavar="JOB", help="The name of a deployed job, or its job file.")
]
SkipBadRows = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Go on without rows that cannot be used.")
]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def connection_of(
    servers: str | None, config: Path | None, *, start_if_missing: bool = False
) -> Connection:
    """The cluster that the options name."""
    from pipeline.connection import find_cluster

    connection = find_cluster(servers, config, start_if_missing=start_if_missing, on_progress=tell)
    for notice in connection.notices:
        tell(notice)
    return connection


@contextmanager
def cluster_of(
    servers: str | None, config: Path | None, *, start_if_missing: bool = False
) -> Iterator[Cluster]:
    """The cluster that the options name, open."""
    import logging

    from pipeline.cluster import Cluster

    # What it has to say comes as exceptions; its log would say it again, many times.
    logging.getLogger("kafka").setLevel(logging.CRITICAL + 1)
    with Cluster(connection_of(servers, config, start_if_missing=start_if_missing)) as cluster:
        yield cluster


def check_name(name: str) -> str:
    """The name of a producer or worker, if folders and Kafka can bear it."""
    if not _NAME.fullmatch(name):
        raise UsageProblem(
            f"--name is {name}: give letters, digits, '.', '-' and '_', a letter or digit first"
        )
    return name


def name_of(job: str) -> str:
    """The name that an argument means: it is one, or the path of a job file."""
    loaded = _job_file(job)
    return job if loaded is None else loaded.name


def find_job(cluster: Cluster, job: str) -> DeployedJob:
    """The deployed job that an argument means; a job file must not say something else."""
    from pipeline.deployments import check_unchanged, find_deployed

    loaded = _job_file(job)
    if loaded is None:
        return find_deployed(cluster, job)
    deployed = find_deployed(cluster, loaded.name)
    check_unchanged(deployed, loaded)
    return deployed


def _job_file(job: str) -> Job | None:
    """The job of an argument that is the path of a job file."""
    path = Path(job)
    if path.suffix.lower() not in (".yaml", ".yml") and not path.is_file():
        return None
    from pipeline.jobs import load_job

    return load_job(path)
