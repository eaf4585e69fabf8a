"""Charges to a population, and their comparison with its budget.

- Every deployment charges the privacy loss of its guarantee to its users, once and permanently. The
  charge for a replaced deployment remains, because that deployment has seen their data.
- Charges are summed (basic composition) over all jobs and protocols. An operator can select a
  privacy filter instead. The filter is valid even if results of earlier jobs decide which jobs
  follow (`dpstream.randomizers.accounting.charges`).
- A budget can limit every period of a given length (`Budget.per`), such as a year, instead of all
  time. The charge for a recurring job with a rolling guarantee is then permanently counted as the
  number of horizons that such a period can overlap. All other charges count in full.
- Each charge is an entry of the ledger (`dpstream.pipeline.ledger`), with a copy in
  ``dpstream.jobs`` that is never deleted.
- The limit for a population is the smallest budget that any job has declared for it
  (`dpstream.pipeline.jobs.budget_declarations`). It also binds jobs that declare no budget.
- A recurring job is charged for all its horizons when it is deployed. With a budget, it gets as
  many horizons as the budget allows, and ends after the last horizon. Without a budget, it never
  ends, so its total charge is unlimited and no budget for its users can be enforced.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction

from dpstream.pipeline.errors import DpstreamError, one_line
from dpstream.pipeline.jobs.budget_declarations import (
    QUANTITIES,
    BudgetDeclaration,
    binding_budget,
    standing_for,
)
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.jobs.listed_jobs import CHARGE_KEY
from dpstream.pipeline.values.durations import parse_duration
from dpstream.randomizers.accounting.charges import Filter, MechanismCost
from dpstream.randomizers.guarantee import rounded_down, rounded_up
from dpstream.topics.frames import INTEGER_MAX, CodecError


class BudgetError(DpstreamError):
    """A deployment would charge a population more than its budget allows."""


@dataclass(frozen=True, slots=True)
class Charge:
    """Privacy loss that one deployment charges to each of its users.

    Epsilon and delta are per user and horizon, and cover everything that the deployment sees.
    `horizons` is None if unlimited, `at` is in milliseconds since 1970, `deployment` is 32
    hexadecimal digits. A rolling guarantee holds for any `rolling_epochs` consecutive epochs.
    `epoch_length` is an ISO 8601 duration.
    """

    population: str
    job: str
    deployment: str
    epsilon: float
    delta: float
    at: int
    horizons: int | None = 1
    rolling_epochs: int | None = None
    epoch_length: str | None = None

    @classmethod
    def of(cls, job: DeployedJob) -> Charge:
        """Return the charge for a deployment: the user-level privacy loss, if known.

        A guarantee that covers only a single epoch is charged once for every epoch of a horizon.
        """
        guarantee = job.guarantee
        single = guarantee.unit == "epoch" and guarantee.stream_epsilon is None
        times = job.epochs.count if single else 1
        rolling, length = guarantee.rolling, job.epochs.length
        if job.epochs.calendar is None or length is None:
            rolling = None
        return cls(
            population=job.population_name,
            job=job.name,
            deployment=job.deployment.hex(),
            epsilon=(guarantee.stream_epsilon or guarantee.epsilon) * times,
            delta=guarantee.delta * times,
            at=job.deployed_at,
            horizons=job.horizons if job.epochs.renew else 1,
            rolling_epochs=None if rolling is None else rolling.epochs,
            epoch_length=None if rolling is None else str(length),
        )

    def horizons_in(self, period: str | None) -> int | None:
        """Return the maximum number of horizons that count in one period; None if unlimited.

        `period` is an ISO 8601 duration, or None for all time.
        """
        if period is None or self.rolling_epochs is None or self.epoch_length is None:
            return self.horizons
        epochs = parse_duration(self.epoch_length).most_in(parse_duration(period))
        most = -(-epochs // self.rolling_epochs)
        return most if self.horizons is None else min(most, self.horizons)

    @property
    def key(self) -> bytes:
        return CHARGE_KEY + self.deployment.encode()

    def to_bytes(self) -> bytes:
        body = asdict(self)
        if self.rolling_epochs is None:
            del body["rolling_epochs"], body["epoch_length"]
        return json.dumps(body, sort_keys=True, allow_nan=False).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Charge:
        try:
            charge = cls(**json.loads(data))
        except (TypeError, ValueError, RecursionError) as error:
            raise CodecError(f"not a charge: {error}") from None
        charge._check()
        return charge

    def _check(self) -> None:
        texts = (self.population, self.job, self.deployment)
        if not all(isinstance(text, str) and text for text in texts):
            raise CodecError("not a charge: 'population', 'job' and 'deployment' must be text")
        for name in ("epsilon", "delta"):
            loss = getattr(self, name)
            if type(loss) not in (int, float) or not 0 <= loss < math.inf:
                raise CodecError(f"not a charge: '{name}' must be a number of at least 0")
        if type(self.at) is not int or self.at < 0:
            raise CodecError("not a charge: 'at' must be a Unix time in milliseconds")
        horizons = 1 if self.horizons is None else self.horizons
        if type(horizons) is not int or not 1 <= horizons <= INTEGER_MAX:
            raise CodecError("not a charge: 'horizons' must be an integer of at least 1, or null")
        if self.rolling_epochs is not None or self.epoch_length is not None:
            try:
                parse_duration(self.epoch_length or "")
            except (TypeError, ValueError):
                raise CodecError("not a charge: 'epoch_length' must be a duration") from None
            if type(self.rolling_epochs) is not int or self.rolling_epochs < 1:
                raise CodecError("not a charge: 'rolling_epochs' must be an integer of at least 1")


def horizons_within_budget(
    job: DeployedJob, charges: Iterable[Charge], declared: Iterable[BudgetDeclaration] = ()
) -> int | None:
    """Return how many horizons a recurring job gets; None without a budget, and 1 for other jobs.

    The result is at least 1, even if no horizon fits the budget; `check_budget` then raises an
    error. `charges` and `declared` can include other populations.
    """
    if not job.epochs.renew:
        return 1
    charge = Charge.of(job)
    standing = standing_for(job, declared)
    binding = binding_budget(job.population_name, standing)
    earlier = _of_the_same_users(charge, charges)
    accounts = list(_accounts(charge, binding, earlier)) if binding else []
    if charge.rolling_epochs is None:
        accounts += [each for limit in standing for each in _in_period(charge, limit, earlier)]
    if not accounts:
        return None
    room = INTEGER_MAX // job.epochs.count
    for _, allowed, requested, charged in accounts:
        if requested:
            room = min(room, (allowed - charged) // requested)
    return max(1, room)


def check_budget(
    job: DeployedJob, charges: Iterable[Charge], declared: Iterable[BudgetDeclaration] = ()
) -> Charge:
    """Return the charge for a deployment if it fits its population's budget.

    Raises `BudgetError` if the charge does not fit. The message states who declared the budget, the
    amount charged so far and the amount requested.
    """
    charge = Charge.of(job)
    standing = standing_for(job, declared)
    binding = binding_budget(charge.population, standing)
    people = charge.population
    earlier = _of_the_same_users(charge, charges)
    for limit in standing:
        if limit.per is not None:
            _check_period(limit, charge, earlier)
    if not binding:
        return charge
    endless = next((other.job for other in earlier if other.horizons is None), None)
    if endless is not None:
        source = _source(binding["epsilon"], charge)
        raise BudgetError(
            f"population {people} is charged without limit by job {one_line(endless)}, a "
            f"recurring job deployed without a budget: no budget can be enforced{source}. Use "
            f"another population, or, if its users agree, {_without(binding, charge)}"
        )
    if charge.horizons is None:
        raise BudgetError(
            f"this job would charge population {people} without limit, but the population now has "
            f"a budget of epsilon {binding['epsilon'].epsilon:g}"
            f"{_source(binding['epsilon'], charge)}. Deploy the job again: the new deployment gets "
            "as many horizons as the budget allows"
        )
    for name, allowed, requested, charged in _accounts(charge, binding, earlier):
        requested *= charge.horizons
        counted, holder, composed = charged + requested, binding[name], ""
        if name == "epsilon":
            everything = [*earlier, charge]
            holder = _tightest(standing, everything)
            allowed, counted = _decimal(holder.epsilon or 0.0), _counted(holder, everything)
            if (filtered := _filtered(holder, everything)) is not None:
                composed = f" (composed: {rounded_up(filtered, 4)} in total)"
        if counted > allowed:
            raise BudgetError(
                f"the budget of population {people} is {name} "
                f"{float(allowed):g}{_source(holder, charge)}; {len(earlier)} earlier "
                f"deployment{'s' * (len(earlier) != 1)} charged {float(charged):g} and this one "
                f"would charge {float(requested):g}{composed}. Lower {name}, or, if the users "
                f"agree, raise the budget: --set-budget {people}=EPSILON"
                f"{',DELTA' * (name == 'delta')}"
            )
    return charge


def _check_period(limit: BudgetDeclaration, charge: Charge, earlier: Sequence[Charge]) -> None:
    people, period = charge.population, limit.per
    assert period is not None
    spell = parse_duration(period).any_period()
    endless = next((each for each in (*earlier, charge) if each.horizons_in(period) is None), None)
    if endless is not None:
        raise BudgetError(
            f"the budget of population {people} is epsilon {limit.epsilon:g} in "
            f"{spell}{_source(limit, charge)}, but job {one_line(endless.job)} charges it without "
            "limit: its guarantee is for one horizon, not for any period of consecutive epochs. "
            "Only recurring jobs of sampled_response with epochs.start and epochs.length are "
            "counted by period. Use another population for one of the jobs, or, if its users "
            f"agree, remove the budget with --set-budget {people}=none"
        )
    for name, allowed, requested, charged in _in_period(charge, limit, earlier):
        horizons = charge.horizons_in(period) or 1
        if charged + requested * horizons > allowed:
            raise BudgetError(
                f"the budget of population {people} is {name} {float(allowed):g} in {spell}"
                f"{_source(limit, charge)}; {len(earlier)} earlier "
                f"deployment{'s' * (len(earlier) != 1)} used {float(charged):g} and this "
                f"one would use {float(requested * horizons):g}: {name} "
                f"{float(requested):g} in each of the {horizons} horizons that can count toward a "
                f"period. Lower {name}, use longer horizons, or, if the users agree, raise the "
                f"budget: dpstream budget {people} --epsilon EPSILON --per {period}"
            )


def _in_period(
    charge: Charge, limit: BudgetDeclaration, earlier: Sequence[Charge]
) -> Iterator[tuple[str, Fraction, Fraction, Fraction]]:
    """Yield the same tuples as `_accounts` for a budget with a period; otherwise, nothing."""
    for name in QUANTITIES if limit.per is not None else ():
        charged = total_of(earlier, name, limit.per)
        allowed = _decimal(limit.most(name) or 0.0)
        yield (
            name,
            allowed,
            _decimal(getattr(charge, name)),
            allowed if charged is None else charged,
        )


def spent_by(charges: Iterable[Charge]) -> list[MechanismCost] | None:
    spent = []
    for charge in charges:
        if charge.horizons is None:
            return None
        spent.append(MechanismCost(charge.epsilon, charge.delta, charge.horizons))
    return spent


def filter_of(declared: BudgetDeclaration) -> Filter | None:
    if not declared.composed or not declared.epsilon or not declared.delta:
        return None
    return Filter(declared.epsilon, declared.delta)


def _filtered(declared: BudgetDeclaration | None, charges: Sequence[Charge]) -> float | None:
    own = None if declared is None else filter_of(declared)
    spent = spent_by(charges)
    return None if own is None or spent is None else own.epsilon_of(spent)


def _counted(declared: BudgetDeclaration, charges: Sequence[Charge]) -> Fraction:
    """Return the total epsilon of finite charges: their sum, or the filter's bound if smaller."""
    added = sum(
        (_decimal(charge.epsilon) * (charge.horizons or 1) for charge in charges), Fraction()
    )
    filtered = _filtered(declared, charges)
    return added if filtered is None else min(added, _decimal(filtered))


