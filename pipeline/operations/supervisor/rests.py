"""Watches over the jobs whose workers rest: wakes them, and says that they rest.

A worker that rests costs nothing but the question where the topics end that wake it: one request
for the topics of all jobs, some times a second. In a thread of its own: a broker that is away may
hold it up, but no worker's restart. While Kafka is away nobody is woken, and nothing can have come.

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

from kafka.errors import KafkaError

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.broker_clock import own_milliseconds
from dpstream.pipeline.kafka.cluster import Cluster, ClusterError
from dpstream.pipeline.kafka.connection import Connection
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
_ANSWER_SECONDS = 5.0


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


def pause(look: float, took: float) -> float:
    """Seconds until the next look, if they are to be `look` apart and the last one `took` so long.

    A look at hundreds of jobs takes a while: they are looked at less often, but every two seconds.

    >>> pause(0.25, 0.001), pause(0.25, 0.05), pause(0.25, 4.0)
    (0.25, 1.0, 2.0)
    """
    return max(look, min(took / _LOOK_SHARE, _LONGEST_LOOK_SECONDS))


class RestWatch:
    """Watches until it is closed.

    Args:
        connection: the cluster.
        stage: of the workers that rest.
        worker: their name.
        wake: is given jobs, once each, for which there is or may be something to do.
        look: seconds between two looks.
    """

    def __init__(
        self,
        connection: Connection,
        stage: str,
        worker: str,
        wake: Callable[[str], None],
        look: float = LOOK_SECONDS,
    ) -> None:
        self._connection = connection
        self._key = f"{stage}/{worker}".encode()
        self._wake = wake
        self._look_seconds = look
        self._lock = threading.Lock()
        self._resting: dict[str, RestingJob] = {}
        self._said: dict[str, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rests", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Watch no more; a thread that waits for a broker is not waited for."""
        self._over.set()
        self._thread.join(timeout=1.0)

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

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with Cluster(self._connection, _ANSWER_SECONDS) as cluster:
                    took = 0.0
                    while not self._over.wait(pause(self._look_seconds, took)):
                        begun = time.monotonic()
                        self._look(cluster)
                        took = time.monotonic() - begun
            except (KafkaError, ClusterError, OSError):
                # Away, or its connections are of no more use. The supervisor says it.
                self._over.wait(4 * self._look_seconds)

    def _look(self, cluster: Cluster) -> None:
        with self._lock:
            resting = dict(self._resting)
        if not resting:
            return
        asked = {
            each.job.topic(role): len(ends)
            for each in resting.values()
            for role, ends in each.rest.ends.items()
        }
        ends = cluster.ends(asked)
        for name, each in resting.items():
            found = {role: ends.get(each.job.topic(role), ()) for role in each.rest.ends}
            if not each.rest.holds(found) or time.monotonic() >= each.until:
                with self._lock:
                    current = self._resting.get(name) is each
                    if current:
                        del self._resting[name]
                if current:
                    self._wake(name)
        self._say(cluster)

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
