"""Run jobs from deployment to the last estimate, in separate processes."""

from __future__ import annotations

import time
import webbrowser
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from queue import Empty, Queue
from urllib.parse import urlencode, urlsplit

from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection, find_cluster
from dpstream.pipeline.kafka.local_kafka import LocalKafkaError
from dpstream.pipeline.operations.forks import Forks
from dpstream.pipeline.operations.losses import check_losses
from dpstream.pipeline.operations.processes import dpstream_command
from dpstream.pipeline.operations.restarted_processes import RestartedProcesses
from dpstream.pipeline.operations.signals import Signals
from dpstream.pipeline.operations.up.job_run import JobEvent, JobInput, JobRun, UpSettings
from dpstream.pipeline.operations.up.managed_broker import ManagedBroker, Message
from dpstream.pipeline.operations.up.outcome import Outcome
from dpstream.pipeline.operations.up.screen import Screen
from dpstream.pipeline.state import FolderInUse, FolderLock, state_home

PAGE_SAYS = "live page: "
"""Prefix of the address that ``dpstream serve`` prints once the page is available."""

_WAIT_SECONDS = 0.1

MODULES = (
    "dpstream.pipeline.cli.run",
    "dpstream.pipeline.kafka.workers.worker",
    "dpstream.pipeline.cli.produce",
)

Finished = Callable[[Sequence[Outcome], str | None], None]
"""Function called with the outcomes, in the order of jobs, and any lingering page's address."""


def run_up(settings: UpSettings, screen: Screen, finished: Finished) -> None:
    """Run jobs to their end; no process is left when this returns or raises.

    Raises JobError, InputError or FolderInUse (if another run uses the state folder) before
    anything is started, and UnconfirmedLossError before anything is deployed.
    """
    given = [
        # The jobs share one input: print its warnings only once.
        JobInput.load(file, settings, screen.print_message if index == 0 else lambda sentence: None)
        for index, file in enumerate(settings.job_files)
    ]
    with _only_run(given[0].job.name) as lock, Signals() as signals:
        _Run(settings, given, screen, signals).run(finished, lock.release)


def _only_run(name: str) -> FolderLock:
    """Lock out other runs, whose workers would use the same folders."""
    try:
        return FolderLock(state_home() / "up", f"dpstream up of {name}")
    except FolderInUse as error:
        raise FolderInUse(f"{error} (set DPSTREAM_HOME=FOLDER)") from None


def address_of(port: int, jobs: Iterable[str]) -> str:
    """Return the URL of the page that shows all jobs.

    >>> address_of(8765, ["students", "students-again", "teachers"])
    'http://127.0.0.1:8765/?job=students&with=students-again,teachers'
    """
    first, *others = jobs
    shown = urlencode({"job": first} | ({"with": ",".join(others)} if others else {}), safe=",")
    return f"http://127.0.0.1:{port}/?{shown}"