def _tightest(
    standing: Iterable[BudgetDeclaration], charges: Sequence[Charge]
) -> BudgetDeclaration:
    """Return the all-time budget with the least epsilon left, which limits charges the most."""
    with_epsilon = (each for each in standing if each.epsilon is not None and each.per is None)
    return min(
        with_epsilon, key=lambda each: _decimal(each.epsilon or 0.0) - _counted(each, charges)
    )


def _source(declared: BudgetDeclaration, charge: Charge) -> str:
    own = declared.deployment == charge.deployment and not declared.operator
    return "" if own else f", as {declared.who}"


def _without(binding: Mapping[str, BudgetDeclaration], charge: Charge) -> str:
    if all(each.deployment == charge.deployment for each in binding.values()):
        return "remove budget"
    return f"remove the budget with --set-budget {charge.population}=none"


@dataclass(frozen=True, slots=True)
class BudgetAccount:
    """Charges to a job's users and the users' budget, for one quantity: epsilon or delta.

    `earlier` sums the charges by other deployments, and `charged` is the charge by this one; None
    means unlimited. `binding` declares the budget, if there is one. `filtered` is the total epsilon
    that the budget's privacy filter computes. It is None if charges are summed, or if the charges'
    deltas exceed half of the budget's delta.
    """

    quantity: str
    earlier: float | None
    charged: float | None
    binding: BudgetDeclaration | None
    filtered: float | None = None

    @property
    def allowed(self) -> float | None:
        return None if self.binding is None else self.binding.most(self.quantity)

    @property
    def remaining(self) -> float | None:
        """Budget left after all charges; None without a budget or if a charge is unlimited.

        Another charge of this amount fits the budget. With a filter, a larger one might also fit.
        """
        if self.allowed is None or self.earlier is None or self.charged is None:
            return None
        counted = _decimal(self.earlier) + _decimal(self.charged)
        if self.filtered is not None:
            counted = min(counted, _decimal(self.filtered))
        return float(_decimal(self.allowed) - counted)


