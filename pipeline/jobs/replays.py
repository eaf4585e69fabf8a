"""The job that a replay runs under: the original's reports, under a name of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpstream.pipeline.errors import DpstreamError
from dpstream.pipeline.jobs.deployed_job import DeployedJob, fingerprint_of
from dpstream.pipeline.jobs.job_differences import describe_difference
from dpstream.pipeline.jobs.job_files import Job, make_job, validate
from dpstream.topics.names import Role

# What may differ in a replay: how reports are read, and what says nothing of them.
_MAY_DIFFER = (
    "name",
    "budget",
    "parameters.estimator",
    "parameters.messages_per_user",
    "shuffle.grace",
    "topics",
)


class ReplayError(DpstreamError):
    """A replay is not possible; the message says why, and what is."""


def replayed_job(
    original: DeployedJob,
    *,
    name: str | None = None,
    changed: Job | None = None,
    partitions: int | None = None,
) -> Job:
    """What a replay is deployed as.

    Args:
        original: what is replayed.
        name: of the replay; by default that of `changed`, or else the original's and ``-replay``.
        changed: a job with another estimator or other topics.
        partitions: of the replay's topics, whatever `changed` says.

    Raises:
        ReplayError: `changed` says something else of the reports than the original; the message
            names the difference.
        JobError: the name is none.
    """
    if changed is not None:
        refused = [
            difference
            for difference in describe_difference(original, changed)
            if not _may_differ(difference.partition(":")[0])
        ]
        if refused:
            raise ReplayError(
                f"the job file says something else of the reports than job {original.name}, whose "
                f"windows hold what they hold ({'; '.join(refused)}): only the estimator, "
                "messages_per_user, topics, grace and budget of a replay may be others"
            )
    values = (original if changed is None else changed).to_json()
    if name is not None:
        values["name"] = name
    elif values["name"] == original.name:
        values["name"] = f"{original.name}-replay"
    if partitions is not None:
        values["topics"] = {**values["topics"], "partitions": partitions}
    return make_job(values)


def deploy_replay(
    original: DeployedJob,
    job: Job,
    *,
    deployment: bytes,
    deployed_at: int,
    first_epoch: int | None = None,
    start_offsets: Mapping[Role, tuple[int, ...]] | None = None,
) -> DeployedJob:
    """Begin a replay's deployment: with the original's constants, fingerprint and horizons.

    Arguments are those of `deploy_job`, and the original's first epoch as its manifests hold it.
    Nothing is calibrated and nobody is charged.
    """
    if start_offsets is None:
        topics = job.topic_settings()
        start_offsets = {role: (0,) * topic.partitions for role, topic in topics.items()}
    first = original.first_epoch
    if first_epoch is not None and original.replay_of is None:
        first = first_epoch
    values: dict[str, Any] = {
        **job.to_json(),
        "constants": original.constants,
        "start_offsets": {role.value: list(offsets) for role, offsets in start_offsets.items()},
        "deployed_at": deployed_at,
        "deployment": deployment.hex(),
        "fingerprint": original.fingerprint.hex(),
        "horizons": original.horizons,
        "replay_of": {
            "job": original.name,
            "deployment": original.deployment.hex(),
            "first_epoch": first,
        },
    }
    if fingerprint_of(values) != original.fingerprint:
        raise ReplayError(f"job {job.name} would give reports of {original.name} another meaning")
    return validate(DeployedJob, values)


def _may_differ(key: str) -> bool:
    return any(key == allowed or key.startswith(f"{allowed}.") for allowed in _MAY_DIFFER)
