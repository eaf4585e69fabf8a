"""Whether a job that was deployed runs with the law that its parameters promise.

Everybody works from its record in the cluster: devices, stages, readers. Somebody who can write
there, or software that has calibrated it wrongly, changes the constants that all of them use.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from dpstream.pipeline.audit.findings import Finding, Verdict
from dpstream.pipeline.jobs.deployed_job import DeployedJob, fingerprint_of
from dpstream.pipeline.jobs.descriptions import is_signed
from dpstream.pipeline.jobs.job_files import validate

ATTACK: Final = "deployed law"
_OFF: Final = 1 + 1e-9
"""By how much logarithms of two machines may be off."""


def attack_law(deployed: DeployedJob, calibrated: DeployedJob) -> Iterator[Finding]:
    """The constants of a deployed job beside those that this software makes of its parameters."""
    runs, promised = deployed.guarantee, calibrated.guarantee
    reason = ""
    if (runs.unit, runs.neighbours) != (promised.unit, promised.neighbours):
        reason = f"its law is about another unit or other neighbours than {promised.neighbours}"
    elif runs.epsilon > promised.epsilon * _OFF or runs.delta > promised.delta * _OFF:
        reason = (
            f"its constants lose epsilon {runs.epsilon:.9g}, delta {runs.delta:.9g}; its "
            f"parameters promise {promised.epsilon:.9g} and {promised.delta:.9g}"
        )
    yield Finding(
        deployed.name,
        ATTACK,
        f"constants of deployment {deployed.deployment.hex()[:8]} beside the job's parameters",
        Verdict.CONVICTED if reason else Verdict.EXACT,
        claimed=promised.epsilon,
        delta=promised.delta,
        observed=runs.epsilon,
        reason=reason,
    )
    if deployed.signed_description is not None:
        reason = _told(deployed)
        yield Finding(
            deployed.name,
            ATTACK,
            "devices are told the law that runs, by who deployed it",
            Verdict.CONVICTED if reason else Verdict.CONSISTENT,
            reason=reason,
        )


def _told(deployed: DeployedJob) -> str:
    told = deployed.signed_description
    assert told is not None
    if not is_signed(told):
        return "what devices are told is not signed by the key that it names"
    if json.loads(told.statement)["law"] != deployed.constants:
        return "devices are told other constants than stages work with"
    return ""


def with_constants_of(deployed: DeployedJob, job: DeployedJob) -> DeployedJob:
    """Another deployment of the same parameters, with the constants of this one."""
    values = {**json.loads(job.to_bytes()), "constants": deployed.constants}
    return validate(DeployedJob, {**values, "fingerprint": fingerprint_of(values).hex()})
