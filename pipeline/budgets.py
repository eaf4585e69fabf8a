"""What a population has been charged, and the most it may be.

Every deployment of a job charges the people it is about with its guarantee, once and for good: a
deployment that is replaced has still seen them. Charges add up (basic composition), whatever the
jobs and protocols. Each is a record of its own in ``dpstream.jobs``, which nothing ever deletes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from pipeline.deployed_job import DeployedJob
from topics.frames import CodecError

_KEY = b"charge/"


class BudgetError(Exception):
    """A deployment would charge a population more than its budget allows."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What one deployment costs the people it is about.

    Attributes:
        population: their name.
        job: the job's name.
        deployment: 32 hexadecimal digits.
        epsilon: for everything the deployment will ever see of one of them.
        delta: the same.
        at: when it was deployed, milliseconds since 1970.
    """

    population: str
    job: str
    deployment: str
    epsilon: float
    delta: float
    at: int

    @classmethod
    def of(cls, job: DeployedJob) -> Charge:
        """The charge of a deployment: a guarantee for a single epoch is paid at every one."""
        guarantee = job.guarantee()
        times = job.last_epoch if guarantee.unit == "epoch" else 1
        return cls(
            population=job.population_name,
            job=job.name,
            deployment=job.deployment.hex(),
            epsilon=guarantee.epsilon * times,
            delta=guarantee.delta * times,
            at=job.deployed_at,
        )

    @property
    def key(self) -> bytes:
        """The record's key, its own for every deployment."""
        return _KEY + self.deployment.encode()

    def to_bytes(self) -> bytes:
        """The record's value."""
        return json.dumps(asdict(self), sort_keys=True, allow_nan=False).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Charge:
        """Read a record's value.

        Raises:
            CodecError: it is no charge.
        """
        try:
            return cls(**json.loads(data))
        except (TypeError, ValueError) as error:
            raise CodecError(f"not a charge: {error}") from None


def is_charge(key: bytes | None) -> bool:
    """Whether a record of ``dpstream.jobs`` is a charge."""
    return key is not None and key.startswith(_KEY)


def check_budget(job: DeployedJob, charges: Iterable[Charge]) -> Charge:
    """The charge of a deployment, if its job's budget has room for it beside the earlier ones.

    Raises:
        BudgetError: it has not; the message says what has been charged and what is asked for.
    """
    charge = Charge.of(job)
    if job.budget is None:
        return charge
    earlier = [other for other in charges if other.population == charge.population]
    for name, allowed, asked, charged in (
        ("epsilon", job.budget.epsilon, charge.epsilon, [other.epsilon for other in earlier]),
        ("delta", job.budget.delta, charge.delta, [other.delta for other in earlier]),
    ):
        if math.fsum([*charged, asked]) > allowed:
            raise BudgetError(
                f"population {charge.population} may be charged {name} {allowed:g}; "
                f"{len(earlier)} earlier deployments took {math.fsum(charged):g} and this one "
                f"would take {asked:g}: lower it, or raise budget.{name} if these people agree"
            )
    return charge