def accounts_of(
    job: DeployedJob, charges: Iterable[Charge], declared: Iterable[BudgetDeclaration] = ()
) -> list[BudgetAccount]:
    own = Charge.of(job)
    others = [
        other for other in _of_the_same_users(own, charges) if other.deployment != own.deployment
    ]
    return _accounts_under(standing_for(job, declared), others, [own])


def accounts_for(
    people: str, charges: Iterable[Charge], standing: Sequence[BudgetDeclaration]
) -> list[BudgetAccount]:
    own = [charge for charge in charges if charge.population == people]
    return _accounts_under(standing, own, [])


def _accounts_under(
    standing: Sequence[BudgetDeclaration], others: Sequence[Charge], own: Sequence[Charge]
) -> list[BudgetAccount]:
    charges = [*others, *own]
    people = standing[0].population if standing else ""
    binding = binding_budget(people, standing)
    if "epsilon" in binding and spent_by(charges) is not None:
        binding["epsilon"] = _tightest(standing, charges)
    limit, deltas = binding.get("epsilon"), total_of(charges, "delta") or Fraction()
    proven = limit is not None and deltas <= _decimal(limit.most("delta") or 0.0)
    return [
        BudgetAccount(
            quantity,
            earlier=_float_of(total_of(others, quantity)),
            charged=_float_of(total_of(own, quantity)),
            binding=binding.get(quantity),
            filtered=_filtered(limit, charges) if quantity == "epsilon" and proven else None,
        )
        for quantity in QUANTITIES
    ]


