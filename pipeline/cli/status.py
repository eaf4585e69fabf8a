"""``dpstream status``: one screen for each job."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import AsJson, KafkaConfig, Servers, cluster_of, find_job
from pipeline.cli.output import duration, instant, now, number, say, say_json, say_table

if TYPE_CHECKING:
    from pipeline.status import JobStatus, StageStatus


def status(
    job: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="The name of a deployed job. Default: all of them."),
    ] = None,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Say what a job is doing. Exit code 1 if something is wrong."""
    from pipeline.deployments import deployed_jobs
    from pipeline.status import gather_status

    with cluster_of(servers, kafka_config) as cluster:
        jobs = deployed_jobs(cluster) if job is None else {job: find_job(cluster, job)}
        found = [gather_status(cluster, jobs[name], now()) for name in sorted(jobs)]
    if as_json:
        say_json([each.to_json() for each in found] if job is None else found[0].to_json())
    elif not found:
        say("no job is deployed: dpstream deploy JOBFILE deploys one")
    for index, each in enumerate(() if as_json else found):
        if index:
            say()
        _show_status(each)
    if any(each.problems for each in found):
        raise typer.Exit(1)


def _show_status(status: JobStatus) -> None:
    moment = now()
    age = duration((moment - status.deployed_at) / 1000)
    say(status.job, "bold")
    say(f"deployment {status.deployment[:8]}, since {instant(status.deployed_at)} ({age} ago)")
    say(_publication(status, moment))
    say()
    say_table(
        ["stage", "worker", "heard", "partitions", ">records/s", ">reports/s", ">lag"],
        chain.from_iterable(map(_stage_rows, status.stages)),
    )
    windows = [
        window
        for stage in status.stages
        for worker in stage.workers
        if worker.alive
        for window in worker.windows
    ]
    if windows:
        say()
        say_table(
            ["open window", ">reports so far", "waits for"],
            (
                (
                    f"epoch {window.epoch}",
                    number(window.reports),
                    ", ".join(window.waits_for) or "-",
                )
                for window in sorted(windows, key=lambda window: window.epoch)
            ),
        )
    if status.dead_letters:
        say()
        listed = ", ".join(f"{count:,} {reason}" for reason, count in status.dead_letters.items())
        say(f"dead letters: {listed}")
    say()
    for problem in status.problems:
        say(f"problem: {problem}", "bold red")
    if not status.problems:
        say("all is well", "green")


def _publication(status: JobStatus, moment: int) -> str:
    record = status.published
    if record is None:
        last = "" if status.last_epoch is None else f" of {status.last_epoch:,}"
        return f"no epoch{last} is published yet"
    age = duration(max(0, moment - record.closed_at) / 1000)
    silent = record.headline is None or record.headline.value is None
    fate = f"{record.fate}, " if silent else ""
    return f"{status.position}, closed {age} ago: {fate}{status.headline}"


def _stage_rows(stage: StageStatus) -> Iterator[tuple[str, ...]]:
    lag = number(stage.lag)
    if not stage.workers:
        yield stage.stage, "none", "-", "-", "-", "-", lag
    for worker in stage.workers:
        yield (
            stage.stage,
            worker.worker,
            f"{duration(worker.age)} ago" if worker.alive else f"gone {duration(worker.age)}",
            " ".join(map(str, worker.partitions)) or "-",
            number(worker.records_per_second) if worker.alive else "-",
            number(worker.reports_per_second) if worker.alive else "-",
            lag,
        )
        lag = ""
