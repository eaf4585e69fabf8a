"""State of all jobs; viewers are notified of changes.

The state belongs to the event loop: threads pass their results by `call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from dpstream.pipeline.devices.ground_truths import GroundTruths
from dpstream.pipeline.jobs.budget_declarations import BudgetDeclaration
from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.json_values import json_text
from dpstream.pipeline.results.changes import Changes, has_changes
from dpstream.pipeline.results.measure_series import measure_series
from dpstream.pipeline.results.privacy_sentences import budget_of
from dpstream.pipeline.results.smoothing import SmoothedHorizon, Smoother
from dpstream.pipeline.serve.history import History, Point
from dpstream.pipeline.serve.views import JobState, epoch_body, sent_series, summary

REQUEST_SECONDS = 15.0
"""Seconds for which a job counts as watched after each request for it."""

# A page can be opened as soon as its server answers, before Kafka is polled for the first time.
_FIRST_LOOK_SECONDS = 5.0
# Encoded epochs to cache: all viewers of a job get the same bytes.
_MOST_ENCODED = 64


@dataclass(frozen=True, slots=True)
class Jobs:
    jobs: Mapping[str, DeployedJob]
    phases: Mapping[str, Phase]
    charges: Sequence[Charge]
    declared: Sequence[BudgetDeclaration] = ()


def milliseconds() -> int:
    return time.time_ns() // 1_000_000


class JobStore:
    def __init__(self, clock: Callable[[], int] = milliseconds) -> None:
        self.run = secrets.token_hex(8)
        self.jobs: dict[str, JobState] = {}
        self.answers = False
        self._looked = asyncio.Event()
        self.since = clock()
        self.clock = clock
        self._listeners: set[asyncio.Event] = set()
        self._watched: Counter[str] = Counter()
        self._requested: dict[str, float] = {}
        self._last_request = -math.inf
        self._encoded: dict[tuple[bytes, int, tuple[str, ...]], str] = {}
        self._summaries = ""
        self._summaries_old = True

    @property
    def viewers(self) -> int:
        return len(self._listeners)

    @property
    def watched(self) -> set[str]:
        """Names of the jobs that a viewer has open or has requested recently."""
        now = time.monotonic()
        self._requested = {
            job: at for job, at in self._requested.items() if now - at < REQUEST_SECONDS
        }
        return {*self._watched, *self._requested} & self.jobs.keys()

    @property
    def requested_recently(self) -> bool:
        return time.monotonic() - self._last_request < REQUEST_SECONDS

    def record_request(self, job: str | None = None) -> None:
        self._last_request = time.monotonic()
        if job is not None:
            self._requested[job] = self._last_request

    @property
    def kafka(self) -> dict[str, Any]:
        return {"answers": self.answers, "since": self.since}

    async def first_look(self) -> None:
        """Wait, with a timeout, until the jobs are known or Kafka is known to be down.

        Waits only once: afterwards, requests are answered with the data known so far.
        """
        with suppress(TimeoutError):
            await asyncio.wait_for(self._looked.wait(), _FIRST_LOOK_SECONDS)
        self._looked.set()

    @contextmanager
    def listen(self, job: str | None) -> Iterator[asyncio.Event]:
        """Yield an event that is set when there is news of a job (None: of any job)."""
        event = asyncio.Event()
        self._listeners.add(event)
        if job is not None:
            self._watched[job] += 1
        try:
            yield event
        finally:
            self._listeners.discard(event)
            if job is not None:
                self._watched[job] -= 1
                self._watched = +self._watched

    def set_jobs(self, found: Jobs) -> None:
        self._looked.set()
        for name in set(self.jobs) - set(found.jobs):
            del self.jobs[name]
        for name, job in found.jobs.items():
            state = self.jobs.get(name)
            if state is None or state.job.deployment != job.deployment:
                smooths = isinstance(job.aggregator(), Smoother)
                changes = has_changes(job)
                history = History(job.domain, rows=measure_series(job))
                state = JobState(job, history, job.first_epoch, smooths, changes)
                state.changing = Changes(job, 1) if changes and state.history.kind.single else None
                self.jobs[name] = state
            state.job = job
            state.phase = found.phases[name]
            state.budget = budget_of(job, found.charges, found.declared)
        self._tell()

    def add_points(
        self, job: str, deployment: bytes, points: Sequence[Point], first_epoch: int | None = None
    ) -> None:
        state = self._state(job, deployment)
        if state is None:
            return
        state.counted_from = first_epoch or state.counted_from
        for point in points:
            state.add(point)
        _drop_smoothed(state)
        self._tell()

    def set_pipeline(
        self,
        job: str,
        deployment: bytes,
        pipeline: dict[str, Any],
        issues: tuple[str, ...],
        lag_seconds: float | None,
    ) -> None:
        state = self._state(job, deployment)
        if state is None:
            return
        old = state.pipeline
        if old is not None and {**old, "at": pipeline["at"]} == pipeline:
            # Nothing but the time of the reading has changed.
            old["at"] = pipeline["at"]
            return
        state.pipeline, state.issues, state.lag_seconds = pipeline, issues, lag_seconds
        self._tell()

    def set_smoothed(
        self, job: str, deployment: bytes, number: int, horizon: SmoothedHorizon
    ) -> None:
        state = self._state(job, deployment)
        if state is None:
            return
        state.smoothed[number] = horizon
        _drop_smoothed(state)
        state.smoothed_epoch = horizon.first_epoch + len(horizon.estimates.values) - 1
        self._tell()

    def set_ground_truths(self, job: str, deployment: bytes, ground_truths: GroundTruths) -> None:
        state = self._state(job, deployment)
        if state is not None:
            state.ground_truths = ground_truths
            self._encoded.clear()
            self._tell()

    def set_answers(self, answers: bool) -> None:
        if not answers:
            self._looked.set()
        if answers != self.answers:
            self.answers, self.since = answers, self.clock()
            self._tell()

    def summaries(self) -> str:
        if self._summaries_old:
            bodies = [summary(self.jobs[name]) for name in sorted(self.jobs)]
            self._summaries = encode(bodies)
            self._summaries_old = False
        return self._summaries

    def epoch_text(self, state: JobState, point: Point, ids: tuple[str, ...]) -> str:
        """Return the message about an epoch, encoded once for all viewers of these series."""
        key = (state.job.deployment, point.epoch, ids)
        text = self._encoded.get(key)
        if text is None:
            series = sent_series(state.history, ids)
            body = {"type": "epoch", "job": state.job.name, **epoch_body(state, point, series)}
            text = encode(body)
            if len(self._encoded) >= _MOST_ENCODED:
                del self._encoded[next(iter(self._encoded))]
            self._encoded[key] = text
        return text

    def _state(self, job: str, deployment: bytes) -> JobState | None:
        state = self.jobs.get(job)
        return state if state is not None and state.job.deployment == deployment else None

    def _tell(self) -> None:
        self._summaries_old = True
        for event in self._listeners:
            # Every viewer shows the summary of every job.
            event.set()


def _drop_smoothed(state: JobState) -> None:
    points = state.history.points
    first = points[0].epoch if points else 0
    for number, horizon in list(state.smoothed.items()):
        if horizon.first_epoch + len(horizon.estimates.values) <= first:
            del state.smoothed[number]


def encode(body: object) -> str:
    return json_text(body, separators=(",", ":"), ensure_ascii=False)