def total_of(
    charges: Iterable[Charge], quantity: str, period: str | None = None
) -> Fraction | None:
    """Return the exact sum of charged epsilons or deltas; None if a charge is unlimited.

    With a `period` (ISO 8601 duration), return the largest sum that can count in one period.
    """
    total = Fraction()
    for charge in charges:
        horizons, each = charge.horizons_in(period), _decimal(getattr(charge, quantity))
        if horizons is None and each:
            return None
        total += each * (horizons or 0)
    return total


def period_budgets(
    standing: Iterable[BudgetDeclaration], charges: Sequence[Charge]
) -> list[tuple[str, str]]:
    """Describe each per-period budget: its limit, and the charges counted toward it, rounded up."""
    found = []
    for limit in standing:
        if limit.per is None or limit.epsilon is None:
            continue
        own = [charge for charge in charges if charge.population == limit.population]
        counted = total_of(own, "epsilon", limit.per)
        text = "charges count without limit"
        if counted is not None:
            left = rounded_down(float(max(Fraction(), _decimal(limit.epsilon) - counted)), 6)
            text = f"charges count as {rounded_up(float(counted))}; {left} remaining"
        period = parse_duration(limit.per).any_period()
        budget = f"epsilon {rounded_up(limit.epsilon)} in {period}"
        found.append((budget, f"{text}; {limit.who}"))
    return found


def _float_of(number: Fraction | None) -> float | None:
    return None if number is None else float(number)


def endless_warning(job: Job) -> str | None:
    if not job.epochs.renew or job.budget is not None or job.population is None:
        return None
    return (
        f"job {job.name} is a recurring job without a budget, so population {job.population} is "
        "charged without limit: afterwards, no budget for this population can be enforced. Add a "
        "budget, so that the job ends when it is spent, or, in sampled_response, a budget per "
        "period"
    )


def _of_the_same_users(charge: Charge, charges: Iterable[Charge]) -> list[Charge]:
    return [other for other in charges if other.population == charge.population]


def _accounts(
    charge: Charge, binding: Mapping[str, BudgetDeclaration], earlier: Sequence[Charge]
) -> Iterator[tuple[str, Fraction, Fraction, Fraction]]:
    for name in QUANTITIES:
        charged = (_decimal(getattr(other, name)) * (other.horizons or 1) for other in earlier)
        yield (
            name,
            _decimal(binding[name].most(name) or 0.0),
            _decimal(getattr(charge, name)),
            sum(charged, Fraction()),
        )


def _decimal(number: float) -> Fraction:
    return Fraction(repr(number))
