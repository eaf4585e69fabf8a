"""What deploying a job comes to, found before anything is written.

A name that is free begins a deployment. Under a running name only what is the operators' (grace,
retention, budget) may change, and the deployment goes on; anything else would change what reports
mean or where they are, and is refused unless another deployment is to take the place of this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pipeline.budgets import (
    Account,
    BudgetError,
    Charge,
    accounts_of,
    check_budget,
    horizons_within_budget,
)
from pipeline.cluster import ClusterError
from pipeline.deployed_job import DeployedJob, deploy_job
from pipeline.jobs import Job, describe_difference, find_differences
from pipeline.jobs_topic import JobsTopic
from pipeline.topic_changes import TopicChange
from topics.names import TIMESTAMP_TYPE, TopicSettings, jobs_topic

_OPERATORS_KEYS = ("shuffle.grace", "topics.retention")


class DeploymentError(Exception):
    """A job cannot be deployed or found; the message says what to do."""


class Step(StrEnum):
    """What deploying does."""

    BEGIN = "begin"
    """A deployment begins under a name that is free."""
    REPLACE = "replace"
    """Another deployment takes the place of the one that runs."""
    CHANGE = "change"
    """The deployment that runs goes on with other settings of the operators, or of its topics."""
    NOTHING = "nothing"
    """The job runs already."""


@dataclass(frozen=True, slots=True)
class DeployPlan:
    """What deploying a job comes to.

    Attributes:
        step: what is to be done.
        running: the deployment of that name, if there is one.
        difference: from it, ``key: old -> new``.
        topics: those of the job, and ``dpstream.jobs``.
        deployed: the job as it is to be; a new one still has no noise key, and offsets of 0. Where
            a running job is left as it is: that one.
        accounts: what its people are charged of epsilon and of delta.
        refusal: why it cannot be; None if it can.
    """

    step: Step
    running: DeployedJob | None
    difference: tuple[str, ...]
    topics: tuple[TopicChange, ...]
    deployed: DeployedJob
    accounts: tuple[Account, ...]
    refusal: Exception | None

    @property
    def starts_over(self) -> bool:
        """Whether a new deployment begins."""
        return self.step in (Step.BEGIN, Step.REPLACE)

    def to_json(self) -> dict[str, Any]:
        """The plan, as JSON values."""
        job, running = self.deployed, self.running
        guarantee = job.guarantee()
        if job.epochs.renew:
            guarantee = guarantee.over(job.horizons or 1)
        return {
            "job": job.name,
            "step": self.step.value,
            "refusal": None if self.refusal is None else str(self.refusal),
            "running": None if running is None else running.deployment.hex(),
            "difference": list(self.difference),
            "topics": [topic.to_json() for topic in self.topics],
            "guarantee": guarantee.to_json(),
            "population": job.population_name,
            "horizons": job.horizons if job.epochs.renew else 1,
            "budget": {
                account.quantity: {
                    "allowed": account.allowed,
                    "charged": account.charged,
                    "charged_by_others": account.earlier,
                    "remaining": account.remaining,
                }
                for account in self.accounts
            },
        }


def plan_deployment(
    state: JobsTopic,
    existing: Mapping[str, TopicSettings],
    job: Job,
    *,
    deployment: bytes,
    now: int,
    replace: bool = False,
    begun: Callable[[DeployedJob], int] = lambda running: 1,
) -> DeployPlan:
    """See what deploying a job comes to.

    Args:
        state: what the jobs topic says.
        existing: the topics that exist, by name; others than the job's do no harm.
        job: the validated job.
        deployment: 16 random bytes, of a deployment that begins.
        now: milliseconds since 1970.
        replace: take the place of a deployment of the same name.
        begun: how many horizons of a running job have begun: it keeps at least so many.

    Raises:
        JobError: no constants exist for the job's parameters and horizon.
    """
    running = state.jobs.get(job.name)
    fresh = deploy_job(job, deployed_at=now, deployment=deployment)
    if running is not None and not replace:
        return _over(running, fresh, state.charges, existing, job, begun)
    refusal: Exception | None = None
    if job.name in state.unreadable and not replace:
        refusal = DeploymentError(
            f"job {job.name} was deployed by another version of this software, which this one "
            "cannot read: upgrade this one, or end that deployment by --replace"
        )
    if job.epochs.renew:
        horizons = horizons_within_budget(fresh, state.charges)
        fresh = fresh.model_copy(update={"horizons": horizons})
    topics = _topic_changes(fresh, existing)
    return DeployPlan(
        step=Step.BEGIN if running is None else Step.REPLACE,
        running=running,
        difference=() if running is None else tuple(describe_difference(running, job)),
        topics=topics,
        deployed=fresh,
        accounts=tuple(accounts_of(fresh, state.charges)),
        refusal=refusal or _topic_refusal(topics) or _budget_refusal(fresh, state.charges),
    )


def _over(
    running: DeployedJob,
    fresh: DeployedJob,
    charges: list[Charge],
    existing: Mapping[str, TopicSettings],
    job: Job,
    begun: Callable[[DeployedJob], int],
) -> DeployPlan:
    """What deploying over a running name comes to; `fresh` is the job as it would begin anew."""
    others = [charge for charge in charges if charge.deployment != running.deployment.hex()]
    differences = find_differences(running, job)
    refusal: Exception | None = _name_refusal(running, fresh, differences)
    deployed, step = running, Step.NOTHING
    topics: tuple[TopicChange, ...] = ()
    clocks = tuple(
        change for change in _topic_changes(running, existing) if TIMESTAMP_TYPE in change.configs
    )
    if refusal is None and clocks and not differences:
        step, topics = Step.CHANGE, clocks
    elif refusal is None and differences:
        step, deployed = Step.CHANGE, _with_operators_keys(running, job, others, begun)
        topics = tuple(
            change for change in _topic_changes(deployed, existing) if change.fate != "create"
        )
        if job.budget != running.budget:
            refusal = _budget_refusal(deployed, others)
    return DeployPlan(
        step=step,
        running=running,
        difference=tuple(describe_difference(running, job)),
        topics=topics,
        deployed=deployed,
        accounts=tuple(accounts_of(deployed, others)),
        refusal=refusal or _topic_refusal(topics),
    )


def _with_operators_keys(
    running: DeployedJob,
    job: Job,
    others: list[Charge],
    begun: Callable[[DeployedJob], int],
) -> DeployedJob:
    """The running job with the operators' keys of a job file.

    With another budget, one that renews gets as many horizons as that has room for.
    """
    update = {
        "shuffle": running.shuffle.model_copy(update={"grace": job.shuffle.grace}),
        "topics": running.topics.model_copy(update={"retention": job.topics.retention}),
        "budget": job.budget,
    }
    changed = running.model_copy(update=update)
    if not job.epochs.renew or job.budget == running.budget:
        return changed
    horizons = horizons_within_budget(changed, others)
    if horizons is not None and (running.horizons is None or horizons < running.horizons):
        horizons = max(horizons, begun(running))
    return changed.model_copy(update={"horizons": horizons})


def _topic_changes(
    job: DeployedJob, existing: Mapping[str, TopicSettings]
) -> tuple[TopicChange, ...]:
    wanted = [*job.topic_settings().values(), jobs_topic(job.topics.replication)]
    return tuple(TopicChange(topic, existing.get(topic.name)) for topic in wanted)


def _topic_refusal(topics: tuple[TopicChange, ...]) -> ClusterError | None:
    refusals = (topic.refusal for topic in topics)
    return next((ClusterError(refusal) for refusal in refusals if refusal is not None), None)


def _budget_refusal(job: DeployedJob, charges: list[Charge]) -> BudgetError | None:
    try:
        check_budget(job, charges)
    except BudgetError as error:
        return error
    return None


def _name_refusal(
    running: DeployedJob, fresh: DeployedJob, differences: Mapping[str, str]
) -> DeploymentError | None:
    """Why a job is not deployed over another one, with the differences, and what to do."""
    changes = "; ".join(f"{key}: {difference}" for key, difference in differences.items())
    deployed = f"job {running.name} is deployed already"
    begin = "--replace ends that deployment and begins a new one, charged again"
    if running.replay_of is not None:
        return DeploymentError(
            f"{deployed}, as a replay of {running.replay_of.job}: give this job another name, or "
            f"undeploy {running.name} first"
        )
    if fresh.fingerprint != running.fingerprint:
        return DeploymentError(
            f"{deployed} with another meaning of its reports "
            f"({changes or 'the same settings, other constants'}), and they cannot be added up: "
            f"give this job another name; {begin}"
        )
    if all(map(_is_operators, differences)):
        return None
    return DeploymentError(
        f"{deployed}, with other settings ({changes}) that leave the meaning of its reports as it "
        "is: under a running name only shuffle.grace, topics.retention and budget can be changed, "
        f"so it goes on with its own; {begin}"
    )


def _is_operators(key: str) -> bool:
    return key in _OPERATORS_KEYS or key.startswith("budget.")
