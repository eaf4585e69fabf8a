"""The examples of the registry as jobs of a few epochs."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from tests.conformance.cases import Case

LAST_EPOCH = 4


def job_of(case: Case, *, dummies: str | None = None, minimum: int = 12) -> DeployedJob:
    """The case as a deployed job; arguments are those of `case_job_file`."""
    job = make_job(case_job_file(case, dummies=dummies, minimum=minimum))
    return deploy_job(job, deployed_at=0, deployment=bytes(16))


def case_job_file(
    case: Case, name: str = "case", *, dummies: str | None = None, minimum: int = 12
) -> dict[str, Any]:
    """What the job file of a case says.

    Args:
        case: the example.
        name: of the job.
        dummies: who adds them, if it is not the example's.
        minimum: of devices, if the example asks for fewer.

    Raises:
        ValueError: `dummies` is not for these parameters.
    """
    parameters = case.parameters
    if dummies is not None:
        parameters = replace(parameters, dummies=dummies)
    return {
        "name": name,
        "protocol": case.protocol.name,
        "parameters": _as_written(parameters),
        "epochs": {"count": LAST_EPOCH},
        "shuffle": {"minimum": max(case.minimum, minimum)},
        "topics": {"partitions": 2},
    }


def _as_written(parameters: Any) -> dict[str, Any]:
    """As a job file says them."""
    written = {key: value for key, value in asdict(parameters).items() if value is not None}
    domain = written.get("domain")
    if isinstance(domain, tuple):
        written["domain"] = list(domain)
    return written
