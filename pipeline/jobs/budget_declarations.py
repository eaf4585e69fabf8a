"""Budget declarations for populations, and the choice of the binding declaration.

A budget belongs to a population, not to a job file. The smallest budget that any deployment has
declared binds every later deployment, whatever the later job file declares or omits. The budget
remains binding even after the job that declared it is undeployed. Only an operator can change the
budget, by naming the population and the new budget.

Declarations are in the ledger (`dpstream.pipeline.ledger`); copies in ``dpstream.jobs`` stay
forever.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from dpstream.pipeline.errors import one_line
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.listed_jobs import BUDGET_KEY
from dpstream.pipeline.values.durations import parse_duration
from dpstream.topics.frames import CodecError

QUANTITIES = ("epsilon", "delta")
BY_COMMAND = "0" * 32
"""Deployment ID of a budget set by ``dpstream budget``, which deploys no job."""


@dataclass(frozen=True, slots=True)
class BudgetDeclaration:
    """Declared budget limit for a population; epsilon and delta are None if it was lifted.

    Attributes:
        job: Job whose file declares the budget, or with whose deployment an operator set it.
        deployment: Deployment of that job, 32 hexadecimal digits, or `BY_COMMAND`.
        at: Time of declaration, milliseconds since 1970.
        operator: True if an operator set the budget explicitly, which ends earlier declarations.
        composed: True if a privacy filter computes the total charge. The filter uses half of delta.
        per: Length of every period to which the limit applies, as an ISO 8601 duration; None for a
            limit for all time.
    """

    population: str
    epsilon: float | None
    delta: float | None
    job: str
    deployment: str
    at: int
    operator: bool = False
    reason: str = ""
    composed: bool = False
    per: str | None = None

    @classmethod
    def of(cls, job: DeployedJob, at: int) -> BudgetDeclaration | None:
        if job.budget is None or job.replay_of is not None:
            return None
        return cls(
            population=job.population_name,
            epsilon=job.budget.epsilon,
            delta=job.budget.delta,
            job=job.name,
            deployment=job.deployment.hex(),
            at=at,
            per=None if job.budget.per is None else str(job.budget.per),
        )

    @property
    def key(self) -> bytes:
        return BUDGET_KEY + hashlib.sha256(self.to_bytes()).hexdigest()[:32].encode()

    @property
    def who(self) -> str:
        day = datetime.fromtimestamp(self.at / 1000, UTC).date()
        job = one_line(self.job)
        deployment = f"deployment {one_line(self.deployment[:8])}, {day}"
        if self.deployment == BY_COMMAND:
            done = "removed" if self.epsilon is None else "set"
            return f"an operator {done} it with '{job}' ({day}: {one_line(self.reason)})"
        if self.operator:
            return f"an operator set it with job {job} ({deployment})"
        return f"job {job} declared it ({deployment})"

    def most(self, quantity: str) -> float | None:
        """Return the limit on the sum of charged epsilons or deltas; None if there is no limit."""
        amount: float | None = getattr(self, quantity)
        if amount is not None and quantity == "delta" and self.composed:
            return amount / 2
        return amount

    def repeats(self, other: BudgetDeclaration) -> bool:
        return (
            not self.operator
            and not other.operator
            and self.deployment == other.deployment
            and (self.epsilon, self.delta, self.per) == (other.epsilon, other.delta, other.per)
        )

    def to_bytes(self) -> bytes:
        body = asdict(self)
        if self.per is None:
            del body["per"]
        return json.dumps(body, sort_keys=True, allow_nan=False).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> BudgetDeclaration:
        """Decode a declaration, ignoring unknown keys."""
        try:
            values = json.loads(data)
            values = {"per": None, **values}
            declared = cls(*(values[name] for name in cls.__slots__))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise CodecError(f"not a budget declaration: {error!r}") from None
        declared._check()
        return declared

    def _check(self) -> None:
        texts = (self.population, self.job, self.deployment)
        if not all(isinstance(text, str) and text for text in texts):
            raise CodecError(
                "not a budget declaration: 'population', 'job' and 'deployment' must be text"
            )
        try:
            if self.per is not None:
                parse_duration(self.per)
        except (TypeError, ValueError):
            raise CodecError("not a budget declaration: 'per' must be a duration") from None
        if not isinstance(self.reason, str) or type(self.composed) is not bool:
            raise CodecError(
                "not a budget declaration: 'reason' must be text, and 'composed' true or false"
            )
        if type(self.operator) is not bool or type(self.at) is not int or self.at < 0:
            raise CodecError(
                "not a budget declaration: 'operator' must be true or false, and 'at' a Unix time "
                "in milliseconds"
            )
        amounts = (self.epsilon, self.delta)
        if self.operator and amounts == (None, None):
            return
        for amount in amounts:
            if type(amount) not in (int, float) or not 0 <= amount < math.inf:  # type: ignore[operator]
                raise CodecError(
                    "not a budget declaration: 'epsilon' and 'delta' must be numbers of at least 0"
                )


@dataclass(frozen=True, slots=True)
class BudgetChange:
    """All-time budget set by an operator; epsilon None lifts it, delta None leaves delta as is."""

    population: str
    epsilon: float | None
    delta: float | None = None


def binding_budget(
    population: str, declared: Iterable[BudgetDeclaration]
) -> dict[str, BudgetDeclaration]:
    """Return the declaration with the smallest all-time limit for "epsilon", and for "delta".

    Declarations before an operator last set or lifted the budget are ignored. Without a budget, the
    result is empty. `declared` is in order, and can include other populations.

    >>> def state(epsilon, delta, operator=False):
    ...     return BudgetDeclaration("all", epsilon, delta, "a", "0" * 32, 0, operator)
    >>> strictest = binding_budget("all", [state(4, 1e-6), state(9, 0), state(3, 0.1)])
    >>> strictest["epsilon"].epsilon, strictest["delta"].delta
    (3, 0)
    >>> binding_budget("all", [state(4, 0), state(8, 0, operator=True)])["epsilon"].epsilon
    8
    >>> binding_budget("all", [state(4, 0), state(None, None, operator=True)])
    {}
    """
    binding: dict[str, BudgetDeclaration] = {}
    for each in standing_budgets(population, declared):
        if each.per is not None:
            continue
        for quantity in QUANTITIES:
            amount, holder = each.most(quantity), binding.get(quantity)
            least = None if holder is None else holder.most(quantity)
            if amount is not None and (least is None or amount < least):
                binding[quantity] = each
    return binding


def standing_budgets(
    population: str, declared: Iterable[BudgetDeclaration]
) -> list[BudgetDeclaration]:
    """Return a population's declarations, from the last one by an operator (if any) onwards."""
    standing: list[BudgetDeclaration] = []
    for each in declared:
        if each.population == population:
            standing = [each] if each.operator else [*standing, each]
    return standing


def standing_for(
    job: DeployedJob, declared: Iterable[BudgetDeclaration]
) -> list[BudgetDeclaration]:
    """Return the `standing_budgets` of a job's population, including the job's own declaration."""
    earlier = list(declared)
    own = BudgetDeclaration.of(job, job.deployed_at)
    if own is not None and not any(own.repeats(each) for each in earlier):
        earlier.append(own)
    return standing_budgets(job.population_name, earlier)
