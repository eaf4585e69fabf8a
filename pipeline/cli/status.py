"""The command ``dpstream status``: one screen for each job, once or repeatedly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Annotated

import typer
from kafka.errors import KafkaError
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from dpstream.pipeline.cli.cluster_and_jobs import cluster_of, find_job
from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.options import AsJson, KafkaConfig, Servers
from dpstream.pipeline.cli.output import console, now, print_json, tell
from dpstream.pipeline.cli.status_lines import status_lines
from dpstream.pipeline.kafka.cluster import AccessError, Cluster, ClusterError, NoTopicError
from dpstream.pipeline.kafka.deployed_jobs import DeploymentError, find_deployed, read_jobs
from dpstream.pipeline.kafka.many_topics import ManyTopics
from dpstream.pipeline.operations.status.collection import JobWatch
from dpstream.pipeline.operations.status.facts import JobStatus
from dpstream.pipeline.operations.status.lags import HEARTBEATS_READ, look_ahead

# Reads the status of every job.
ReadStatuses = Callable[[], "Statuses"]

# Workers write a heartbeat every second.
_SECOND_READING_SECONDS = 2.0
_EVERY = 2.0
# Maximum number of heartbeats to read for a single job.
_HEARTBEATS = 5_000
_ALARM = "bold red"
# Seconds without an answer until Kafka is reported as down; the clients themselves retry for
# minutes.
_ANSWER_SECONDS = 3.0


def status(
    job: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="Name of a deployed job. Default: all jobs."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    interval: Annotated[
        float | None,
        typer.Option(
            min=0.1, metavar="SECONDS", help="(with --watch) Refresh interval. Default: 2 seconds."
        ),
    ] = None,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show job status. Exits with 1 if any job requires action."""
    if watch and as_json:
        raise UsageProblem(
            "--watch prints only tables: remove --json, or remove --watch and repeat the command"
        )
    if interval is not None and not watch:
        raise UsageProblem("--interval requires --watch")
    with cluster_of(servers, kafka_config) as one, _for_many(one, job) as cluster:
        if watch:
            watch_status(_read_when_answered(cluster, job), interval or _EVERY)
            return
        read = _read_when_answered(cluster, job)
        statuses = read()
        if _clock_may_be_off(statuses.found):
            # Only records written between two readings reveal the broker's time.
            time.sleep(_SECOND_READING_SECONDS)
            statuses = read()
    found = statuses.found
    if as_json:
        for each in (*map(_unreadable, statuses.unreadable), *statuses.hidden):
            tell(each)
        print_json(found if job is None else found[0])
    else:
        console().print(Group(*Picture(statuses, now()).lines(current=True)))
    if statuses.unreadable or any(each.issues for each in found):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class Statuses:
    """Status of the visible jobs, the names of unreadable jobs, and a sentence on each hidden job.

    Unreadable jobs were deployed by another version; this login has no access to hidden jobs.
    """

    found: Sequence[JobStatus] = ()
    unreadable: Sequence[str] = ()
    hidden: Sequence[str] = ()


@contextmanager
def _for_many(cluster: Cluster, job: str | None) -> Iterator[Cluster]:
    """Yield a connection to read one job or all jobs; an in-memory cluster is used unchanged."""
    if job is not None or not isinstance(cluster, Cluster):
        yield cluster
        return
    with ManyTopics(cluster.connection) as many:
        yield many


def _clock_may_be_off(found: Sequence[JobStatus]) -> bool:
    """Return whether workers might only seem stopped because the local clock is ahead."""
    workers = [worker for each in found for stage in each.stages for worker in stage.workers]
    unknown = any(each.clock_ahead is None for each in found)
    return unknown and any(not worker.up for worker in workers)


