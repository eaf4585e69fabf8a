"""Plan the deployment of a job before anything is written.

* An unused job name starts a deployment.
* Under the name of a running job, only operator settings can change, and more values of private
  attributes can name their spare cells. Any other change would alter the meaning or location of
  reports, and is rejected unless the new deployment replaces the running one.
* The budget declared in a job file is stored for its population. A budget larger than the smallest
  one declared so far has no effect until an operator explicitly sets the population's budget.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dpstream.pipeline.jobs.budget_declarations import (
    QUANTITIES,
    BudgetChange,
    BudgetDeclaration,
    binding_budget,
    standing_for,
)
from dpstream.pipeline.jobs.budgets import (
    BudgetAccount,
    BudgetError,
    Charge,
    accounts_of,
    check_budget,
    horizons_within_budget,
    period_budgets,
)
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.epochs import horizons_between
from dpstream.pipeline.jobs.job_differences import describe_difference, find_differences
from dpstream.pipeline.jobs.job_files import Job, validate
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.jobs.spare_cells import naming_lines, with_names_of
from dpstream.pipeline.jobs.wording import KEYS as WORDS
from dpstream.pipeline.kafka.cluster import ClusterError
from dpstream.pipeline.kafka.deployed_jobs import DeploymentError
from dpstream.pipeline.kafka.record_sizes import RecordSizeError, check_record_sizes
from dpstream.pipeline.ledger.spending import Spending
from dpstream.pipeline.ledger.writing import others, reject_damaged
from dpstream.pipeline.operations.topic_changes import TopicChange
from dpstream.topics.names import TIMESTAMP_TYPE, TopicSettings, jobs_topic, ledger_topic

_OPERATORS_KEYS = ("shuffle.grace", "topics.retention")
# The app's backend rotates these keys; a new key does not change which devices can report.
_TOKEN_KEYS = "devices.tokens.keys"
_OPERATORS_SECTIONS = ("budget", "input", "roll_up", *WORDS)


class Step(StrEnum):
    START = "start"
    """First deployment under an unused name."""
    REPLACE = "replace"
    """New deployment that replaces the running deployment."""
    CHANGE = "change"
    """Running deployment with changed operator or topic settings."""
    NOTHING = "nothing"
    """No change: the same job already runs."""


@dataclass(frozen=True, slots=True)
class DeployPlan:
    """The effects that deploying a job would have.

    Attributes:
        running: Running deployment of the same name; None if there is no readable deployment.
        difference: Changes from `running`, as ``key: old -> new``.
        deployed: The resulting job, or `running` itself. A new deployment has no noise key yet, and
            its offsets are 0.
        accounts: Charges to the population, for epsilon and for delta.
        declared: Budgets that this plan declares: from the operator and from the job file.
        before: Budgets that limit the population before this plan, by "epsilon" and "delta".
        periods: Budgets per period, and the charges that count toward them, as text.
    """

    step: Step
    running: DeployedJob | None
    difference: tuple[str, ...]
    topics: tuple[TopicChange, ...]
    deployed: DeployedJob
    accounts: tuple[BudgetAccount, ...]
    declared: tuple[BudgetDeclaration, ...]
    before: Mapping[str, BudgetDeclaration]
    rejection: Exception | None
    now: int
    periods: tuple[tuple[str, str], ...] = ()

    @property
    def sets_budget(self) -> bool:
        return any(each.operator for each in self.declared)

    @property
    def not_binding(self) -> tuple[BudgetAccount, ...]:
        """Accounts for which the job file declares a larger budget than the effective one."""
        declared = self.deployed.budget
        return tuple(
            account
            for account in self.accounts
            if declared is not None
            and declared.per is None
            and account.allowed is not None
            and getattr(declared, account.quantity) > account.allowed
        )

    @property
    def starts_over(self) -> bool:
        return self.step in (Step.START, Step.REPLACE)

    def to_json(self) -> dict[str, Any]:
        job, running = self.deployed, self.running
        guarantee = job.guarantee
        if job.epochs.renew:
            guarantee = guarantee.over(job.horizons or 1)
        return {
            "job": job.name,
            "step": self.step,
            "rejection": self.rejection,
            "running": None if running is None else running.deployment,
            "difference": self.difference,
            "topics": self.topics,
            "guarantee": guarantee,
            "population": job.population_name,
            "horizons": job.horizons if job.epochs.renew else 1,
            "budget": {
                account.quantity: {
                    "allowed": account.allowed,
                    "charged": account.charged,
                    "charged_by_others": account.earlier,
                    "remaining": account.remaining,
                    "declared_by": _who(account.binding),
                    "allowed_before": _amount(self.before, account.quantity),
                }
                for account in self.accounts
            },
        }


def plan_deployment(
    state: Spending,
    existing: Mapping[str, TopicSettings],
    job: Job,
    *,
    deployment: bytes,
    now: int,
    replace: bool = False,
    set_budget: BudgetChange | None = None,
    latest: Callable[[DeployedJob], int] = lambda running: 1,
) -> DeployPlan:
    """Plan the deployment of a job.

    `latest` returns a running job's last epoch that has begun; new values of attributes count from
    the epoch after the next. Other arguments are as in `deployments.deploy`. Raises JobError if no
    constants fit the job's parameters and horizon.
    """
    running = state.topic.jobs.get(job.name)
    fresh = deploy_job(job, deployed_at=now, deployment=deployment)
    if running is not None and not replace:
        return _over(running, fresh, state, existing, job, set_budget, latest)
    rejection: Exception | None = None
    taken = running is not None or job.name in state.topic.unreadable
    if taken and not replace:
        rejection = DeploymentError(
            f"job {job.name} was deployed by an incompatible version of dpstream: upgrade "
            "dpstream, or end that deployment with --replace"
        )
    new = _newly_declared(state, fresh, set_budget, BudgetDeclaration.of(fresh, now), now)
    declared = [*state.declared, *new]
    if job.epochs.renew:
        horizons = horizons_within_budget(fresh, state.charges, declared)
        fresh = fresh.model_copy(update={"horizons": horizons})
    topics = _topic_changes(fresh, existing)
    return DeployPlan(
        step=Step.REPLACE if taken else Step.START,
        running=running,
        difference=() if running is None else tuple(describe_difference(running, job)),
        topics=topics,
        deployed=fresh,
        accounts=tuple(accounts_of(fresh, state.charges, declared)),
        declared=new,
        before=binding_budget(job.population_name, state.declared),
        rejection=rejection
        or _size_rejection(fresh)
        or _topic_rejection(topics)
        or reject_damaged(state)
        or _change_rejection(fresh, set_budget, new)
        or _budget_rejection(fresh, state.charges, declared),
        now=now,
        periods=_periods(fresh, state.charges, declared),
    )


def _over(
    running: DeployedJob,
    fresh: DeployedJob,
    state: Spending,
    existing: Mapping[str, TopicSettings],
    job: Job,
    set_budget: BudgetChange | None,
    latest: Callable[[DeployedJob], int],
) -> DeployPlan:
    other_charges = others(running, state.charges)
    rejection: Exception | None = None
    try:
        named = with_names_of(running, job, lambda: latest(running) + 2)
    except JobError as error:
        named, rejection = job, error
    if named is not job:
        job = named
        fresh = deploy_job(job, deployed_at=fresh.deployed_at, deployment=fresh.deployment)
    current = running if fresh.fingerprint != running.fingerprint else _named(running, job)
    naming = tuple(naming_lines(running, current))
    differences = find_differences(current, job)
    rejection = rejection or _name_rejection(running, fresh, differences)
    deployed, step = running, Step.NOTHING
    topics: tuple[TopicChange, ...] = ()
    clocks = tuple(
        change for change in _topic_changes(running, existing) if TIMESTAMP_TYPE in change.configs
    )
    new: tuple[BudgetDeclaration, ...] = ()
    declared = state.declared
    if rejection is None and clocks and not differences and set_budget is None:
        step, topics = Step.CHANGE, clocks
    elif rejection is None and (differences or naming or set_budget is not None):
        # Even if another budget is the limit, because an interrupted deployment might have declared
        # it.
        other_limit = job.budget != running.budget or set_budget is not None
        changed = running.model_copy(update={"budget": job.budget})
        now = fresh.deployed_at
        own = BudgetDeclaration.of(changed, now) if job.budget != running.budget else None
        new = _newly_declared(state, changed, set_budget, own, now)
        declared = [*declared, *new]
        step = Step.CHANGE
        deployed = _with_operators_keys(current, job)
        if other_limit and job.epochs.renew:
            deployed = _with_horizons(deployed, other_charges, declared, latest)
        topics = tuple(
            change for change in _topic_changes(deployed, existing) if change.action != "create"
        )
        rejection = _change_rejection(deployed, set_budget, new)
        if other_limit and rejection is None:
            rejection = _budget_rejection(deployed, other_charges, declared)
    return DeployPlan(
        step=step,
        running=running,
        difference=(*naming, *describe_difference(current, job)),
        topics=topics,
        deployed=deployed,
        accounts=tuple(accounts_of(deployed, other_charges, declared)),
        declared=new,
        before=binding_budget(running.population_name, state.declared),
        rejection=rejection or _topic_rejection(topics),
        now=fresh.deployed_at,
        periods=_periods(deployed, other_charges, declared),
    )


def _periods(
    job: DeployedJob, others: Sequence[Charge], declared: Sequence[BudgetDeclaration]
) -> tuple[tuple[str, str], ...]:
    return tuple(period_budgets(standing_for(job, declared), [*others, Charge.of(job)]))


def _with_operators_keys(running: DeployedJob, job: Job) -> DeployedJob:
    return running.model_copy(
        update={
            "shuffle": running.shuffle.model_copy(update={"grace": job.shuffle.grace}),
            "topics": running.topics.model_copy(update={"retention": job.topics.retention}),
            "budget": job.budget,
            # Only the token keys can differ here.
            "devices": job.devices,
            **{name: getattr(job, name) for name in WORDS},
            "input": job.input,
        }
    )


def _named(running: DeployedJob, job: Job) -> DeployedJob:
    """Return the running job with the values of its attributes as in a job of its fingerprint."""
    if running.attributes == job.attributes:
        return running
    values, own = json.loads(running.to_bytes()), job.to_json()
    parameters = {**values["parameters"], "questions": own["parameters"]["questions"]}
    renamed = {"attributes": own["attributes"], "parameters": parameters}
    return validate(DeployedJob, {**values, **renamed})


def _with_horizons(
    job: DeployedJob,
    others: Sequence[Charge],
    declared: Sequence[BudgetDeclaration],
    latest: Callable[[DeployedJob], int],
) -> DeployedJob:
    horizons = horizons_within_budget(job, others, declared)
    if horizons is not None and (job.horizons is None or horizons < job.horizons):
        begun = horizons_between(job.first_epoch, latest(job), job.epochs.count)
        horizons = max(horizons, begun)
    return job.model_copy(update={"horizons": horizons})


def _newly_declared(
    state: Spending,
    job: DeployedJob,
    change: BudgetChange | None,
    own: BudgetDeclaration | None,
    now: int,
) -> tuple[BudgetDeclaration, ...]:
    new = []
    if change is not None:
        delta = change.delta
        if delta is None and change.epsilon is not None:
            before = binding_budget(change.population, state.declared)
            delta = _amount(before, "delta") or 0.0
        new.append(
            BudgetDeclaration(
                population=change.population,
                epsilon=change.epsilon,
                delta=delta,
                job=job.name,
                deployment=job.deployment.hex(),
                at=now,
                operator=True,
            )
        )
    return (*new, *([] if own is None else [own]))


def _change_rejection(
    job: DeployedJob, change: BudgetChange | None, new: Sequence[BudgetDeclaration]
) -> Exception | None:
    if change is None:
        return None
    people = job.population_name
    if change.population != people:
        return DeploymentError(
            f"--set-budget: population is {change.population}; expected {people}, the population "
            f"of job {job.name}. Use that population, or deploy a job for population "
            f"{change.population}"
        )
    binding = binding_budget(people, new)
    for quantity in QUANTITIES:
        declared = binding.get(quantity)
        if declared is not None and not declared.operator:
            return BudgetError(
                f"the file of job {job.name} declares budget.{quantity} "
                f"{getattr(declared, quantity):g}, less than --set-budget, and would limit "
                f"population {people} again: change one of the two"
            )
    return None


def _amount(binding: Mapping[str, BudgetDeclaration], quantity: str) -> float | None:
    declared = binding.get(quantity)
    return None if declared is None else getattr(declared, quantity)


def _who(declared: BudgetDeclaration | None) -> dict[str, Any] | None:
    if declared is None:
        return None
    return {
        "job": declared.job,
        "deployment": declared.deployment,
        "at": declared.at,
        "operator": declared.operator,
    }


def _topic_changes(
    job: DeployedJob, existing: Mapping[str, TopicSettings]
) -> tuple[TopicChange, ...]:
    replication = job.topics.replication
    own = job.topic_settings().values()
    wanted = [*own, jobs_topic(replication), ledger_topic(replication)]
    return tuple(TopicChange(topic, existing.get(topic.name)) for topic in wanted)


def _topic_rejection(topics: tuple[TopicChange, ...]) -> ClusterError | None:
    rejections = (topic.rejection for topic in topics)
    return next(
        (ClusterError(rejection) for rejection in rejections if rejection is not None), None
    )


def _size_rejection(job: DeployedJob) -> RecordSizeError | None:
    try:
        check_record_sizes(job)
    except RecordSizeError as error:
        return error
    return None


def _budget_rejection(
    job: DeployedJob, charges: Sequence[Charge], declared: Sequence[BudgetDeclaration]
) -> BudgetError | None:
    try:
        check_budget(job, charges, declared)
    except BudgetError as error:
        return error
    return None


def _name_rejection(
    running: DeployedJob, fresh: DeployedJob, differences: Mapping[str, str]
) -> DeploymentError | None:
    changes = "; ".join(f"{key}: {difference}" for key, difference in differences.items())
    deployed = f"job {running.name} is already deployed"
    begin = "--replace ends that deployment and starts a new one, which is charged again"
    if running.replay_of is not None:
        return DeploymentError(
            f"{deployed} as a replay of {running.replay_of.job}: change the name of this job, "
            f"or first run 'dpstream undeploy {running.name}'"
        )
    if fresh.fingerprint != running.fingerprint:
        return DeploymentError(
            f"{deployed}, but its reports have another meaning "
            f"({changes or 'same settings, other constants'}) and cannot be combined with those "
            f"of this job: change the name of this job; {begin}"
        )
    own = {_TOKEN_KEYS} if _asks_for_tokens(running) and _asks_for_tokens(fresh) else set()
    if all(key in own or _is_operators(key) for key in differences):
        return None
    return DeploymentError(
        f"{deployed} with other settings ({changes}); the meaning of its reports is the same. "
        "While a job runs, only shuffle.grace, topics.retention, budget, input, the keys of "
        f"devices.tokens and display texts ({', '.join(WORDS)}) can change, and new values of an "
        "attribute can use its spare cells. Undo the other "
        f"changes; {begin}"
    )


def _is_operators(key: str) -> bool:
    return key in _OPERATORS_KEYS or key.partition(".")[0] in _OPERATORS_SECTIONS


def _asks_for_tokens(job: Job) -> bool:
    return job.devices is not None and job.devices.tokens is not None
