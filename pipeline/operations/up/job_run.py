"""One job of a run: deploy it, start its processes, and observe it until its last epoch."""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kafka.errors import KafkaError

from dpstream.pipeline.devices.ground_truths import GroundTruths
from dpstream.pipeline.devices.item_log import ValueLog
from dpstream.pipeline.devices.producer_input import (
    enrollment,
    input_warnings,
    load_input,
    value_warnings,
)
from dpstream.pipeline.devices.users import load_job_users
from dpstream.pipeline.jobs.deployed_job import IDENTIFIER_BYTES, DeployedJob
from dpstream.pipeline.jobs.job_files import Job, load_job
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.kafka.cluster import Cluster, ClusterError
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.deployed_jobs import check_has_producers, set_phase
from dpstream.pipeline.kafka.topic_reader import read_from
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.operations.processes import dpstream_command
from dpstream.pipeline.operations.restarted_processes import RestartedProcesses
from dpstream.pipeline.operations.up.outcome import Outcome, Row
from dpstream.pipeline.operations.up.screen import ScreenState
from dpstream.pipeline.results.follow import EstimateReader, follow
from dpstream.pipeline.results.measure_series import measure_series
from dpstream.pipeline.results.smoothing import SmoothedHorizon, smoothed_horizons
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.stages.topic_uses import stages_of
from dpstream.pipeline.state import producer_folder, worker_folder

WORKER = "up"
"""Name of the producer, and of each stage's worker."""

PRODUCER = "produce"
_SILENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class UpSettings:
    """Jobs to run on one input, and the options of the run.

    Attributes:
        servers: Bootstrap servers; without them and `kafka_config`, the local broker is used.
        rate: Maximum epochs per second.
        to_epoch: Last epoch of the input to use; None means the last epoch of the job.
        linger: True to keep the page open after the last estimate, until a signal arrives.
        agreed: True if the user has agreed to end other deployments and to charge users again.
        adapted: Function that turns the job from a file into the job to deploy.
    """

    job_files: tuple[Path, ...]
    input: Path
    servers: str | None = None
    kafka_config: Path | None = None
    rate: float | None = None
    users: Path | None = None
    to_epoch: int | None = None
    skip_bad_rows: bool = False
    page: bool = False
    browser: bool = False
    linger: bool = False
    agreed: bool = True
    adapted: Callable[[Job], Job] = field(default=lambda job: job)

    @property
    def input_options(self) -> list[str]:
        options = ["--input", str(self.input), *self.row_options]
        for name, value in (("--rate", self.rate), ("--to-epoch", self.to_epoch)):
            options += [] if value is None else [name, str(value)]
        return options

    @property
    def row_options(self) -> list[str]:
        """Options that select the rows of the input, as for its ground truth."""
        users = [] if self.users is None else ["--users", str(self.users)]
        return [*["--skip-bad-rows"] * self.skip_bad_rows, *users]


@dataclass(frozen=True, slots=True)
class JobInput:
    """A job, its input and the ground truth, all of which are read before anything is started."""

    job: Job
    settings: UpSettings
    values: ValueLog
    ground_truths: GroundTruths

    @classmethod
    def load(
        cls, job_file: Path, settings: UpSettings, print_message: Callable[[str], None]
    ) -> JobInput:
        """Read a job file and its input; call `print_message` with warnings.

        The deployed job is what `adapted` returns, so that producer and page read the input in the
        same way. Raises JobError or InputError if a file is invalid.
        """
        job = settings.adapted(load_job(job_file))
        check_has_producers(job)
        values = load_input(
            job,
            settings.input,
            users=None if settings.users is None else load_job_users(job, settings.users),
            to_epoch=settings.to_epoch,
            skip_bad_rows=settings.skip_bad_rows,
        )
        for warning in (
            *input_warnings(values),
            enrollment(values),
            *value_warnings(values, job),
        ):
            print_message(warning)
        return cls(job, settings, values, values.ground_truths(job.domain))

    @property
    def last_epoch(self) -> int:
        """Last epoch of the run: the input's last epoch or the job's, whichever is earlier."""
        return min(
            self.ground_truths.last_epoch, self.job.last_epoch or self.ground_truths.last_epoch
        )


SmoothedHorizons = Mapping[int, SmoothedHorizon]
JobEvent = DeployedJob | EstimateRecord | SmoothedHorizons | Exception
"""Event posted by a job's thread: deployed, epoch published, all epochs published, or failed."""


