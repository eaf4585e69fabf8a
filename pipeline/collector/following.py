"""Which jobs a collector takes reports of, as ``dpstream.jobs`` says it at the moment."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.listed_jobs import ListedJobs
from dpstream.pipeline.jobs.phases import Phase


@dataclass(frozen=True, slots=True)
class WantedJob:
    """A job whose devices report for themselves, and what its operator wants of it."""

    job: DeployedJob
    phase: Phase


@dataclass(frozen=True, slots=True)
class WantedJobs:
    """All that the topic said at one moment.

    Attributes:
        jobs: by name.
        refused: of jobs that were named, why reports of them cannot be taken; and of all others
            that another version of the software has written.
    """

    jobs: Mapping[str, WantedJob]
    refused: Mapping[str, str]


def wanted_jobs(topic: ListedJobs, names: Collection[str] = ()) -> WantedJobs:
    """What the state of the topic means for a collector.

    Args:
        topic: as far as it was read.
        names: of the jobs that it is for; none: of all that have devices.
    """
    jobs, refused = {}, {}
    for name, job in topic.jobs.items():
        if names and name not in names:
            continue
        if job.devices is None or job.signed_description is None or job.replay_of is not None:
            if names:
                refused[name] = "it is deployed without devices, that report for themselves"
            continue
        # Not when the first report has come: of some laws it takes seconds.
        _ = job.content_form
        jobs[name] = WantedJob(job, topic.phase(name))
    for name in topic.unreadable:
        if not names or name in names:
            refused[name] = "another version of the software has deployed it"
    for name in set(names) - topic.jobs.keys() - topic.unreadable:
        refused[name] = "it is not deployed; its reports are taken as soon as it is"
    return WantedJobs(jobs, refused)
