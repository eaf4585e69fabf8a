"""Monitor jobs with idle workers: wake the workers on demand, and report that they are idle.

* Several times a second, one request for all idle workers reads the end offsets of the topics that
  wake them, in the thread that reads the jobs topic (`jobs_follower.Follower`).
* Every worker is woken once a day, and becomes idle again within seconds if there is no work.
  Otherwise, Kafka would drop the offsets of the worker's group after some days without members.
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
from dpstream.pipeline.kafka.workers.idle_note import IdleNote, idle_heartbeat
from dpstream.pipeline.stages.idle_condition import IdleCondition, initial_idle_condition
from dpstream.pipeline.state import worker_folder
from dpstream.topics.names import Role

LOOK_SECONDS = 0.25
_LONGEST_LOOK_SECONDS = 2.0
_LOOK_SHARE = 0.05
"""Maximum fraction of time spent polling, until the pauses reach their maximum."""
SAY_SECONDS = 60.0
"""Seconds between heartbeats of an idle worker; `status` shows it as down if three are missing."""
LONGEST_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class IdleJob:
    """A job whose worker stays idle as long as `condition` holds.

    `words` is the worker's heartbeat for ``<job>.status``, and `metrics` contains its last
    Prometheus metrics. The worker is woken at `until` (monotonic seconds) at the latest.
    """

    job: DeployedJob
    condition: IdleCondition
    words: Mapping[str, object]
    metrics: str
    until: float


def noted_idle_job(job: DeployedJob, version: bytes, stage: str, worker: str) -> IdleJob | None:
    note = IdleNote.read(worker_folder(job.name, stage, worker))
    if note is None or note.version != version.hex():
        return None
    left = min(note.condition.seconds, LONGEST_SECONDS) - max(0.0, time.time() - note.since)
    return IdleJob(job, note.condition, note.words, note.metrics, time.monotonic() + left)


def initial_idle_job(job: DeployedJob, stage: str, worker: str) -> IdleJob | None:
    """Return a job as idle if its topics are still empty; None if its worker must run."""
    condition = initial_idle_condition(job, stage)
    if condition is None:
        return None
    words = idle_heartbeat(deployment=job.deployment.hex(), stage=stage, worker=worker)
    return IdleJob(job, condition, words, "", time.monotonic() + LONGEST_SECONDS)


def pause(took: float) -> float:
    """Return the seconds until the next poll, after a poll that took `took` seconds.

    >>> pause(0.001), pause(0.05), pause(4.0)
    (0.25, 1.0, 2.0)
    """
    return max(LOOK_SECONDS, min(took / _LOOK_SHARE, _LONGEST_LOOK_SECONDS))


class IdleMonitor:
    """Monitor jobs with idle workers; `wake` is called once with each job that might have work."""

    def __init__(self, stage: str, worker: str, wake: Callable[[str], None]) -> None:
        self._key = f"{stage}/{worker}".encode()
        self._wake = wake
        self._lock = threading.Lock()
        self._idle: dict[str, IdleJob] = {}
        self._reported_at: dict[str, float] = {}

    def add(self, job: IdleJob, *, reported: bool) -> None:
        """Monitor a job; `reported` means that its worker has just reported that it is idle."""
        with self._lock:
            self._idle[job.job.name] = job
            if reported:
                self._reported_at[job.job.name] = time.monotonic()
            else:
                self._reported_at.pop(job.job.name, None)

    def keep(self, jobs: Collection[str]) -> None:
        with self._lock:
            for gone in self._idle.keys() - set(jobs):
                del self._idle[gone]

    def metrics(self) -> dict[str, str]:
        with self._lock:
            return {name: each.metrics for name, each in self._idle.items()}

    def look(self, cluster: Cluster) -> float:
        started = time.monotonic()
        with self._lock:
            idle = dict(self._idle)
        if idle:
            requested = {
                each.job.topic(role): len(ends)
                for each in idle.values()
                for role, ends in each.condition.ends.items()
            }
            ends = cluster.ends(requested)
            for name, each in idle.items():
                found = {role: ends.get(each.job.topic(role), ()) for role in each.condition.ends}
                if not each.condition.holds(found) or time.monotonic() >= each.until:
                    self._wake_up(name, each)
            self._say(cluster)
        return pause(time.monotonic() - started)

    def _wake_up(self, name: str, job: IdleJob) -> None:
        with self._lock:
            current = self._idle.get(name) is job
            if current:
                del self._idle[name]
        if current:
            self._wake(name)

    def _say(self, cluster: Cluster) -> None:
        now = time.monotonic()
        with self._lock:
            due = {
                name: each
                for name, each in self._idle.items()
                if now >= self._reported_at.get(name, now - SAY_SECONDS) + SAY_SECONDS
            }
            self._reported_at.update(dict.fromkeys(due, now))
        if not due:
            return
        # Writing to a missing topic would block all jobs.
        there = cluster.ends({each.job.topic(Role.STATUS): 1 for each in due.values()})
        for each in due.values():
            topic = each.job.topic(Role.STATUS)
            if topic not in there:
                continue
            words = {**each.words, "time": own_milliseconds()}
            value = json.dumps(words, allow_nan=False, separators=(",", ":")).encode()
            # Ignore the result: without write access, there is no heartbeat.
            cluster.producer.send(topic, value, key=self._key, partition=0)
