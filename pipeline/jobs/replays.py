"""Jobs for replays: a replay aggregates the original job's reports again, under its own name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpstream.pipeline.errors import DpstreamError
from dpstream.pipeline.jobs.deployed_job import DeployedJob, fingerprint_of
from dpstream.pipeline.jobs.job_differences import describe_difference
from dpstream.pipeline.jobs.job_files import Job, make_job, validate
from dpstream.pipeline.jobs.spare_cells import with_names_of
from dpstream.topics.names import Role

# Keys in which a replay can differ: how reports are read, and keys unrelated to reports.
_MAY_DIFFER = (
    "name",
    "budget",
    "parameters.estimator",
    "parameters.messages_per_user",
    "shuffle.grace",
    "topics",
)


class ReplayError(DpstreamError):
    """A replay is impossible; the message states the reason, and what is possible."""


def replayed_job(
    original: DeployedJob,
    *,
    name: str | None = None,
    changed: Job | None = None,
    partitions: int | None = None,
) -> Job:
    """Return the job to deploy for a replay of `original`.

    `changed` is a job with another estimator or other topics. `name` defaults to the name of
    `changed`, or to the original's name followed by ``-replay``. Raises `ReplayError` with the
    difference if `changed` changes the meaning of reports.
    """
    if changed is not None:
        changed = with_names_of(original, changed)
        rejected = [
            difference
            for difference in describe_difference(original, changed)
            if not _may_differ(difference.partition(":")[0])
        ]
        if rejected:
            raise ReplayError(
                f"the job file differs from job {original.name}, whose windows it reads "
                f"({'; '.join(rejected)}). A replay can change only the estimator, "
                "messages_per_user, topics, grace and budget"
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
    """Start a replay's deployment with the original's constants, fingerprint and horizons.

    Arguments are those of `deploy_job`; `first_epoch` is the original's first epoch, from its
    manifests. Nothing is calibrated and no user is charged.
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
        raise ReplayError(
            f"job {job.name} interprets reports differently from job {original.name}: the "
            "fingerprints differ. A replay must have the same protocol, parameters and epochs"
        )
    return validate(DeployedJob, values)


def _may_differ(key: str) -> bool:
    return any(key == allowed or key.startswith(f"{allowed}.") for allowed in _MAY_DIFFER)
