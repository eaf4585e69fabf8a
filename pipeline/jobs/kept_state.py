"""Compare what a cluster holds of a deployment with the deployment and with itself.

Published epochs are decided, decided epochs were sent, a kept log begins where the deployment
does, and a topic is the one that the job was deployed with. Workers, producers and collectors check
it when they start, and `dpstream status` at every look. A contradiction is a sentence that names
what was found and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dpstream.pipeline.errors import DpstreamError
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.topics.names import Role


class ContradictionError(DpstreamError):
    """What is kept of a job contradicts itself."""


@dataclass(frozen=True, slots=True)
class KeptState:
    """What was found of a deployment; what is unknown is left out and not compared.

    Attributes:
        ids: Kafka's ids of the topics.
    """

    ids: Mapping[Role, str] = field(default_factory=dict)


def begin_anew(job: str) -> str:
    """The remedy where records of a job are lost for good."""
    return f"to begin anew, dpstream undeploy {job} --delete-topics and deploy it again"


def made_again(job: str, topic: str) -> str:
    """A sentence on a topic that is another one than the job was deployed with."""
    return f"topic {topic} was deleted and made again, and what it held is lost: {begin_anew(job)}"


def contradictions(job: DeployedJob, kept: KeptState) -> Iterator[str]:
    """Sentences on what contradicts the deployment or itself."""
    for role, deployed in job.topic_ids.items():
        if kept.ids.get(role, deployed) != deployed:
            yield made_again(job.name, job.topic(role))


def check(job: DeployedJob, kept: KeptState) -> None:
    """Refuse a state that contradicts itself.

    Raises:
        ContradictionError: it does.
    """
    found = list(contradictions(job, kept))
    if found:
        raise ContradictionError("; ".join(found))
