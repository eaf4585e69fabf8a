"""One job of a run: deployed, worked on in processes of its own, and observed to its last epoch."""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from kafka.errors import KafkaError

from dpstream.pipeline.devices.item_log import ValueLog
from dpstream.pipeline.devices.producer_input import (
    enrolment,
    input_notices,
    load_input,
    value_notices,
)
from dpstream.pipeline.devices.truths import Truths
from dpstream.pipeline.devices.users import load_users
from dpstream.pipeline.jobs.deployed_job import IDENTIFIER_BYTES, DeployedJob
from dpstream.pipeline.jobs.job_files import Job, load_job
from dpstream.pipeline.kafka.cluster import ClusterError
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.deployed_jobs import check_has_producers
from dpstream.pipeline.operations.processes import dpstream_command
from dpstream.pipeline.operations.restarted_processes import Child, RestartedProcesses
from dpstream.pipeline.operations.up.observation import Seen, begin, look_back, observe
from dpstream.pipeline.operations.up.outcome import Outcome
from dpstream.pipeline.operations.up.progress import Progress
from dpstream.pipeline.operations.up.screen import Part, ScreenState
from dpstream.pipeline.results.smoothing import SmoothedHorizon
from dpstream.pipeline.stages.topic_uses import stages_of
from dpstream.pipeline.state import producer_folder, worker_folder

WORKER = "up"
"""The name of the producer, and of the worker of each stage."""

PRODUCER = "produce"
_SILENCE_SECONDS = 30.0
_LOOK_BACK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class JobInput:
    """A job and what its devices hold, read before anything is started.

    Attributes:
        job: as its file says.
        path: the file of the input.
        users: in the input.
        truths: of the input.
        roster: the file of a roster.
        to_epoch: the last epoch the input is about; None for the job's.
        skip_bad_rows: go on without them.
        values: the input; None where it is not known.
    """

    job: Job
    path: Path
    users: int
    truths: Truths
    roster: Path | None
    to_epoch: int | None
    skip_bad_rows: bool
    values: ValueLog | None = None

    @classmethod
    def load(
        cls,
        job_file: Path,
        path: Path,
        *,
        roster: Path | None,
        to_epoch: int | None,
        skip_bad_rows: bool,
        say: Callable[[str], None],
        adapted: Callable[[Job], Job] = lambda job: job,
    ) -> JobInput:
        """Read a job file and its input; what is worth knowing is said.

        What is deployed is what `adapted` makes of the job: so producer and page read it alike.

        Raises:
            JobError: the job file is wrong.
            InputError: the input, or the roster, is wrong.
        """
        job = adapted(load_job(job_file))
        check_has_producers(job)
        values = load_input(
            job,
            path,
            users=None if roster is None else load_users(roster),
            to_epoch=to_epoch,
            skip_bad_rows=skip_bad_rows,
        )
        notices = *input_notices(values), enrolment(values), *value_notices(values, job.domain)
        for notice in notices:
            say(notice)
        truths = values.truths(job.domain)
        users = len(values.users)
        return cls(job, path, users, truths, roster, to_epoch, skip_bad_rows, values)


JobEvent = DeployedJob | list[Seen] | Exception
"""What the thread of a job tells: that it is deployed, what its topics hold, what has failed."""