class JobRun:
    """A running job. One thread posts its events; all other code runs in the caller's thread.

    In the job's thread, `post` is called with every event, and `prepare` waits until processes can
    be started. `print_message` prints a message that stays on the screen.
    """

    def __init__(
        self,
        given: JobInput,
        post: Callable[[JobRun, JobEvent], None],
        print_message: Callable[[str], None],
        prepare: Callable[[], None],
    ) -> None:
        self.job = given.job
        self.deployed: DeployedJob | None = None
        self._given = given
        self._post = post
        self._print_message = print_message
        self._prepare = prepare
        self._over = threading.Event()
        self._observer: threading.Thread | None = None
        self._connection: Connection | None = None
        self._rows: list[Row] = []
        self._series = measure_series(given.job)
        self._smoothed: SmoothedHorizons | None = None
        self._activity = ""
        self._noise_key = worker_folder(given.job.name, "shuffle", WORKER) / "noise-key"
        self._deployed_at = self._heartbeat_at = time.monotonic()

    @property
    def complete(self) -> bool:
        return self._smoothed is not None

    def begin(self, connection: Connection) -> None:
        self._connection = connection
        self._activity = "deploying the job"
        self._observer = threading.Thread(target=self._observe, args=(connection,), daemon=True)
        self._observer.start()

    def take(self, event: JobEvent, workers: RestartedProcesses) -> None:
        match event:
            case Exception():
                raise event
            case DeployedJob():
                self._start_children(event, workers)
            case EstimateRecord():
                assert self.deployed is not None
                truths = self._given.ground_truths
                self._rows.append(Row.of(self.deployed, event, truths, self._series))
                self._activity = ""
                self._heartbeat_at = time.monotonic()
            case _:
                self._smoothed = event

    def notice_silence(self) -> None:
        waiting = self.deployed is not None and not self.complete
        if not waiting or time.monotonic() < self._heartbeat_at + _SILENCE_SECONDS:
            return
        self._heartbeat_at = time.monotonic()
        logs = worker_folder(self.job.name, "STAGE", WORKER) / "log"
        self._print_message(
            f"no estimate for {_SILENCE_SECONDS:.0f} s; the logs of the stages are in {logs}"
        )

    def outcome(self) -> Outcome:
        assert self.deployed is not None
        assert self._smoothed is not None
        return Outcome(
            job=self.deployed,
            rows=tuple(self._rows),
            users=len(self._given.values.users),
            seconds=self._heartbeat_at - self._deployed_at,
            ground_truths=self._given.ground_truths,
            values=self._given.values,
            smoothed=self._smoothed,
        )

    def view(self, activity: str = "") -> ScreenState:
        return ScreenState(self.job, activity or self._activity, self._rows, self._given.last_epoch)

    def stop_observing(self) -> None:
        self._over.set()
        if self._observer is not None:
            self._observer.join(timeout=1.0)

    def forget_secrets(self) -> None:
        """Delete devices' randomness and the noise key of an earlier deployment."""
        shutil.rmtree(producer_folder(self.job.name, WORKER), ignore_errors=True)
        self._noise_key.unlink(missing_ok=True)

    def _observe(self, connection: Connection) -> None:
        try:
            with Cluster(connection) as cluster:
                deployed = deploy(
                    cluster,
                    self.job,
                    deployment=secrets.token_bytes(IDENTIFIER_BYTES),
                    now=time.time_ns() // 1_000_000,
                    replace=True,
                    noise_key=self._noise_key,
                )
                self._prepare()
                self._post(self, deployed)
                self._read(cluster, deployed)
        except Exception as error:
            self._post(self, error)

    def _read(self, cluster: Cluster, job: DeployedJob) -> None:
        def wait(seconds: float) -> None:
            self._over.wait(seconds)

        read = EstimateReader(cluster, job).read
        for record in follow(read, self._over.is_set, wait=wait):
            self._post(self, record)
            if record.epoch >= self._given.last_epoch:
                smoothed: SmoothedHorizons = {}
                # All epochs are published: the run succeeds even if the broker fails now.
                with suppress(ClusterError, KafkaError):
                    if record.epoch != job.last_epoch:
                        # The job could continue, but its workers end.
                        set_phase(cluster, job, Phase.DRAINED, time.time_ns() // 1_000_000)
                    smoothed = read_from(cluster, job, smoothed_horizons(job, record.epoch))
                self._post(self, smoothed)
                return

    def _start_children(self, job: DeployedJob, workers: RestartedProcesses) -> None:
        assert self._connection is not None
        self.deployed = job
        self._deployed_at = self._heartbeat_at = time.monotonic()
        self._activity = "starting the producer and a worker for each stage"
        commands = {
            stage: ["run", stage, job.name, "--name", WORKER]
            + ["--noise-key", str(self._noise_key)] * (stage == "shuffle" and job.needs_noise_key)
            for stage in stages_of(job)
        }
        produce = [PRODUCER, job.name, "--name", WORKER]
        commands[PRODUCER] = [*produce, *self._given.settings.input_options]
        for name, command in commands.items():
            workers.start(
                name,
                dpstream_command(*command, *self._connection.arguments()),
                worker_folder(job.name, name, WORKER) / "log",
                endless=name != PRODUCER,
            )
