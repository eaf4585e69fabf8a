"""Registry examples as jobs of a few epochs."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from tests.conformance.cases import Case

LAST_EPOCH = 4


def job_of(case: Case, *, dummies: str | None = None, minimum: int = 12) -> DeployedJob:
    job = make_job(case_job_file(case, dummies=dummies, minimum=minimum))
    return deploy_job(job, deployed_at=0, deployment=bytes(16))


def case_job_file(
    case: Case, name: str = "case", *, dummies: str | None = None, minimum: int = 12
) -> dict[str, Any]:
    """Return the job file of a case; `dummies` and `minimum` override the example's values.

    Raises:
        ValueError: If `dummies` does not apply to these parameters.
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
    written: dict[str, Any] = _without_none(asdict(parameters))
    return written


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, tuple) else value