class JobRun:
    """A job on its way. Its events come from a thread; everything else happens in the caller's.

    Args:
        given: the job and its input.
        rate: at most so many epochs per second.
        post: is given every event, in the thread.
        say: tells something that shall stay to be read.
        prepare: waits, in the thread, until processes can be started.
    """

    def __init__(
        self,
        given: JobInput,
        rate: float | None,
        post: Callable[[JobRun, JobEvent], None],
        say: Callable[[str], None],
        prepare: Callable[[], None],
    ) -> None:
        self.job = given.job
        self._given = given
        self._rate = rate
        self._post = post
        self._say = say
        self._prepare = prepare
        self._over = threading.Event()
        self._observer: threading.Thread | None = None
        self._connection: Connection | None = None
        self._children: dict[str, Child] = {}
        self._progress: Progress | None = None
        self._title = given.job.name
        self._activity = ""
        self._noise_key = worker_folder(given.job.name, "shuffle", WORKER) / "noise-key"
        self._deployed_at = self._heard_at = time.monotonic()

    @property
    def deployed(self) -> bool:
        """Whether it is."""
        return self._progress is not None

    @property
    def complete(self) -> bool:
        """Whether the last epoch is published."""
        return self._progress is not None and self._progress.complete

    def begin(self, connection: Connection) -> None:
        """Deploy the job and observe it."""
        self._connection = connection
        self._activity = "deploying the job"
        self._observer = threading.Thread(target=self._observe, args=(connection,), daemon=True)
        self._observer.start()

    def take(self, event: JobEvent, workers: RestartedProcesses) -> None:
        """Take in an event that was posted; raises one that is an exception."""
        match event:
            case Exception():
                raise event
            case DeployedJob():
                self._start_children(event, workers)
            case list():
                self._take_in(event)

    def notice_silence(self) -> None:
        """Say where to look if nothing has come for long."""
        waiting = self._progress is not None and not self.complete
        if not waiting or time.monotonic() < self._heard_at + _SILENCE_SECONDS:
            return
        self._heard_at = time.monotonic()
        logs = worker_folder(self.job.name, "STAGE", WORKER) / "log"
        self._say(f"no estimate for {_SILENCE_SECONDS:.0f} s; what the stages say is in {logs}")

    def outcome(self) -> Outcome:
        """What has come of a complete run."""
        assert self._progress is not None
        rows = self._progress.rows()
        return Outcome(
            job=self._progress.job,
            rows=rows,
            users=self._given.users,
            seconds=self._heard_at - self._deployed_at,
            reports=self._progress.reports,
            values=self._given.values,
            smoothed=self._look_back(self._progress.job, rows[-1].epoch),
        )

    def view(self, *more: Part) -> ScreenState:
        """The present state, after other parts."""
        return ScreenState(
            title=self._title,
            activity=self._activity,
            parts=(*more, *map(self._part, self._children)),
            population=self._given.users,
            progress=self._progress,
        )

    def stop_observing(self) -> None:
        """Read no further."""
        self._over.set()
        if self._observer is not None:
            self._observer.join(timeout=1.0)

    def forget_secrets(self) -> None:
        """What devices of an earlier deployment have drawn is of no use and private, as its key."""
        shutil.rmtree(producer_folder(self.job.name, WORKER), ignore_errors=True)
        self._noise_key.unlink(missing_ok=True)

    def _observe(self, connection: Connection) -> None:
        try:
            deployed = begin(
                connection, self.job, secrets.token_bytes(IDENTIFIER_BYTES), self._noise_key
            )
            self._prepare()
            self._post(self, deployed)
            with closing(observe(connection, deployed)) as observation:
                for seen in observation:
                    if self._over.is_set():
                        return
                    self._post(self, seen)
        except Exception as error:
            self._post(self, error)

    def _take_in(self, records: list[Seen]) -> None:
        if self._progress is None or self.complete:
            return
        before = len(self._progress.records)
        for record in records:
            self._progress.apply(record.role, record.value)
        if len(self._progress.records) > before:
            self._activity = ""
            self._heard_at = time.monotonic()

    def _start_children(self, job: DeployedJob, workers: RestartedProcesses) -> None:
        assert self._connection is not None
        given = self._given
        self._progress = Progress(job, given.truths)
        self._title = f"{job.name}  {str(job.guarantee).partition(';')[0]}"
        self._deployed_at = self._heard_at = time.monotonic()
        self._activity = "starting the producer and a worker for each stage"
        produce = [job.name, "--input", str(given.path), "--name", WORKER]
        if self._rate is not None:
            produce += ["--rate", str(self._rate)]
        if given.roster is not None:
            produce += ["--users", str(given.roster)]
        if given.to_epoch is not None:
            produce += ["--to-epoch", str(given.to_epoch)]
        if given.skip_bad_rows:
            produce.append("--skip-bad-rows")
        stages = stages_of(job)
        commands = {stage: ["run", stage, job.name, "--name", WORKER] for stage in stages}
        if job.needs_noise_key:
            commands["shuffle"] += ["--noise-key", str(self._noise_key)]
        for name, command in {**commands, PRODUCER: [PRODUCER, *produce]}.items():
            self._children[name] = workers.start(
                name,
                dpstream_command(*command, *self._connection.arguments()),
                worker_folder(job.name, name, WORKER) / "log",
                endless=name in stages,
            )

    def _look_back(self, job: DeployedJob, last_epoch: int) -> dict[int, SmoothedHorizon]:
        """Nothing, if it takes too long: all is published, and no broker may spoil that now."""
        connection, found = self._connection, dict[int, SmoothedHorizon]()
        assert connection is not None

        def read() -> None:
            with suppress(ClusterError, KafkaError):
                found.update(look_back(connection, job, last_epoch))

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        thread.join(timeout=_LOOK_BACK_SECONDS)
        return dict(found)

    def _part(self, name: str) -> Part:
        state = self._children[name].state
        heartbeat = self._progress.heartbeats.get(name) if self._progress else None
        if name != PRODUCER and state == "running" and heartbeat is None:
            state = "starting"
        # What a worker said last is old once it has finished.
        lag = 0 if heartbeat is None or state == "finished" else heartbeat.get("lag", 0)
        return Part(name, state, f"{lag:,} behind" if lag else "")
