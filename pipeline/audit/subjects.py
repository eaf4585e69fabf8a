"""Examples of protocols as jobs of a few epochs."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from typing import Any

from dpstream.pipeline.conformance.cases import Case
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job


# Several attacks begin with the same job, and calibrating one takes a while.
@lru_cache(maxsize=64)
def job_of(case: Case, *, epochs: int, minimum: int) -> DeployedJob:
    """The example of a case as a deployed job; `minimum` if it asks for fewer devices."""
    written = {key: value for key, value in asdict(case.parameters).items() if value is not None}
    if isinstance(written.get("domain"), tuple):
        written["domain"] = list(written["domain"])
    values: dict[str, Any] = {
        "name": "audit",
        "protocol": case.protocol.name,
        "parameters": written,
        "epochs": {"count": epochs},
        "shuffle": {"minimum": max(case.minimum, minimum)},
        "topics": {"partitions": 2},
    }
    return deploy_job(make_job(values), deployed_at=0, deployment=bytes(16))
