"""What is known of all jobs, and who is to be told when it changes.

It belongs to the event loop: threads hand over what they find by `call_soon_threadsafe`.
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

from dpstream.pipeline.devices.truths import Truths
from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.jobs.stated_budgets import StatedBudget
from dpstream.pipeline.json_values import json_text
from dpstream.pipeline.results.changes import Changes, has_changes
from dpstream.pipeline.results.privacy_sentences import budget_of
from dpstream.pipeline.results.smoothing import SmoothedHorizon, Smoother
from dpstream.pipeline.serve.history import History, Point
from dpstream.pipeline.serve.views import JobState, epoch_body, sent_series, summary

ASKED_SECONDS = 15.0
"""For so long somebody who has asked for a job is taken to look at it."""

# Of a page that is opened as soon as its server answers.
_FIRST_LOOK_SECONDS = 5.0
# Encoded epochs that are kept: all viewers of a job get the same bytes.
_MOST_ENCODED = 64


@dataclass(frozen=True, slots=True)
class Jobs:
    """What ``dpstream.jobs`` says, of those jobs that are shown."""

    jobs: Mapping[str, DeployedJob]
    phases: Mapping[str, Phase]
    charges: Sequence[Charge]
    stated: Sequence[StatedBudget] = ()


def milliseconds() -> int:
    """Now, since 1970."""
    return time.time_ns() // 1_000_000


class Board:
    """All jobs, by name, and the viewers who wait for news.

    Args:
        clock: milliseconds since 1970.
    """

    def __init__(self, clock: Callable[[], int] = milliseconds) -> None:
        self.run = secrets.token_hex(8)
        self.jobs: dict[str, JobState] = {}
        self.answers = False
        self._looked = asyncio.Event()
        self.since = clock()
        self.clock = clock
        self._listeners: set[asyncio.Event] = set()
        self._watched: Counter[str] = Counter()
        self._asked: dict[str, float] = {}
        self._last_asked = -math.inf
        self._encoded: dict[tuple[bytes, int, tuple[str, ...]], str] = {}
        self._summaries = ""
        self._summaries_old = True

    @property
    def viewers(self) -> int:
        """How many there are."""
        return len(self._listeners)

    @property
    def watched(self) -> set[str]:
        """Names of the jobs that somebody looks at, or has asked about lately."""
        now = time.monotonic()
        self._asked = {job: at for job, at in self._asked.items() if now - at < ASKED_SECONDS}
        return {*self._watched, *self._asked} & self.jobs.keys()

    @property
    def asked_lately(self) -> bool:
        """Whether anybody has asked about anything lately."""
        return time.monotonic() - self._last_asked < ASKED_SECONDS

    def asked(self, job: str | None = None) -> None:
        """Somebody has asked about a job, or the list of them."""
        self._last_asked = time.monotonic()
        if job is not None:
            self._asked[job] = self._last_asked

    @property
    def kafka(self) -> dict[str, Any]:
        """Whether Kafka answers, as the API says it."""
        return {"answers": self.answers, "since": self.since}

    async def first_look(self) -> None:
        """Wait until it is known which jobs there are, or that Kafka does not answer.

        Not for long, and once: after that nothing is known, and whoever asks is told so.
        """
        with suppress(TimeoutError):
            await asyncio.wait_for(self._looked.wait(), _FIRST_LOOK_SECONDS)
        self._looked.set()

    @contextmanager
    def listen(self, job: str | None) -> Iterator[asyncio.Event]:
        """An event that is set when there is something new of a job, or of all of them."""
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
        """Take in the jobs that there are now; a new deployment begins with nothing known."""
        self._looked.set()
        for name in set(self.jobs) - set(found.jobs):
            del self.jobs[name]
        for name, job in found.jobs.items():
            state = self.jobs.get(name)
            if state is None or state.job.deployment != job.deployment:
                smooths = isinstance(job.aggregator(), Smoother)
                changes = has_changes(job)
                state = JobState(job, History(job.domain), job.first_epoch, smooths, changes)
                state.changing = Changes(job, 1) if changes and state.history.kind.single else None
                self.jobs[name] = state
            state.job = job
            state.phase = found.phases[name]
            state.budget = budget_of(job, found.charges, found.stated)
        self._tell()

    def add_points(
        self, job: str, deployment: bytes, points: Sequence[Point], first_epoch: int | None = None
    ) -> None:
        """Take in published epochs, and the deployment's first epoch where it is known."""
        state = self._state(job, deployment)
        if state is None:
            return
        state.counted_from = first_epoch or state.counted_from
        for point in points:
            state.add(point)
        _forget_smoothed(state)
        self._tell()

    def set_pipeline(
        self,
        job: str,
        deployment: bytes,
        pipeline: dict[str, Any],
        problems: tuple[str, ...],
        behind: float | None,
    ) -> None:
        """Take in what the stages of a job are doing."""
        state = self._state(job, deployment)
        if state is None:
            return
        old = state.pipeline
        if old is not None and {**old, "at": pipeline["at"]} == pipeline:
            # No news, but they are known to be true at another moment.
            old["at"] = pipeline["at"]
            return
        state.pipeline, state.problems, state.behind = pipeline, problems, behind
        self._tell()

    def set_smoothed(
        self, job: str, deployment: bytes, number: int, horizon: SmoothedHorizon
    ) -> None:
        """Take in a horizon that was looked back at."""
        state = self._state(job, deployment)
        if state is None:
            return
        state.smoothed[number] = horizon
        _forget_smoothed(state)
        state.smoothed_epoch = horizon.first_epoch + len(horizon.estimates.values) - 1
        self._tell()

    def set_truths(self, job: str, deployment: bytes, truths: Truths) -> None:
        """Take in the truth of a demonstration."""
        state = self._state(job, deployment)
        if state is not None:
            state.truths = truths
            self._encoded.clear()
            self._tell()

    def set_answers(self, answers: bool) -> None:
        """Take in whether Kafka answers."""
        if not answers:
            self._looked.set()
        if answers != self.answers:
            self.answers, self.since = answers, self.clock()
            self._tell()

    def summaries(self) -> str:
        """The summaries of all jobs, as the text of a JSON list."""
        if self._summaries_old:
            bodies = [summary(self.jobs[name]) for name in sorted(self.jobs)]
            self._summaries = encode(bodies)
            self._summaries_old = False
        return self._summaries

    def epoch_text(self, state: JobState, point: Point, ids: tuple[str, ...]) -> str:
        """The message of an epoch, made once for all who want the same series of it."""
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
            # Every one of them shows the summary of every job.
            event.set()


def _forget_smoothed(state: JobState) -> None:
    points = state.history.points
    first = points[0].epoch if points else 0
    for number, horizon in list(state.smoothed.items()):
        if horizon.first_epoch + len(horizon.estimates.values) <= first:
            del state.smoothed[number]


def encode(body: object) -> str:
    """The text of a JSON value."""
    return json_text(body, separators=(",", ":"), ensure_ascii=False)
