"""``dpstream run``: one worker of a stage."""

from __future__ import annotations

import re
import secrets
import socket
import tempfile
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.errors import UsageProblem
from pipeline.cli.options import JobName, KafkaConfig, Servers, check_name, cluster_of, find_job
from pipeline.cli.output import now

if TYPE_CHECKING:
    from pipeline.deployed_job import DeployedJob
    from pipeline.finished_windows import Told
    from pipeline.stage import Stage


class StageName(StrEnum):
    """The stages, in the order of the data flow."""

    shuffle = "shuffle"
    aggregate = "aggregate"
    publish = "publish"


class LogFormat(StrEnum):
    """How a worker's lines are written."""

    text = "text"
    json = "json"


def run(
    stage: Annotated[StageName, typer.Argument(help="Which stage.")],
    job: JobName,
    name: Annotated[
        str | None,
        typer.Option(
            help="Of this worker, its own among the stage's on all machines; restart it under the "
            "same name. Default: the name of this machine."
        ),
    ] = None,
    noise_key: Annotated[
        Path | None,
        typer.Option(
            "--noise-key",
            metavar="FILE",
            help="Of jobs whose shuffle stage adds noise: the key that all their shuffle workers "
            "share. Default: where deploy has made it, on the same machine.",
        ),
    ] = None,
    metrics: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65_535,
            metavar="PORT",
            help="Serve /metrics (for Prometheus), /healthz and /readyz here. Default: nowhere.",
        ),
    ] = None,
    metrics_address: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Of the interface on which --metrics serves."),
    ] = "127.0.0.1",
    log_format: Annotated[
        LogFormat,
        typer.Option(help="Of the lines on standard error: one for every window."),
    ] = LogFormat.text,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
) -> None:
    """Run one worker of a stage until it is told to stop (Ctrl-C, SIGTERM)."""
    from pipeline.state import private_folder, worker_folder
    from pipeline.workers.log_lines import LogLines
    from pipeline.workers.monitor import MonitorAddress
    from pipeline.workers.observer import WindowTally
    from pipeline.workers.worker import run_worker

    worker = check_name(name or _host_name())
    if noise_key is not None and stage is not StageName.shuffle:
        raise UsageProblem(f"--noise-key is for run shuffle: run {stage} adds no noise")
    with cluster_of(servers, kafka_config) as cluster:
        deployed, connection = find_job(cluster, job), cluster.connection
    folder = private_folder(worker_folder(deployed.name, stage, worker))
    lines = LogLines(deployed.name, stage, worker, as_json=log_format is LogFormat.json)
    windows = WindowTally(lines.window)
    monitor = None
    if metrics is not None:
        hides_messages = stage is StageName.shuffle and deployed.protocol_entry.needs_shuffle
        monitor = MonitorAddress(metrics, metrics_address, hides_messages)
    code = run_worker(
        _make_stage(stage, deployed, folder, noise_key, windows),
        deployed,
        connection,
        stage_name=stage,
        worker=worker,
        directory=folder,
        lines=lines,
        windows=windows,
        monitor=monitor,
    )
    raise typer.Exit(code)


def _make_stage(
    stage: StageName, job: DeployedJob, folder: Path, noise_key: Path | None, told: Told
) -> Stage:
    from pipeline.aggregate_stage import AggregateStage
    from pipeline.noise_keys import read_noise_key
    from pipeline.publish_stage import PublishStage
    from pipeline.shuffle_stage import ShuffleStage
    from pipeline.state import noise_key_file
    from randomizers.randomness import cryptographic_generator

    match stage:
        case StageName.aggregate:
            return AggregateStage(job, told=told)
        case StageName.publish:
            return PublishStage(job, told=told)
        case StageName.shuffle:
            key = None
            if job.needs_noise_key:
                key = read_noise_key(noise_key or noise_key_file(job.name))
            return ShuffleStage(
                job,
                identifiers=partial(secrets.token_bytes, 16),
                wall_clock=now,
                generator=cryptographic_generator(),
                scratch=lambda: tempfile.TemporaryFile(dir=folder),
                noise_key=key,
                told=told,
            )


def _host_name() -> str:
    """The name of this machine, as `check_name` would have it."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("._-")[:100] or "worker"
