"""The command ``dpstream run``: one worker of a stage, or one for every deployed job."""

from __future__ import annotations

import re
import secrets
import socket
import tempfile
import time
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from kafka.errors import KafkaConnectionError, KafkaTimeoutError

from dpstream.pipeline.cli import loading, output
from dpstream.pipeline.cli.cluster_and_jobs import cluster_of, find_job
from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.keygen import key_ring
from dpstream.pipeline.cli.options import KafkaConfig, LogFormat, SealingKeys, Servers, check_name
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_files import NoiseKey
from dpstream.pipeline.jobs.key_ring import KeyRing
from dpstream.pipeline.kafka.broker_clock import BrokerClock
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.cluster_errors import BrokerAwayError
from dpstream.pipeline.kafka.deployed_jobs import check_has_devices
from dpstream.pipeline.kafka.stored_state import ContradictionError
from dpstream.pipeline.kafka.stored_topics import check_stored
from dpstream.pipeline.kafka.workers.idle_note import IdleSettings
from dpstream.pipeline.kafka.workers.log_lines import LogLines
from dpstream.pipeline.kafka.workers.monitor import MonitorAddress
from dpstream.pipeline.kafka.workers.observer import WindowCounters
from dpstream.pipeline.kafka.workers.worker_facts import JobFacts
from dpstream.pipeline.open_files import room_for_files
from dpstream.pipeline.operations.supervisor.children import METRICS_VARIABLE
from dpstream.pipeline.operations.supervisor.supervise import SupervisorSettings, supervise
from dpstream.pipeline.operations.supervisor.target_tasks import Task
from dpstream.pipeline.parent_watch import send_reason
from dpstream.pipeline.results.watched_estimates import WatchedEstimates
from dpstream.pipeline.stages.environment import Environment, WindowListener
from dpstream.pipeline.stages.estimate_records import EstimateListener
from dpstream.pipeline.stages.idle_condition import waking_roles
from dpstream.pipeline.stages.stage import Stage
from dpstream.pipeline.stages.stage_builder import build_stage
from dpstream.pipeline.stages.topic_uses import hides_messages, stages_of, topic_uses
from dpstream.pipeline.state import noise_key_file, private_folder, worker_folder

_RETRY_SECONDS = 2.0
_MOST_FILES = 1 << 16
"""Maximum number of open files, for 10,000 producers' spill files in several open windows."""


class StageName(StrEnum):
    shuffle = "shuffle"
    instance_2 = "instance-2"
    instance_3 = "instance-3"
    instance_4 = "instance-4"
    shuffle_2 = "shuffle-2"
    shuffle_3 = "shuffle-3"
    aggregate_a = "aggregate-a"
    aggregate_b = "aggregate-b"
    aggregate = "aggregate"
    publish = "publish"


