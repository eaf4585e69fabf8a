"""The command ``dpstream produce``, from a file, standard input or a topic."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dpstream.pipeline.cli.cluster_and_jobs import cluster_of, events_cluster, find_job, job_of_file
from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.input_flags import InputFlags, takes_input_flags
from dpstream.pipeline.cli.inputs import ToEpoch, UserList, load_input, load_user_list, progress_bar
from dpstream.pipeline.cli.options import (
    AsJson,
    JobName,
    KafkaConfig,
    Servers,
    SkipBadRows,
    check_name,
)
from dpstream.pipeline.cli.output import plural, tell
from dpstream.pipeline.cli.produce_from_topic import (
    print_produced,
    produce_from_topic,
    unknown_users_text,
)
from dpstream.pipeline.connect import ask_broker_clock, open_producer
from dpstream.pipeline.devices.live import LiveSource
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.devices.producer_input import (
    LiveProducer,
    enrollment,
    produce_change_log,
    produce_live,
)
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.input_formats import InputFormat
from dpstream.pipeline.kafka.broker_clock import BrokerClock
from dpstream.pipeline.kafka.deployed_jobs import check_has_producers
from dpstream.pipeline.state import producer_folder

# Seconds after which the clock is read again, because it may be set, or the machine may sleep.
_LONGEST_WAIT = 1.0


@takes_input_flags
def produce(
    job: JobName,
    input: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="FILE|-",
            help="Change log, or events: CSV, JSON lines or Parquet; - reads CSV or JSON lines "
            "from standard input and closes epochs by the clock.",
        ),
    ] = None,
    from_topic: Annotated[
        str | None,
        typer.Option(
            "--from-topic",
            metavar="TOPIC",
            help="Topic with JSON events to read instead of a file; every event counts once. "
            "Epochs are closed by the clock, or up to --to-epoch.",
        ),
    ] = None,
    input_servers: Annotated[
        str | None,
        typer.Option(
            "--input-bootstrap-servers",
            metavar="HOST:PORT,...",
            help="Cluster with that topic. Default: the job's cluster.",
            rich_help_panel="Cluster",
        ),
    ] = None,
    input_kafka_config: Annotated[
        Path | None,
        typer.Option(
            "--input-kafka-config",
            metavar="FILE",
            help="A client.properties file for the cluster with that topic.",
            rich_help_panel="Cluster",
        ),
    ] = None,
    users: UserList = None,
    to_epoch: ToEpoch = None,
    rate: Annotated[
        float | None,
        typer.Option(metavar="EPOCHS", help="Maximum epochs per second."),
    ] = None,
    name: Annotated[
        str, typer.Option(help="Name of this producer, unique within the job.")
    ] = "producer",
    state_directory: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for the randomness that the devices draw. Default: one in the state "
            "folder.",
        ),
    ] = None,
    skip_bad_rows: SkipBadRows = False,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
    *,
    flags: InputFlags,
) -> None:
    """Randomize the values of a change log and send the reports, epoch by epoch.

    When run again after an interruption, it continues where it stopped: no epoch is randomized
    twice.

    Enrollment is public and must not depend on a value. --users lists the enrolled users; without
    it, all users with a row in the file are enrolled before its first epoch. Live input needs
    --users, or a row without a value for every user, placed before epoch 1 (alice,0,). Users whose
    first row comes later are unknown: the command prints how many they are, and ignores their rows.
    All enrolled users are present at every epoch, with their latest value. Live input skips
    unusable rows.
    """
    if rate is not None and not rate > 0:
        raise UsageProblem(f"--rate: got {rate:g}; expected a number above 0")
    if (input is None) == (from_topic is None):
        raise UsageProblem("specify exactly one of --input FILE, --input - and --from-topic TOPIC")
    if from_topic is None and (input_servers or input_kafka_config):
        raise UsageProblem(
            "--input-bootstrap-servers and --input-kafka-config require --from-topic"
        )
    check_name(name)
    with cluster_of(servers, kafka_config) as cluster:
        deployed = find_job(cluster, job)
        check_has_producers(deployed)
        input_format = flags.format_of(job_of_file(job) or deployed)
        # One folder per deployment: another deployment may draw from another distribution.
        folder = state_directory or producer_folder(deployed.name, name) / deployed.deployment.hex()
        opened = partial(open_producer, cluster, deployed, folder, name=name, notify=tell)
        tell(f"producer {name} of {deployed.name}: state folder {folder}")
        if from_topic is not None:
            with events_cluster(cluster, input_servers, input_kafka_config) as events:
                produce_from_topic(
                    opened,
                    deployed,
                    cluster,
                    events,
                    from_topic,
                    user_list=load_user_list(deployed, users) or (),
                    to_epoch=to_epoch,
                    rate=rate,
                    as_json=as_json,
                    input_format=input_format,
                )
            return
        assert input is not None
        if input == "-":
            if to_epoch is not None:
                raise UsageProblem(
                    "--to-epoch is for files: with --input -, the clock closes epochs"
                )
            clock = ask_broker_clock(cluster, deployed, tell)
            _produce_live(opened, deployed, folder, users, as_json, clock, input_format)
            return
        change_log = load_input(
            deployed,
            Path(input),
            users,
            to_epoch,
            skip_bad_rows=skip_bad_rows,
            input_format=input_format,
        )
        tell(enrollment(change_log))
        with opened() as producer, progress_bar() as progress:
            closed_before = producer.closed_epoch
            bar = progress.add_task("epochs", total=change_log.last_epoch, completed=closed_before)
            unknown_users = produce_change_log(
                producer,
                change_log,
                rate=rate,
                on_epoch=lambda epoch: progress.update(bar, completed=epoch),
            )
            progress.stop()
            print_produced(producer, closed_before, change_log.last_epoch, unknown_users, as_json)


def _produce_live(
    opened: Callable[..., AbstractContextManager[Producer]],
    job: DeployedJob,
    folder: Path,
    users: Path | None,
    as_json: bool,
    broker_clock: BrokerClock,
    input_format: InputFormat,
) -> None:
    user_list = load_user_list(job, users) or ()
    calendar = job.epochs.calendar
    if calendar is None:
        raise UsageProblem(
            "--input - closes epochs by the clock: set epochs.start and epochs.length in the "
            f"job file of {job.name}"
        )

    # The broker's clock: the local one may be wrong, or set during the run.
    clock = broker_clock.moment
    running = max(1, calendar.epoch_of(clock()))
    if job.last_epoch is not None and running > job.last_epoch:
        raise UsageProblem(
            f"the last epoch of job {job.name} has ended: deploy a job with a later epochs.start"
        )
    # On SIGTERM, save the rows read so far, as with Ctrl-C.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with opened(first_epoch=running, clock=broker_clock) as producer:
        closed_before = producer.closed_epoch
        source = LiveSource(
            calendar,
            closed_before + 1,
            last_epoch=job.last_epoch,
            domain=job.row_domain,
            input_format=input_format,
        )
        tell(f"epoch {source.epoch} closes at {source.deadline:%Y-%m-%d %H:%M:%S} UTC")
        unknown_users = 0

        def on_epoch(epoch: int) -> None:
            nonlocal unknown_users
            tell(f"epoch {epoch} is closed")
            if live.unknown_users > unknown_users:
                unknown_users = live.unknown_users
                tell(f"so far: {unknown_users_text(unknown_users)}")

        live = LiveProducer(producer, folder, on_epoch, user_list=user_list, name=str(users))
        if producer.users:
            tell(f"{plural(len(producer.users), 'user')} enrolled; this list is public")
        read = partial(_read_until, sys.stdin.fileno(), clock)
        produce_live(live, source, read, clock, notify=tell)
        for warning in (*source.warnings(), *live.warnings()):
            tell(warning)
        if source.deadline is not None:
            tell(f"the input ended; epoch {source.epoch} stays open for a later run")
        print_produced(producer, closed_before, job.last_epoch, live.unknown_users, as_json)


def _read_until(descriptor: int, clock: Callable[[], datetime], deadline: datetime) -> bytes | None:
    seconds = (deadline - clock()).total_seconds()
    ready, _, _ = select.select([descriptor], [], [], min(max(0.0, seconds), _LONGEST_WAIT))
    return os.read(descriptor, 1 << 16) if ready else None
