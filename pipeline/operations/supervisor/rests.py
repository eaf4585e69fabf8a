"""Watches over the jobs whose workers rest: wakes them, and says that they rest.

A worker that rests costs nothing but the question where the topics end that wake it: one request
for the topics of all jobs, some times a second, in the thread that follows the jobs topic
(`wanted.Follower`). While Kafka is away nobody is woken, and nothing can have come.

Once a day everybody is woken, and rests again after seconds if there is still nothing: Kafka
forgets the offsets of a group that has had no member for some days, and a worker sees what only a
worker looks at.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.broker_clock import own_milliseconds
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.workers.resting import RestNote, told_at_rest
from dpstream.pipeline.stages.idle_condition import IdleCondition, rest_before_all
from dpstream.pipeline.state import worker_folder
from dpstream.topics.names import Role

LOOK_SECONDS = 0.25
_LONGEST_LOOK_SECONDS = 2.0
_LOOK_SHARE = 0.05
"""Of the time is spent on looking at most."""
SAY_SECONDS = 60.0
"""Between two words that a worker rests; `status` takes it for gone after three of these."""
LONGEST_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class RestingJob:
    """A job whose worker rests.

    Attributes:
        job: as deployed.
        rest: what wakes it.
        words: what is said of it in ``<job>.status``.
        metrics: what its worker told Prometheus last.
        until: when it is woken at the latest, on the monotonic clock.
    """

    job: DeployedJob
    rest: IdleCondition
    words: Mapping[str, object]
    metrics: str
    until: float


def noted_rest(job: DeployedJob, version: bytes, stage: str, worker: str) -> RestingJob | None:
    """What the note of a worker says that has ended; None: it has left none."""
    note = RestNote.read(worker_folder(job.name, stage, worker))
    if note is None or note.version != version.hex():
        return None
    left = min(note.rest.seconds, LONGEST_SECONDS) - max(0.0, time.time() - note.since)
    return RestingJob(job, note.rest, note.words, note.metrics, time.monotonic() + left)


def first_rest(job: DeployedJob, stage: str, worker: str) -> RestingJob | None:
    """The rest of a worker that never ran, as long as nothing is written; None: it has to run."""
    rest = rest_before_all(job, stage)
    if rest is None:
        return None
    words = told_at_rest(deployment=job.deployment.hex(), stage=stage, worker=worker)
    return RestingJob(job, rest, words, "", time.monotonic() + LONGEST_SECONDS)


def pause(took: float) -> float:
    """Seconds until the next look, if the last one took so long.

    A look at hundreds of jobs takes a while: they are looked at less often, but every two seconds.

    >>> pause(0.001), pause(0.05), pause(4.0)
    (0.25, 1.0, 2.0)
    """
    return max(LOOK_SECONDS, min(took / _LOOK_SHARE, _LONGEST_LOOK_SECONDS))


class RestWatch:
    """The jobs whose workers rest.

    Args:
        stage: of the workers that rest.
        worker: their name.
        wake: is given jobs, once each, for which there is or may be something to do.
    """

    def __init__(self, stage: str, worker: str, wake: Callable[[str], None]) -> None:
        self._key = f"{stage}/{worker}".encode()
        self._wake = wake
        self._lock = threading.Lock()
        self._resting: dict[str, RestingJob] = {}
        self._said: dict[str, float] = {}

    def add(self, job: RestingJob, *, said: bool) -> None:
        """Watch over a job; `said`: its worker has just said that it rests."""
        with self._lock:
            self._resting[job.job.name] = job
            if said:
                self._said[job.job.name] = time.monotonic()
            else:
                self._said.pop(job.job.name, None)

    def keep(self, jobs: Collection[str]) -> None:
        """Watch over none but these."""
        with self._lock:
            for gone in self._resting.keys() - set(jobs):
                del self._resting[gone]

    def metrics(self) -> dict[str, str]:
        """What the workers told Prometheus last that rest, by job."""
        with self._lock:
            return {name: each.metrics for name, each in self._resting.items()}

    def look(self, cluster: Cluster) -> float:
        """Wake whom something woke, in the thread of the cluster; returns the seconds to pause."""
        begun = time.monotonic()
        with self._lock:
            resting = dict(self._resting)
        if resting:
            asked = {
                each.job.topic(role): len(ends)
                for each in resting.values()
                for role, ends in each.rest.ends.items()
            }
            ends = cluster.ends(asked)
            for name, each in resting.items():
                found = {role: ends.get(each.job.topic(role), ()) for role in each.rest.ends}
                if not each.rest.holds(found) or time.monotonic() >= each.until:
                    self._wake_up(name, each)
            self._say(cluster)
        return pause(time.monotonic() - begun)

    def _wake_up(self, name: str, job: RestingJob) -> None:
        with self._lock:
            current = self._resting.get(name) is job
            if current:
                del self._resting[name]
        if current:
            self._wake(name)

    def _say(self, cluster: Cluster) -> None:
        """Say of those that rest that they do, of each now and then."""
        now = time.monotonic()
        with self._lock:
            due = {
                name: each
                for name, each in self._resting.items()
                if now >= self._said.get(name, now - SAY_SECONDS) + SAY_SECONDS
            }
            self._said.update(dict.fromkeys(due, now))
        if not due:
            return
        # Where there is no such topic, writing to it would hold up all jobs.
        there = cluster.ends({each.job.topic(Role.STATUS): 1 for each in due.values()})
        for each in due.values():
            topic = each.job.topic(Role.STATUS)
            if topic not in there:
                continue
            words = {**each.words, "time": own_milliseconds()}
            value = json.dumps(words, allow_nan=False, separators=(",", ":")).encode()
            # Who may not write there says nothing; the next word may get through.
            cluster.producer.send(topic, value, key=self._key, partition=0)