def run(
    stage: Annotated[StageName, typer.Argument(help="Stage to run.")],
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="JOB",
            help="Name of a deployed job, or its job file. Default: supervise all deployed jobs, "
            "with one worker process each, and follow deployments, changes, pauses and drains.",
        ),
    ] = None,
    jobs: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN",
            help="(without JOB) Run only jobs whose names match, such as 'survey-*'. Default: all.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of this worker, unique within the stage on all machines; keep it across "
            "restarts. Default: the host name."
        ),
    ] = None,
    noise_key: Annotated[
        Path | None,
        typer.Option(
            "--noise-key",
            metavar="FILE",
            help="Noise key shared by all shuffle workers of a job whose shuffler adds noise. "
            "Default: the file made by deploy, on the same machine.",
        ),
    ] = None,
    noise_keys: Annotated[
        Path | None,
        typer.Option(
            "--noise-keys",
            metavar="FOLDER",
            help="(without JOB) Folder with one noise key file per job, named after the job.",
        ),
    ] = None,
    keys: SealingKeys = None,
    metrics: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65_535,
            metavar="PORT",
            help="Port for /metrics (Prometheus), /healthz and /readyz. Default: none.",
        ),
    ] = None,
    metrics_address: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Interface for --metrics."),
    ] = "127.0.0.1",
    metrics_descriptor: Annotated[
        int | None, typer.Option(hidden=True, envvar=METRICS_VARIABLE)
    ] = None,
    idle_timeout: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            metavar="SECONDS",
            help="(without JOB) Stop workers that have been idle this long, and restart them on "
            "demand; for many jobs on one machine. Default: never.",
        ),
    ] = None,
    log_format: Annotated[
        LogFormat,
        typer.Option(help="Format of log lines on standard error, one for each window."),
    ] = LogFormat.text,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
) -> None:
    """Run a worker for a job's stage, or one per job, until Ctrl-C or SIGTERM."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("._-")[:100]
    worker = check_name(name or host or "worker")
    for option, value in (("--noise-key", noise_key), ("--noise-keys", noise_keys)):
        if value is not None and stage is not StageName.shuffle:
            raise UsageProblem(f"{option} requires 'run shuffle': 'run {stage}' adds no noise")
    if keys is not None and stage is StageName.publish:
        raise UsageProblem("--keys requires a stage that opens reports; 'run publish' opens none")
    as_json = log_format is LogFormat.json
    if job is None:
        if noise_key is not None:
            raise UsageProblem(
                "--noise-key is for one job: specify the job, or use --noise-keys FOLDER"
            )
        settings = SupervisorSettings(
            stage,
            worker,
            pattern="*" if jobs is None else jobs,
            noise_keys=None if noise_keys is None else noise_keys.absolute(),
            keys=None if keys is None else keys.absolute(),
            as_json=as_json,
            monitor=None if metrics is None else MonitorAddress(metrics, metrics_address),
            idle_timeout=idle_timeout,
        )
        with cluster_of(servers, kafka_config) as cluster:
            raise typer.Exit(supervise(cluster.connection, settings))
    if jobs is not None or noise_keys is not None:
        raise UsageProblem("--jobs and --noise-keys require run STAGE without JOB")
    waiting = False
    while True:
        try:
            with cluster_of(servers, kafka_config) as cluster:
                deployed, connection = find_job(cluster, job), cluster.connection
                lines = LogLines(deployed.name, stage, worker, as_json, on_error=send_reason)
                _check(cluster, deployed, stage, lines)
            break
        except (BrokerAwayError, KafkaConnectionError, KafkaTimeoutError) as error:
            if not waiting:
                output.tell(f"{error}; waiting for an answer (Ctrl-C to exit)")
            waiting = True
            time.sleep(_RETRY_SECONDS)
    # A large window needs a spill file for each producer with many reports.
    room_for_files(_MOST_FILES)
    folder = private_folder(worker_folder(deployed.name, stage, worker))
    clock = BrokerClock()
    windows = WindowCounters(lines.window, wall_clock=lambda: clock.milliseconds() / 1000)
    watched = WatchedEstimates(deployed)
    monitor = None
    if metrics is not None or metrics_descriptor is not None:
        monitor = MonitorAddress(
            metrics or 0,
            metrics_address,
            hides_messages(deployed, stage),
            JobFacts.of(deployed),
            lambda: watched.latest,
            descriptor=metrics_descriptor,
        )
    # Imported here: a supervisor, which runs without JOB, does not need Faust or its memory.
    with loading():
        from dpstream.pipeline.kafka.workers.timings import Timings
        from dpstream.pipeline.kafka.workers.worker import run_worker

    new_stage = _make_stage(
        stage, deployed, folder, noise_key, key_ring(deployed, keys), windows, clock, watched
    )
    code = run_worker(
        new_stage,
        deployed,
        connection,
        stage_name=stage,
        worker=worker,
        directory=folder,
        lines=lines,
        windows=windows,
        monitor=monitor,
        clock=clock,
        used=topic_uses(deployed, stage).topics,
        idle_settings=_idle_settings(deployed, stage, idle_timeout),
        timings=None if idle_timeout is None else Timings.of_many(),
    )
    raise typer.Exit(code)


def _check(cluster: Cluster, job: DeployedJob, stage: str, lines: LogLines) -> None:
    if stage not in job.route.stages:
        return
    try:
        uses = topic_uses(job, stage)
        check_stored(cluster, job, {*uses.topics, *uses.checks})
    except ContradictionError as error:
        lines.error(str(error))
        raise typer.Exit(error.exit_code) from None


def _make_stage(
    stage: StageName,
    job: DeployedJob,
    folder: Path,
    noise_key: Path | None,
    keys: KeyRing,
    listener: WindowListener,
    clock: BrokerClock,
    watcher: EstimateListener,
) -> Stage:
    # A replay has only aggregators and a publisher.
    if stage is not StageName.publish and not stage.startswith("aggregate"):
        check_has_devices(job)
    _check_stage(job, stage)
    key = None
    if stage is StageName.shuffle and job.needs_noise_key:
        key = NoiseKey.read(noise_key or noise_key_file(job.name))

    def open_spill_file() -> BinaryIO:
        return tempfile.TemporaryFile(dir=folder)

    environment = Environment(
        identifiers=partial(secrets.token_bytes, 16),
        wall_clock=clock.milliseconds,
        broker_time=clock.now,
        open_spill_file=open_spill_file,
        noise_key=key,
        keys=keys,
        listener=listener,
    )
    return build_stage(job, stage, environment, watcher)


def _idle_settings(job: DeployedJob, stage: StageName, after: float | None) -> IdleSettings | None:
    if after is None:
        return None
    return IdleSettings(after, waking_roles(job, stage), Task.version_of(job).hex())


def _check_stage(job: DeployedJob, stage: StageName) -> None:
    if stage not in stages_of(job):
        raise UsageProblem(
            f"job {job.name} has no stage {stage}; expected one of {', '.join(stages_of(job))}"
        )
