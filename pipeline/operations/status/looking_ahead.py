"""What is asked of a cluster for the status of many jobs, known before it is asked."""

from __future__ import annotations

from collections.abc import Iterable

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.many_topics import ManyTopics, Tail
from dpstream.pipeline.kafka.workers.groups import group_name
from dpstream.pipeline.stages.topic_uses import stages_of
from dpstream.topics.names import SUMS, Role

HEARTBEATS_READ = 300
"""Of each of many jobs; who has said nothing for longer than these last is not told of."""
_LATEST = 64
_READ = (Role.PRODUCERS, Role.MANIFESTS, Role.ESTIMATES, Role.PARTIALS, *SUMS, Role.DEAD_LETTERS)


def look_ahead(cluster: ManyTopics, jobs: Iterable[DeployedJob]) -> None:
    """Ask at once what a `JobWatch` of each of these jobs is going to ask."""
    topics: list[str] = []
    groups: dict[str, str] = {}
    tails: dict[str, Tail] = {}
    for job in jobs:
        topics += map(job.topic, job.start_offsets)
        groups |= {group_name(job, stage): job.topic(at) for stage, at in stages_of(job).items()}
        for role in (Role.STATUS, *_READ):
            if role in job.start_offsets:
                at_most = HEARTBEATS_READ if role is Role.STATUS else _LATEST
                tails[job.topic(role)] = Tail(job.start_offset(role), at_most)
    cluster.look(topics, groups, tails)
