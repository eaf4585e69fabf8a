"""Jobs in ``dpstream.jobs`` for which a supervisor runs workers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.jobs.listed_jobs import ListedJobs
from dpstream.pipeline.stages.topic_uses import stages_of


@dataclass(frozen=True, slots=True)
class Task:
    """A deployed job and the hash of its record, which requires a new worker when it changes."""

    deployed: DeployedJob
    phase: Phase
    version: bytes
    stages: frozenset[str]

    @classmethod
    def of(cls, job: DeployedJob, phase: Phase) -> Task:
        return cls(job, phase, cls.version_of(job), frozenset(stages_of(job)))

    @staticmethod
    def version_of(job: DeployedJob) -> bytes:
        return hashlib.sha256(job.to_bytes()).digest()

    def is_for(self, stage: str) -> bool:
        return self.phase.works and stage in self.stages


@dataclass(frozen=True, slots=True)
class Tasks:
    """Jobs that match the supervisor's pattern; `unreadable` are from incompatible versions."""

    tasks: Mapping[str, Task]
    unreadable: frozenset[str]


def tasks_of(topic: ListedJobs, pattern: str) -> Tasks:
    tasks, unreadable = {}, set(topic.unreadable)
    for name, job in topic.jobs.items():
        try:
            tasks[name] = Task.of(job, topic.phase(name))
        except Exception:
            # An invalid record of one job must not stop other jobs.
            unreadable.add(name)
    return Tasks(
        {name: task for name, task in tasks.items() if fnmatchcase(name, pattern)},
        frozenset(name for name in unreadable if fnmatchcase(name, pattern)),
    )