def status_reader(cluster: Cluster, name: str | None) -> ReadStatuses:
    """Return a status reader for one job or all, which caches what it reads about each deployment.

    When reading all jobs, hides the jobs that this login cannot read, unless it can read none.
    """
    watches: dict[str, tuple[bytes, JobWatch]] = {}

    def read() -> Statuses:
        state = read_jobs(cluster)
        if name is not None and name not in state.jobs:
            find_deployed(cluster, name)
        statuses: list[JobStatus] = []
        hidden: list[str] = []
        rejection: AccessError | None = None
        many = cluster if isinstance(cluster, ManyTopics) else None
        heartbeats = _HEARTBEATS if many is None else HEARTBEATS_READ
        if many is not None:
            look_ahead(many, state.jobs.values())
        for each in sorted(state.jobs) if name is None else (name,):
            record = state.jobs[each].to_bytes()
            known = watches.get(each)
            if known is None or known[0] != record:
                watch = JobWatch(cluster, state.jobs[each], heartbeats=heartbeats)
                known = watches[each] = record, watch
            try:
                statuses.append(known[1].status(now(), state.phase(each)))
            except AccessError as error:
                if name is not None:
                    raise
                rejection = error
                hidden.append(f"job {each} is not shown: {error.asking_for('page', each)}")
        if rejection is not None and not statuses:
            raise rejection
        return Statuses(statuses, () if name else sorted(state.unreadable), hidden)

    return read


def _read_when_answered(cluster: Cluster, job: str | None) -> ReadStatuses:
    readers: list[ReadStatuses] = []

    def read() -> Statuses:
        if not readers:
            readers.append(
                status_reader(cluster, None if job is None else find_job(cluster, job).name)
            )
        return readers[0]()

    return read


def watch_status(
    read: ReadStatuses,
    interval: float,
    sleep: Callable[[float], None] = time.sleep,
    timeout: float = _ANSWER_SECONDS,
) -> None:
    """Show what `read` returns, in place on a terminal, until Ctrl-C.

    While a broker is unreachable, the latest picture stays visible, marked as outdated. The outage
    is shown after `timeout` seconds, even while `read` is still waiting for a response. Raises
    `DeploymentError` if the job is not deployed when first read.
    """
    screen = console()
    live = Live(console=screen, auto_refresh=False, vertical_overflow="visible")
    latest: Picture | None = None
    since, is_past = _clock(), False

    def show(*lines: RenderableType) -> None:
        if screen.is_terminal:
            live.update(Group(*lines), refresh=True)
        else:
            screen.print(Group(*lines))

    def show_past(what: str, why: str) -> None:
        nonlocal is_past
        is_past = True
        below = "" if latest is None else "; the last known status follows"
        past = () if latest is None else latest.lines(current=False)
        title = Text(f"{what} since {since}{below}", _ALARM)
        show(title, *past, Text(f"{why}; still trying", _ALARM))

    def show_no_answer() -> None:
        if not is_past:
            # The first reading of an old job may take a while.
            requested = "no answer from Kafka" if latest is None else "Kafka does not answer"
            show_past(requested, f"nothing within {timeout:g} s")

    try:
        with live if screen.is_terminal else nullcontext():
            while True:
                try:
                    with _after(timeout, show_no_answer):
                        statuses = read()
                    latest, since, is_past = Picture(statuses, now()), _clock(), False
                    show(Text(since, "dim"), *latest.lines(current=True))
                except (KafkaError, ClusterError, DeploymentError) as error:
                    if latest is None and isinstance(error, DeploymentError):
                        raise
                    answered = isinstance(error, DeploymentError | NoTopicError)
                    what = "out of date" if answered else "Kafka does not answer"
                    show_past(what, " ".join(str(error).split()) or type(error).__name__)
                sleep(interval)
    except KeyboardInterrupt:
        pass


@contextmanager
def _after(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` once, in a thread of its own, if the block takes longer than `seconds`."""
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


@dataclass(frozen=True, slots=True)
class Picture:
    statuses: Statuses
    moment: int

    def lines(self, *, current: bool) -> tuple[RenderableType, ...]:
        lines: list[RenderableType] = []
        for each in self.statuses.found:
            gap = [Text()] if lines else []
            lines += [*gap, *status_lines(each, self.moment, current=current)]
        for name in self.statuses.unreadable:
            lines.append(Text(f"issue: {_unreadable(name)}", _ALARM))
        lines += [Text(line, "dim") for line in self.statuses.hidden]
        if not lines:
            lines.append(Text("no job is deployed. To deploy one: 'dpstream deploy JOBFILE'"))
        return tuple(lines)


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _unreadable(name: str) -> str:
    return f"job {name} was deployed by an incompatible version of dpstream"
