"""Runs jobs from their deployment to their last estimate, in processes of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, Queue

from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection, find_cluster
from dpstream.pipeline.kafka.local_kafka import LocalKafkaError
from dpstream.pipeline.operations.forks import Forks
from dpstream.pipeline.operations.losses import check_losses
from dpstream.pipeline.operations.restarted_processes import RestartedProcesses
from dpstream.pipeline.operations.signals import Signals
from dpstream.pipeline.operations.up.job_run import JobEvent, JobInput, JobRun
from dpstream.pipeline.operations.up.keeper import KeptBroker, Message
from dpstream.pipeline.operations.up.outcome import Outcome
from dpstream.pipeline.operations.up.page import Page
from dpstream.pipeline.operations.up.screen import Part, Screen
from dpstream.pipeline.state import FolderInUse, FolderLock, state_home

_WAIT_SECONDS = 0.1

MODULES = (
    "dpstream.pipeline.cli.run",
    "dpstream.pipeline.kafka.workers.worker",
    "dpstream.pipeline.cli.produce",
)
"""What workers and producers import."""

MODULES_OF_THE_PAGE = ("dpstream.pipeline.cli.serve",)
"""What the page's process imports."""


@dataclass(frozen=True, slots=True)
class UpSettings:
    """What is to be run, and where.

    Attributes:
        job_files: the jobs; all have the same input.
        input: a file.
        servers: of a cluster of one's own; without it and `kafka_config`, the local broker.
        kafka_config: a client.properties.
        keep_broker: leave the local broker running even if it was started for this run.
        rate: at most so many epochs per second.
        users: the file of a roster.
        to_epoch: the last epoch the input is about; None for the job's.
        skip_bad_rows: go on without them.
        page: serve the live page.
        browser: open it.
        linger: leave the page after the last estimate, until a signal comes.
        agreed: whether deployments may end, and people be charged again, by what is deployed.
        adapted: What is deployed of the job of a file.
    """

    job_files: tuple[Path, ...]
    input: Path
    servers: str | None = None
    kafka_config: Path | None = None
    keep_broker: bool = False
    rate: float | None = None
    users: Path | None = None
    to_epoch: int | None = None
    skip_bad_rows: bool = False
    page: bool = False
    browser: bool = False
    linger: bool = False
    agreed: bool = True
    adapted: Callable[[Job], Job] = field(default=lambda job: job)


Finished = Callable[[Sequence[Outcome], str | None], None]
"""Is told what has come of the jobs, in their order, and the address of the page if there is one
that stays."""


def run_up(settings: UpSettings, screen: Screen, finished: Finished) -> None:
    """Run jobs to their end. Whatever happens, no process is left when this returns or raises.

    Raises:
        JobError: a job file is wrong; nothing was started, as after the next two.
        InputError: the input is wrong.
        FolderInUse: another run uses the state folder.
        SignalledError: a signal has come before the end.
        ProcessError: a process has failed again and again.
        LocalKafkaError: the local broker cannot be had.
        ClusterError: the cluster cannot be used.
        UnaskedError: it is not agreed to what would be lost or charged; nothing was deployed.
    """
    given = [
        JobInput.load(
            file,
            settings.input,
            roster=settings.users,
            to_epoch=settings.to_epoch,
            skip_bad_rows=settings.skip_bad_rows,
            adapted=settings.adapted,
            # The jobs have one input, and it need not be spoken of twice.
            say=screen.say if index == 0 else lambda sentence: None,
        )
        for index, file in enumerate(settings.job_files)
    ]
    with _only_run(given[0].job.name) as lock, Signals() as signals:
        _Run(settings, given, screen, signals).run(finished, lock.release)


def _only_run(name: str) -> FolderLock:
    """Two runs would share workers' folders; a page that stays open is none any more."""
    try:
        return FolderLock(state_home() / "up", f"dpstream up of {name}")
    except FolderInUse as error:
        raise FolderInUse(f"{error} (DPSTREAM_HOME=FOLDER does)") from None


