"""The commands ``dpstream pause``, ``resume`` and ``drain``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated

import typer

from dpstream.pipeline.cli.cluster_and_jobs import cluster_of, name_of
from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.options import AsJson, JobName, KafkaConfig, Servers
from dpstream.pipeline.cli.output import duration, now, plural, print_json, print_text, tell
from dpstream.pipeline.errors import FAILED
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import find_deployed, read_jobs, set_phase
from dpstream.pipeline.operations.drains import DrainProgress, DrainWatch, end_drain, start_drain
from dpstream.pipeline.values.durations import parse_duration

_POLL_SECONDS = 0.5
_TELL_SECONDS = 2.0
_EPOCHS_SHOWN = 8
# Time from a change of phase until a supervisor's workers send heartbeats.
_START_SECONDS = 15.0


def pause(
    job: JobName,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Stop a job's workers through their supervisors. Producers continue.

    No data is lost if the job resumes within topics.retention.
    """
    with cluster_of(servers, kafka_config) as cluster:
        deployed, before = _find(cluster, job)
        if before is not Phase.PAUSED:
            _set(cluster, deployed, Phase.PAUSED)
    if as_json:
        _print_phase_json(deployed, Phase.PAUSED, before)
        return
    if before is Phase.PAUSED:
        print_text(f"{deployed.name} is already paused")
        return
    retention = duration(deployed.topics.retention)
    who = "producers" if deployed.devices is None else "collectors"
    print_text(
        f"{deployed.name} is paused: supervisors stop its workers; stop those started by hand"
    )
    print_text(
        f"new records from {who} are stored for at most {retention}. To continue: 'dpstream "
        f"resume {deployed.name}'"
    )
    if before is Phase.DRAINING:
        print_text("its drain is paused, too, and continues after 'dpstream resume'")


def resume(
    job: JobName,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Restart the workers of a paused or drained job through their supervisors."""
    with cluster_of(servers, kafka_config) as cluster:
        deployed, before = _find(cluster, job)
        if before is not Phase.RUNNING:
            _set(cluster, deployed, Phase.RUNNING)
    if as_json:
        _print_phase_json(deployed, Phase.RUNNING, before)
        return
    if before is Phase.RUNNING:
        print_text(f"{deployed.name} is already running")
        return
    print_text(f"{deployed.name} was {before} and is now running: supervisors start its workers")
    print_text("without a supervisor: 'dpstream run STAGE JOB'")
    if before is Phase.DRAINING:
        print_text(
            "epochs that were open during the drain are finalized without waiting for "
            f"{'missing producers' if deployed.devices is None else 'collectors'}"
        )


def drain(
    job: JobName,
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Maximum time to wait, such as 10min. On timeout, exits with 1 and the drain "
            "continues. Default: unlimited.",
        ),
    ] = None,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Finalize and publish open epochs, then let the workers end.

    Uses the reports that have arrived; missing producers are not awaited. Records written from now
    on stay in the topic until dpstream resume. If the command is interrupted, run it again.
    """
    seconds = None if timeout is None else _seconds(timeout)
    with cluster_of(servers, kafka_config) as cluster:
        deployed, before = _find(cluster, job)
        start_timeout = _START_SECONDS if before is Phase.PAUSED else 0.0
        progress = None
        if before is not Phase.DRAINED:
            progress = _drain(cluster, deployed, seconds, start_timeout)
    over = progress is None or progress.done
    phase = Phase.DRAINED if over else Phase.DRAINING
    if as_json:
        _print_phase_json(deployed, phase, before)
    elif progress is None:
        print_text(f"{deployed.name} is already drained")
    elif over:
        then = f"To continue with new records: 'dpstream resume {deployed.name}'"
        if progress.finished:
            then = (
                "Its last epoch is also published. To end the job: 'dpstream undeploy "
                f"{deployed.name}'"
            )
        print_text(
            f"{deployed.name} is drained: open epochs are published, and supervisors stop its "
            f"workers. {then}"
        )
    if not over:
        tell(f"not drained within {timeout}. {_resume_hint(deployed)}")
        raise typer.Exit(FAILED)


def _drain(
    cluster: Cluster, job: DeployedJob, seconds: float | None, start_timeout: float
) -> DrainProgress:
    """Start or join a drain; return its progress when finished, or after `seconds`.

    Missing workers are reported after `start_timeout` seconds: a supervisor may have to start them.
    """
    watch = DrainWatch(cluster, job, start_drain(cluster, job, now()))
    began = time.monotonic()
    printed, tell_after = "", 0.0
    try:
        while not (progress := watch.progress(now())).done:
            waited = time.monotonic() - began
            words = "; ".join(_words(job, progress, missed=waited >= start_timeout))
            if words != printed and waited >= tell_after:
                tell(words)
                printed, tell_after = words, waited + _TELL_SECONDS
            if seconds is not None and waited >= seconds:
                return progress
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        tell(_resume_hint(job))
        raise
    end_drain(cluster, job, now())
    return progress


def _words(job: DeployedJob, progress: DrainProgress, *, missed: bool) -> Iterator[str]:
    if progress.unfinished:
        # If the guarantee relies on the shuffler, the number of records must stay hidden.
        hidden = job.protocol_entry.shuffling is not None
        records = "records" if hidden else plural(progress.unfinished, "record")
        yield f"{records} to process in the reports topics"
        for window in progress.windows[:_EPOCHS_SHOWN]:
            waits = f" without {', '.join(window.waits_for)}" if window.waits_for else ""
            yield f"epoch {job.epochs.dated(window.epoch)} is open{waits}"
    if progress.undecided:
        yield f"{_epochs(progress.undecided)} to finalize"
    if progress.unpublished:
        yield f"{_epochs(progress.unpublished)} to publish"
    if progress.idle and missed:
        yield (
            f"the drain waits for a worker of {', '.join(progress.idle)}. To start one: "
            f"'dpstream run {progress.idle[0]} {job.name}'"
        )


def _epochs(epochs: tuple[int, ...]) -> str:
    if len(epochs) > _EPOCHS_SHOWN:
        return f"{len(epochs):,} epochs from {epochs[0]} to {epochs[-1]}"
    return f"epoch{'s' * (len(epochs) > 1)} {', '.join(map(str, epochs))}"


def _resume_hint(job: DeployedJob) -> str:
    return (
        "The drain continues without this command. To wait again: 'dpstream drain "
        f"{job.name}'. To cancel it: 'dpstream resume {job.name}'"
    )


def _seconds(text: str) -> float:
    try:
        return parse_duration(text).timedelta().total_seconds()
    except ValueError as error:
        raise UsageProblem(f"--timeout: got {text!r}: {error}") from None


def _find(cluster: Cluster, job: str) -> tuple[DeployedJob, Phase]:
    deployed = find_deployed(cluster, name_of(job))
    return deployed, read_jobs(cluster).phase(deployed.name)


def _set(cluster: Cluster, job: DeployedJob, phase: Phase) -> None:
    set_phase(cluster, job, phase, now())


def _print_phase_json(job: DeployedJob, phase: Phase, before: Phase) -> None:
    print_json(
        {
            "job": job.name,
            "deployment": job.deployment,
            "phase": phase,
            "before": before,
        }
    )
