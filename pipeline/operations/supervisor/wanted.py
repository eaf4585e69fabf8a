"""What ``dpstream.jobs`` wants of a supervisor."""

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
    """A deployed job as a supervisor sees it.

    Attributes:
        deployed: the job as it is deployed.
        phase: what its operator wants.
        version: of its record; another one needs another worker.
        stages: that it has.
    """

    deployed: DeployedJob
    phase: Phase
    version: bytes
    stages: frozenset[str]

    @classmethod
    def of(cls, job: DeployedJob, phase: Phase) -> Task:
        """Of a job in a phase."""
        return cls(job, phase, cls.version_of(job), frozenset(stages_of(job)))

    @staticmethod
    def version_of(job: DeployedJob) -> bytes:
        """Of a job's record."""
        return hashlib.sha256(job.to_bytes()).digest()

    def is_for(self, stage: str) -> bool:
        """Whether a stage has anything to do for it at present."""
        return self.phase.works and stage in self.stages


@dataclass(frozen=True, slots=True)
class Tasks:
    """All that the topic said at one moment.

    Attributes:
        tasks: by job, those whose name matches the supervisor's pattern.
        unreadable: names of jobs that another version of the software has written.
    """

    tasks: Mapping[str, Task]
    unreadable: frozenset[str]


def tasks_of(topic: ListedJobs, pattern: str) -> Tasks:
    """What the state of the topic means; `pattern` is a shell pattern of job names."""
    tasks, unreadable = {}, set(topic.unreadable)
    for name, job in topic.jobs.items():
        try:
            tasks[name] = Task.of(job, topic.phase(name))
        except Exception:
            # One job's record may stop no other job, whatever is wrong with it.
            unreadable.add(name)
    return Tasks(
        {name: task for name, task in tasks.items() if fnmatchcase(name, pattern)},
        frozenset(name for name in unreadable if fnmatchcase(name, pattern)),
    )