class _Run:
    """One run. Everything happens in `run`; other threads post events, signals are only noted."""

    def __init__(
        self, settings: UpSettings, given: Sequence[JobInput], screen: Screen, signals: Signals
    ) -> None:
        self._settings = settings
        self._given = given
        self._screen = screen
        self._signals = signals
        self._forks = Forks(
            (*MODULES, *(MODULES_OF_THE_PAGE if settings.page else ())),
            state_home() / "up" / "forker.log",
        )
        self._events: Queue[tuple[JobRun, JobEvent] | Message] = Queue()
        self._jobs = [
            JobRun(
                each,
                settings.rate,
                lambda job, event: self._events.put((job, event)),
                screen.say,
                self._forks.wait,
            )
            for each in given
        ]
        self._connection: Connection | None = None
        self._page: Page | None = None
        self._activity = "starting"

    def run(self, finished: Finished, over: Callable[[], None]) -> None:
        self._forget_secrets()
        try:
            with ExitStack() as stack:
                with self._screen:
                    stack.enter_context(self._forks)
                    broker = self._begin(stack)
                    pages = stack.enter_context(self._processes())
                    outcomes = self._work(broker, pages)
                    staying = self._page if self._settings.linger else None
                    self._activity = "stopping" if staying is None else ""
                    self._show()
                    if staying is None:
                        stack.close()
                over()
                finished(outcomes, None if staying is None else staying.address)
                while staying is not None and not self._signals.received:
                    time.sleep(_WAIT_SECONDS)
                    self._check(broker, pages)
        finally:
            self._forget_secrets()

    def _work(self, broker: KeptBroker | None, pages: RestartedProcesses) -> list[Outcome]:
        with ExitStack() as stack:
            workers = stack.enter_context(self._processes())
            for job in self._jobs:
                stack.callback(job.stop_observing)
            while not all(job.complete for job in self._jobs):
                self._signals.check()
                self._check(broker, workers, pages)
                self._take_events(workers, pages)
                for job in self._jobs:
                    job.notice_silence()
                self._show()
            return [job.outcome() for job in self._jobs]

    def _processes(self) -> RestartedProcesses:
        return RestartedProcesses(
            self._screen.say, hurry=self._signals.hurry, start=self._forks.start
        )

    def _begin(self, stack: ExitStack) -> KeptBroker | None:
        settings = self._settings
        if settings.servers or settings.kafka_config:
            self._connect(find_cluster(settings.servers, settings.kafka_config))
            return None
        return stack.enter_context(
            KeptBroker(
                self._events.put,
                keep=settings.keep_broker,
                brief=not settings.keep_broker,
                hurry=self._signals.hurry,
            )
        )

    def _check(self, *keepers: KeptBroker | RestartedProcesses | None) -> None:
        for keeper in keepers:
            if keeper is not None:
                keeper.check()

    def _connect(self, connection: Connection) -> None:
        for notice in connection.notices:
            self._screen.say(notice)
        if not self._settings.agreed:
            self._check_losses(connection)
        self._connection = connection
        self._activity = ""
        for job in self._jobs:
            job.begin(connection)

    def _check_losses(self, connection: Connection) -> None:
        self._activity = "seeing what is deployed"
        self._show()
        with Cluster(connection) as cluster:
            check_losses(cluster, [each.job for each in self._given])

    def _take_events(self, workers: RestartedProcesses, pages: RestartedProcesses) -> None:
        timeout = _WAIT_SECONDS
        while True:
            try:
                event = self._events.get(timeout=timeout)
            except Empty:
                break
            timeout = 0.0
            if isinstance(event, tuple):
                job, what = event
                job.take(what, workers)
            else:
                self._hear(event)
        self._show_page(pages)

    def _show_page(self, pages: RestartedProcesses) -> None:
        settings, connection = self._settings, self._connection
        if not settings.page or connection is None:
            return
        if self._page is None and all(job.deployed for job in self._jobs):
            truths = {
                each.job.name: None if each.job.domain.measure else each.path
                for each in self._given
            }
            self._page = Page(connection, truths, pages)
        elif self._page is not None and self._page.just_ready():
            self._screen.say(f"watch the jobs in a browser: {self._page.address}")
            if settings.browser:
                self._page.open_browser()

    def _hear(self, message: Message) -> None:
        match message["kind"]:
            case "failed":
                raise LocalKafkaError(message["text"])
            case "ready" if self._connection is None:
                self._connect(Connection((message["text"],)))
            case "progress" if self._connection is None:
                self._activity = message["text"]
            case "progress":
                self._screen.say(message["text"])

    def _show(self) -> None:
        kafka = Part("kafka", "starting")
        if self._connection is not None:
            kafka = Part("kafka", "running", self._connection.bootstrap_servers[0])
        first, *others = self._jobs
        views = [first.view(kafka), *(job.view() for job in others)]
        if self._activity:
            views[0] = replace(views[0], activity=self._activity)
        self._screen.show(*views)

    def _forget_secrets(self) -> None:
        for job in self._jobs:
            job.forget_secrets()
