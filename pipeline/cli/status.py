"""``dpstream status``: one screen for each job, once or again and again."""

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
from dpstream.pipeline.cli.output import console, now, say_json, tell
from dpstream.pipeline.cli.status_lines import status_lines
from dpstream.pipeline.kafka.cluster import AccessError, Cluster, ClusterError, NoTopicError
from dpstream.pipeline.kafka.deployed_jobs import DeploymentError, find_deployed, read_jobs
from dpstream.pipeline.kafka.many_topics import ManyTopics
from dpstream.pipeline.operations.status.collection import JobWatch
from dpstream.pipeline.operations.status.facts import JobStatus
from dpstream.pipeline.operations.status.lags import HEARTBEATS_READ, look_ahead

# Gathers what there is to say of every job.
ReadStatuses = Callable[[], "Statuses"]

# Workers write a heartbeat every second.
_SECOND_READING_SECONDS = 2.0
_EVERY = 2.0
# Of one job.
_HEARTBEATS = 5_000
_ALARM = "bold red"
# Seconds after which Kafka is said not to answer; the clients themselves ask on for minutes.
_ANSWER_SECONDS = 3.0


def status(
    job: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="The name of a deployed job. Default: all of them."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.")
    ] = False,
    every: Annotated[
        float | None,
        typer.Option(
            min=0.1, metavar="SECONDS", help="How often --watch looks. Default: every 2 seconds."
        ),
    ] = None,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Say what jobs are doing. Exit code 1 if anything needs a person."""
    if watch and as_json:
        raise UsageProblem("--watch is for people: leave --json out, and call status repeatedly")
    if every is not None and not watch:
        raise UsageProblem("--every is for --watch, which is not there: status looks once")
    with cluster_of(servers, kafka_config) as one, _for_many(one, job) as cluster:
        if watch:
            watch_status(_patient(cluster, job), every or _EVERY)
            return
        read = _patient(cluster, job)
        statuses = read()
        if _clock_may_be_off(statuses.found):
            # Only what is written between two looks tells what time it is.
            time.sleep(_SECOND_READING_SECONDS)
            statuses = read()
    found = statuses.found
    if as_json:
        for each in (*map(_unreadable, statuses.unreadable), *statuses.hidden):
            tell(each)
        say_json(found if job is None else found[0])
    else:
        console().print(Group(*Picture(statuses, now()).lines(current=True)))
    if statuses.unreadable or any(each.problems for each in found):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class Statuses:
    """What was gathered of jobs.

    Attributes:
        found: of those that can be seen.
        unreadable: names of those that were deployed by another version.
        hidden: of those that this login may not see, a sentence on each.
    """

    found: Sequence[JobStatus] = ()
    unreadable: Sequence[str] = ()
    hidden: Sequence[str] = ()


@contextmanager
def _for_many(cluster: Cluster, job: str | None) -> Iterator[Cluster]:
    """The cluster, for questions about one job, or about all of them; one in memory stays it."""
    if job is not None or not isinstance(cluster, Cluster):
        yield cluster
        return
    with ManyTopics(cluster.connection) as many:
        yield many


def _clock_may_be_off(found: Sequence[JobStatus]) -> bool:
    """Whether workers look as if they had stopped, which a clock that is ahead makes of them."""
    workers = [worker for each in found for stage in each.stages for worker in stage.workers]
    unknown = any(each.clock_ahead is None for each in found)
    return unknown and any(not worker.alive for worker in workers)


def status_reader(cluster: Cluster, name: str | None) -> ReadStatuses:
    """Reads one job or all of them, and remembers what it has read of each deployment.

    Of all of them, those that this login may not see are left out, unless it may see none.
    """
    watches: dict[str, tuple[bytes, JobWatch]] = {}

    def read() -> Statuses:
        state = read_jobs(cluster)
        if name is not None and name not in state.jobs:
            find_deployed(cluster, name)
        statuses: list[JobStatus] = []
        hidden: list[str] = []
        refusal: AccessError | None = None
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
                refusal = error
                hidden.append(f"job {each} is not shown: {error.asking_for('page', each)}")
        if refusal is not None and not statuses:
            raise refusal
        return Statuses(statuses, () if name else sorted(state.unreadable), hidden)

    return read


def _patient(cluster: Cluster, job: str | None) -> ReadStatuses:
    """Finds the job the first time that Kafka answers."""
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
    every: float,
    sleep: Callable[[float], None] = time.sleep,
    patience: float = _ANSWER_SECONDS,
) -> None:
    """Show what `read` returns, in place on a terminal, until Ctrl-C.

    A broker that is away is waited for, with the latest picture left standing as what it is: of
    then. That is said after `patience` seconds, while `read` may still be waiting for an answer.

    Raises:
        DeploymentError: the job is not deployed when it is first looked for.
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
        below = "" if latest is None else "; below is how it was then"
        past = () if latest is None else latest.lines(current=False)
        title = Text(f"{what} since {since}{below}", _ALARM)
        show(title, *past, Text(f"{why}; looking on", _ALARM))

    def show_no_answer() -> None:
        if not is_past:
            # A first look at a job that has run for long may take its time.
            asked = "no answer from Kafka" if latest is None else "Kafka does not answer"
            show_past(asked, f"nothing within {patience:g} s")

    try:
        with live if screen.is_terminal else nullcontext():
            while True:
                try:
                    with _after(patience, show_no_answer):
                        statuses = read()
                    latest, since, is_past = Picture(statuses, now()), _clock(), False
                    show(Text(since, "dim"), *latest.lines(current=True))
                except (KafkaError, ClusterError, DeploymentError) as error:
                    if latest is None and isinstance(error, DeploymentError):
                        raise
                    answered = isinstance(error, DeploymentError | NoTopicError)
                    what = "out of date" if answered else "Kafka does not answer"
                    show_past(what, " ".join(str(error).split()) or type(error).__name__)
                sleep(every)
    except KeyboardInterrupt:
        pass


@contextmanager
def _after(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Act once in a thread of its own, if what is done here takes longer than that."""
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
    """What was found at a moment, in milliseconds since 1970."""

    statuses: Statuses
    moment: int

    def lines(self, *, current: bool) -> tuple[RenderableType, ...]:
        """How it looks, or looked."""
        lines: list[RenderableType] = []
        for each in self.statuses.found:
            gap = [Text()] if lines else []
            lines += [*gap, *status_lines(each, self.moment, current=current)]
        for name in self.statuses.unreadable:
            lines.append(Text(f"problem: {_unreadable(name)}", _ALARM))
        lines += [Text(said, "dim") for said in self.statuses.hidden]
        if not lines:
            lines.append(Text("no job is deployed: dpstream deploy JOBFILE deploys one"))
        return tuple(lines)


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _unreadable(name: str) -> str:
    return f"job {name} was deployed by another version of dpstream"
