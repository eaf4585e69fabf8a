"""The examples of the registry as jobs of a few epochs."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from pipeline.deployed_job import DeployedJob, deploy_job
from pipeline.jobs import make_job
from tests.conformance.cases import Case

LAST_EPOCH = 4


def job_of(case: Case, *, dummies: str | None = None, minimum: int = 12) -> DeployedJob:
    """The case as a deployed job; `dummies` says who adds them, if it is not the example's."""
    parameters = case.parameters
    if dummies is not None:
        parameters = replace(parameters, dummies=dummies)
    job = make_job(
        {
            "name": "case",
            "protocol": case.protocol.name,
            "parameters": _as_written(parameters),
            "epochs": {"count": LAST_EPOCH},
            "shuffle": {"minimum": max(case.minimum, minimum)},
            "topics": {"partitions": 2},
        }
    )
    return deploy_job(job, deployed_at=0, deployment=bytes(16))


def _as_written(parameters: Any) -> dict[str, Any]:
    """As a job file says them."""
    written = {key: value for key, value in asdict(parameters).items() if value is not None}
    domain = written.get("domain")
    if isinstance(domain, tuple):
        written["domain"] = list(domain)
    return written
