"""``dpstream status``: one screen for each job, once or again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from pipeline.cli.errors import UsageProblem
from pipeline.cli.options import AsJson, KafkaConfig, Servers, cluster_of, find_job
from pipeline.cli.output import console, now, say_json, tell
from pipeline.cli.status_lines import status_lines

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pipeline.cluster import Cluster
    from pipeline.status import JobStatus, JobWatch

# Gathers what there is to say: of every job, and names of jobs that nobody here can read.
Look = Callable[[], tuple[Sequence["JobStatus"], Sequence[str]]]


def status(
    job: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="The name of a deployed job. Default: all of them."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.")
    ] = False,
    every: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How often --watch looks.")
    ] = 2.0,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Say what jobs are doing. Exit code 1 if anything needs a person."""
    if watch and as_json:
        raise UsageProblem("--watch is for people: leave --json out, and call status repeatedly")
    with cluster_of(servers, kafka_config) as cluster:
        name = None if job is None else find_job(cluster, job).name
        look = looker(cluster, name)
        if watch:
            watch_status(look, every)
            return
        found, unreadable = look()
    if as_json:
        for each in unreadable:
            tell(_unreadable(each))
        say_json([each.to_json() for each in found] if job is None else found[0].to_json())
    else:
        console().print(Group(*_picture(found, unreadable)))
    if unreadable or any(each.problems for each in found):
        raise typer.Exit(1)


def looker(cluster: Cluster, name: str | None) -> Look:
    """Looks at one job or all of them, and remembers what it has read of each deployment."""
    from pipeline.deployments import find_deployed, read_jobs
    from pipeline.status import JobWatch

    watches: dict[str, tuple[bytes, JobWatch]] = {}

    def look() -> tuple[Sequence[JobStatus], Sequence[str]]:
        state = read_jobs(cluster)
        if name is not None and name not in state.jobs:
            find_deployed(cluster, name)
        found = []
        for each in sorted(state.jobs) if name is None else (name,):
            record = state.jobs[each].to_bytes()
            known = watches.get(each)
            if known is None or known[0] != record:
                known = watches[each] = record, JobWatch(cluster, state.jobs[each])
            found.append(known[1].look(now(), state.phase(each)))
        return found, () if name else sorted(state.unreadable)

    return look


def watch_status(look: Look, every: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """Show what `look` finds, in place on a terminal, until Ctrl-C.

    A broker that is away is waited for, with the latest picture left standing.
    """
    from kafka.errors import KafkaError

    from pipeline.cluster import ClusterError
    from pipeline.deployments import DeploymentError

    screen = console()
    picture: tuple[RenderableType, ...] = ()
    try:
        live = Live(console=screen, auto_refresh=False, vertical_overflow="visible")
        with live if screen.is_terminal else nullcontext():
            while True:
                try:
                    picture = _picture(*look())
                    trouble = ""
                except (KafkaError, ClusterError, DeploymentError) as error:
                    trouble = f"{' '.join(str(error).split()) or type(error).__name__}; looking on"
                stamp = Text(time.strftime("%H:%M:%S"), "dim")
                shown = Group(stamp, *picture, *([Text(trouble, "bold red")] if trouble else ()))
                if screen.is_terminal:
                    live.update(shown, refresh=True)
                else:
                    screen.print(shown)
                sleep(every)
    except KeyboardInterrupt:
        pass


def _picture(found: Sequence[JobStatus], unreadable: Sequence[str]) -> tuple[RenderableType, ...]:
    lines: list[RenderableType] = []
    for each in found:
        lines += [*([Text()] if lines else []), *status_lines(each, now())]
    for name in unreadable:
        lines.append(Text(f"problem: {_unreadable(name)}", "bold red"))
    if not lines:
        lines.append(Text("no job is deployed: dpstream deploy JOBFILE deploys one"))
    return tuple(lines)


def _unreadable(name: str) -> str:
    return f"job {name} was deployed by another version of dpstream"
