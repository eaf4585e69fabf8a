"""``dpstream run``: one worker of a stage, or one for every deployed job."""

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
from pipeline.cli.options import KafkaConfig, Servers, check_name, cluster_of, find_job

if TYPE_CHECKING:
    from pipeline.broker_clock import BrokerClock
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
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="JOB",
            help="The name of a deployed job, or its job file. Without it: every deployed job, a "
            "worker process each, as jobs are deployed, changed, paused, drained and undeployed.",
        ),
    ] = None,
    jobs: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN",
            help="Without JOB: only jobs whose name matches, as in 'survey-*'. Default: all.",
        ),
    ] = None,
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
    noise_keys: Annotated[
        Path | None,
        typer.Option(
            "--noise-keys",
            metavar="FOLDER",
            help="Without JOB: where the noise keys are, in a file for each job, of its name.",
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
    metrics_descriptor: Annotated[int | None, typer.Option(hidden=True)] = None,
    log_format: Annotated[
        LogFormat,
        typer.Option(help="Of the lines on standard error: one for every window."),
    ] = LogFormat.text,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
) -> None:
    """Run one worker of a stage, or one for every job, until told to stop (Ctrl-C, SIGTERM)."""
    from pipeline.broker_clock import BrokerClock
    from pipeline.state import private_folder, worker_folder
    from pipeline.supervisor.run import Settings, supervise
    from pipeline.workers.job_facts import JobFacts
    from pipeline.workers.log_lines import LogLines
    from pipeline.workers.monitor import MonitorAddress
    from pipeline.workers.observer import WindowTally
    from pipeline.workers.worker import run_worker

    worker = check_name(name or _host_name())
    for option, given in (("--noise-key", noise_key), ("--noise-keys", noise_keys)):
        if given is not None and stage is not StageName.shuffle:
            raise UsageProblem(f"{option} is for run shuffle: run {stage} adds no noise")
    if job is None:
        if noise_key is not None:
            raise UsageProblem("--noise-key is for one job: name it, or give --noise-keys FOLDER")
        settings = Settings(
            stage,
            worker,
            pattern="*" if jobs is None else jobs,
            noise_keys=None if noise_keys is None else noise_keys.absolute(),
            as_json=log_format is LogFormat.json,
            monitor=None if metrics is None else MonitorAddress(metrics, metrics_address),
        )
        with cluster_of(servers, kafka_config) as cluster:
            raise typer.Exit(supervise(cluster.connection, settings))
    if jobs is not None or noise_keys is not None:
        raise UsageProblem("--jobs and --noise-keys are for run STAGE without JOB")
    with cluster_of(servers, kafka_config) as cluster:
        deployed, connection = find_job(cluster, job), cluster.connection
    folder = private_folder(worker_folder(deployed.name, stage, worker))
    lines = LogLines(deployed.name, stage, worker, as_json=log_format is LogFormat.json)
    clock = BrokerClock()
    windows = WindowTally(lines.window, wall_clock=lambda: clock.milliseconds() / 1000)
    monitor = None
    if metrics is not None or metrics_descriptor is not None:
        hides_messages = stage is StageName.shuffle and deployed.protocol_entry.needs_shuffle
        monitor = MonitorAddress(
            metrics or 0,
            metrics_address,
            hides_messages,
            JobFacts.of(deployed),
            descriptor=metrics_descriptor,
        )
    code = run_worker(
        _make_stage(stage, deployed, folder, noise_key, windows, clock),
        deployed,
        connection,
        stage_name=stage,
        worker=worker,
        directory=folder,
        lines=lines,
        windows=windows,
        monitor=monitor,
        clock=clock,
    )
    raise typer.Exit(code)


def _make_stage(
    stage: StageName,
    job: DeployedJob,
    folder: Path,
    noise_key: Path | None,
    told: Told,
    clock: BrokerClock,
) -> Stage:
    from pipeline.aggregate_stage import AggregateStage
    from pipeline.deployments import check_has_devices
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
            check_has_devices(job)
            key = None
            if job.needs_noise_key:
                key = read_noise_key(noise_key or noise_key_file(job.name))
            return ShuffleStage(
                job,
                identifiers=partial(secrets.token_bytes, 16),
                wall_clock=clock.milliseconds,
                broker_time=clock.now,
                generator=cryptographic_generator(),
                scratch=lambda: tempfile.TemporaryFile(dir=folder),
                noise_key=key,
                told=told,
            )


def _host_name() -> str:
    """The name of this machine, as `check_name` would have it."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("._-")[:100] or "worker"
