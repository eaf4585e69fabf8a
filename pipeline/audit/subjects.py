"""Examples of protocols as jobs of a few epochs, and values that their devices may have."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.conformance.cases import Case
from pipeline.jobs.deployed_job import DeployedJob, deploy_job
from pipeline.jobs.job_files import make_job


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


def other_values(
    case: Case, epochs: int, devices: int, changed: NDArray[np.intp]
) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Values of neighbours, shape (epochs, devices) or more: some devices have others always."""
    size = len(case.values)
    indices = (np.arange(epochs)[:, None] * 7 + np.arange(devices) * 3) % size
    others = indices.copy()
    others[:, changed] += 1 + np.arange(epochs)[:, None] % (size - 1)
    return case.array_of(indices), case.array_of(others % size)
