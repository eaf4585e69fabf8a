"""Read pipeline states and compute smoothed curves, in a separate thread.

* Pipelines are read every second, but only while a viewer watches; jobs that no viewer has open are
  read less often.
* Horizons are smoothed when new epochs arrive, using at most a tenth of the time.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from kafka.errors import KafkaError

from dpstream.pipeline.actions import Run, Steps
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.kafka.cluster import AccessError, Cluster, ClusterError, NoTopicError
from dpstream.pipeline.kafka.topic_reader import read_from
from dpstream.pipeline.operations.status.collection import JobWatch
from dpstream.pipeline.results.smoothing import SmoothedHorizon, smooth_estimation
from dpstream.pipeline.serve.pipeline_view import lag_seconds, pipeline_json
from dpstream.pipeline.stages.epoch_log import EpochLog
from dpstream.pipeline.stages.estimation import Estimation
from dpstream.pipeline.stages.published_epochs import place_of_latest

WATCHED_SECONDS = 1.0
OTHERS_SECONDS = 10.0
EPOCHS_SMOOTHED = 1_024
"""Number of latest epochs whose horizons are smoothed; each horizon is smoothed as a whole."""
LONGEST_SMOOTHED_HORIZON = 1 << 14
_SMOOTH_SECONDS = 2.0
# Seconds to pause for each second that an action took.
_PAUSE_FACTOR = 10.0
_BACK_OFF_SECONDS = 2.0
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shown:
    """A job that viewers see.

    Attributes:
        opened: True if a viewer has the job open, not only the list of jobs.
        smooths: True if the job's protocol supports retrospective smoothing.
    """

    job: DeployedJob
    phase: Phase
    opened: bool
    smooths: bool


class BackgroundListener(Protocol):
    def pipeline(
        self, job: DeployedJob, body: dict[str, Any], issues: tuple[str, ...], lag_seconds: float
    ) -> None:
        pass

    def smoothed(self, job: DeployedJob, number: int, horizon: SmoothedHorizon) -> None:
        pass

    def rejected(self, message: str) -> None:
        """Receive a message with the remedy if Kafka denies access."""


class HorizonSmoother:
    """Smooth a job's horizons as they grow, within the last `EPOCHS_SMOOTHED` epochs.

    Horizons longer than `LONGEST_SMOOTHED_HORIZON` are skipped, because each new epoch would cost
    minutes, and more memory than all other data.
    """

    _epochs: EpochLog | None
    _estimation: Estimation

    def __init__(self, job: DeployedJob) -> None:
        self.job = job
        self._next = 0.0
        self._start_over()

    def read_new(
        self, cluster: Cluster, clock: Callable[[], float]
    ) -> list[tuple[int, SmoothedHorizon]]:
        started = clock()
        if started < self._next:
            return []
        run: Run = partial(read_from, cluster, self.job)
        epochs = self._epochs = self._epochs or run(self._from_the_latest())
        changed = []
        fresh = False
        for epoch in () if epochs is None else epochs.read(run):
            of = self.job.epochs.horizon_of(epoch.epoch)
            if of != self._estimation.horizon and self._estimation.last_epoch:
                changed.append(
                    (self._estimation.horizon, smooth_estimation(self.job, self._estimation))
                )
            self._estimation.take_in(epoch.manifest, epoch.counts)
            fresh = True
            if self._estimation.last_epoch > LONGEST_SMOOTHED_HORIZON:
                self._start_over()
                fresh = False
                break
        if fresh:
            changed.append(
                (self._estimation.horizon, smooth_estimation(self.job, self._estimation))
            )
        self._next = clock() + max(_SMOOTH_SECONDS, _PAUSE_FACTOR * (clock() - started))
        return changed

    def _start_over(self) -> None:
        self._epochs = None
        self._estimation = Estimation(self.job)

    def _from_the_latest(self) -> Steps[EpochLog | None]:
        latest = (yield from place_of_latest(self.job, lambda latest: latest)).before
        if latest and self.job.epochs.local(latest) > LONGEST_SMOOTHED_HORIZON:
            return None
        first = max(1, latest - EPOCHS_SMOOTHED)
        return EpochLog(self.job, self.job.epochs.first_of_horizon(first))


class Background(threading.Thread):
    """Thread that reads the status of the shown jobs until stopped.

    `open_cluster` and `shown` are called in this thread; `clock` returns milliseconds since 1970.
    """

    def __init__(
        self,
        open_cluster: Callable[[], Cluster],
        shown: Callable[[], tuple[Shown, ...]],
        listener: BackgroundListener,
        clock: Callable[[], int],
    ) -> None:
        super().__init__(name="background", daemon=True)
        self._open_cluster = open_cluster
        self._shown = shown
        self._listener = listener
        self._clock = clock
        self._ended = threading.Event()
        self._watches: dict[bytes, tuple[DeployedJob, JobWatch]] = {}
        self._read_at: dict[bytes, tuple[float, float]] = {}
        self._smoothers: dict[bytes, HorizonSmoother] = {}
        self._rejected_until: dict[bytes, float] = {}

    def run(self) -> None:
        while not self._ended.is_set():
            # A cluster is unusable after an error: start again with another one.
            with suppress(KafkaError, ClusterError, OSError), self._open_cluster() as cluster:
                self._watches.clear()
                self._smoothers.clear()
                while not self._ended.is_set():
                    self.watch(cluster)
                    self._ended.wait(WATCHED_SECONDS / 4)
            self._ended.wait(_BACK_OFF_SECONDS)

    def watch(self, cluster: Cluster) -> None:
        shown = self._shown()
        self._drop({each.job.deployment for each in shown})
        for each in shown:
            if time.monotonic() < self._rejected_until.get(each.job.deployment, -math.inf):
                continue
            try:
                self._watch_if_due(cluster, each)
            except AccessError as error:
                # Other jobs stay visible; this one is tried again later.
                self._listener.rejected(error.asking_for("page"))
                self._rejected_until[each.job.deployment] = time.monotonic() + OTHERS_SECONDS
            except NoTopicError:
                # The job is being undeployed: its topics are deleted, and its record will follow.
                continue
            except (KafkaError, ClusterError, OSError):
                raise
            except Exception:
                # Other jobs stay visible.
                _LOG.exception("reading the status of job %s failed", each.job.name)
                self._read_at[each.job.deployment] = time.monotonic(), OTHERS_SECONDS

    def _watch_if_due(self, cluster: Cluster, shown: Shown) -> None:
        key, now = shown.job.deployment, time.monotonic()
        read_at, took = self._read_at.get(key, (-math.inf, 0.0))
        usual = WATCHED_SECONDS if shown.opened else OTHERS_SECONDS
        if now >= read_at + max(usual, _PAUSE_FACTOR * took):
            self._watch_job(cluster, shown)
            self._read_at[key] = now, time.monotonic() - now
        if shown.opened and shown.smooths:
            horizons = self._smoothers.setdefault(key, HorizonSmoother(shown.job))
            for number, horizon in horizons.read_new(cluster, time.monotonic):
                self._listener.smoothed(shown.job, number, horizon)

    def end(self) -> None:
        self._ended.set()

    def _watch_job(self, cluster: Cluster, shown: Shown) -> None:
        job, key = shown.job, shown.job.deployment
        held = self._watches.get(key)
        # Operators may change job keys within a deployment.
        if held is None or held[0] != job:
            held = self._watches[key] = job, JobWatch(cluster, job)
        status = held[1].status(now := self._clock(), shown.phase)
        self._listener.pipeline(
            job, pipeline_json(job, status, now), status.issues, lag_seconds(job, status)
        )

    def _drop(self, shown: set[bytes]) -> None:
        for held in (self._watches, self._read_at, self._smoothers, self._rejected_until):
            for key in held.keys() - shown:
                del held[key]