class _Run:
    """One run: `run` makes all decisions, other threads post events, and signals are recorded."""

    def __init__(
        self, settings: UpSettings, given: Sequence[JobInput], screen: Screen, signals: Signals
    ) -> None:
        self._settings = settings
        self._given = given
        self._screen = screen
        self._signals = signals
        self._forks = Forks(MODULES, state_home() / "up" / "forker.log")
        # A string is a line of output from the process that serves the page.
        self._events: Queue[tuple[JobRun, JobEvent] | Message | str] = Queue()
        self._jobs = [
            JobRun(
                each,
                lambda job, event: self._events.put((job, event)),
                screen.print_message,
                self._forks.wait,
            )
            for each in given
        ]
        self._connection: Connection | None = None
        self._broker: ManagedBroker | None = None
        self._page: str | None = None
        self._serving = False
        self._activity = "starting"

    def run(self, finished: Finished, over: Callable[[], None]) -> None:
        self._drop_secrets()
        try:
            with ExitStack() as stack:
                with self._screen:
                    stack.enter_context(self._forks)
                    self._begin(stack)
                    pages = stack.enter_context(self._processes())
                    outcomes = self._work(pages)
                    staying = self._page if self._settings.linger else None
                    self._activity = "stopping" if staying is None else ""
                    self._show()
                    if staying is None:
                        stack.close()
                over()
                finished(outcomes, staying)
                while staying is not None and not self._signals.received:
                    time.sleep(_WAIT_SECONDS)
                    self._check(pages)
        finally:
            self._drop_secrets()

    def _begin(self, stack: ExitStack) -> None:
        settings = self._settings
        if settings.servers or settings.kafka_config:
            self._connect(find_cluster(settings.servers, settings.kafka_config))
        else:
            broker = ManagedBroker(self._events.put, hurry=self._signals.hurry)
            self._broker = stack.enter_context(broker)

    def _work(self, pages: RestartedProcesses) -> list[Outcome]:
        settings = self._settings
        with ExitStack() as stack:
            workers = stack.enter_context(self._processes())
            for job in self._jobs:
                stack.callback(job.stop_observing)
            # With `linger`, also wait until the page is up.
            while not all(job.complete for job in self._jobs) or (
                settings.linger and self._page is None
            ):
                self._signals.check()
                self._check(workers, pages)
                self._take_events(workers)
                self._serve_page(pages)
                for job in self._jobs:
                    job.notice_silence()
                self._show()
            return [job.outcome() for job in self._jobs]

    def _processes(self) -> RestartedProcesses:
        return RestartedProcesses(
            self._screen.print_message, hurry=self._signals.hurry, start=self._forks.start
        )

    def _check(self, *processes: RestartedProcesses) -> None:
        for each in (*processes, *([] if self._broker is None else [self._broker])):
            each.check()

    def _connect(self, connection: Connection) -> None:
        for warning in connection.warnings:
            self._screen.print_message(warning)
        if not self._settings.agreed:
            self._activity = "checking the deployed jobs"
            self._show()
            with Cluster(connection) as cluster:
                check_losses(cluster, [each.job for each in self._given])
        self._connection = connection
        self._activity = ""
        for job in self._jobs:
            job.begin(connection)

    def _take_events(self, workers: RestartedProcesses) -> None:
        timeout = _WAIT_SECONDS
        while True:
            try:
                event = self._events.get(timeout=timeout)
            except Empty:
                return
            timeout = 0.0
            if isinstance(event, tuple):
                job, what = event
                job.take(what, workers)
            elif isinstance(event, str):
                self._show_page(event)
            else:
                self._hear(event)

    def _serve_page(self, pages: RestartedProcesses) -> None:
        deployed = all(job.deployed is not None for job in self._jobs)
        if self._serving or not self._settings.page or self._connection is None or not deployed:
            return
        self._serving = True
        command = ["serve"]
        for job in self._jobs:
            ground_truth = f"{job.job.name}={self._settings.input}"
            command += [job.job.name, "--ground-truth", ground_truth]
        command += self._settings.row_options
        pages.start(
            "serve",
            dpstream_command(*command, *self._connection.arguments()),
            state_home() / "up" / "serve.log",
            on_line=self._events.put,
        )

    def _show_page(self, line: str) -> None:
        port = urlsplit(line.removeprefix(PAGE_SAYS)).port if line.startswith(PAGE_SAYS) else None
        if port is None or self._page is not None:
            return
        self._page = address_of(port, [job.job.name for job in self._jobs])
        self._screen.print_message(f"watch the jobs in a browser: {self._page}")
        if self._settings.browser:
            webbrowser.open(self._page)

    def _hear(self, message: Message) -> None:
        match message["kind"]:
            case "failed":
                raise LocalKafkaError(message["text"])
            case "ready" if self._connection is None:
                self._connect(Connection((message["text"],)))
            case "progress" if self._connection is None:
                self._activity = message["text"]
            case "progress":
                self._screen.print_message(message["text"])

    def _show(self) -> None:
        first, *others = self._jobs
        self._screen.show(first.view(self._activity), *(job.view() for job in others))

    def _drop_secrets(self) -> None:
        for job in self._jobs:
            job.forget_secrets()
