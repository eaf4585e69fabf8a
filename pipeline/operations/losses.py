"""Describe the data that a new deployment would lose and the users it would charge again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from dpstream.pipeline.errors import WRONG_INPUT, DpstreamError
from dpstream.pipeline.jobs.budgets import BudgetAccount
from dpstream.pipeline.jobs.deployed_job import IDENTIFIER_BYTES
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.operations.deploy_plan import DeployPlan, Step
from dpstream.pipeline.operations.deployments import plan_on, published_epochs
from dpstream.randomizers.guarantee import rounded_up


class UnconfirmedLossError(DpstreamError):
    """A deployment would lose data or charge users again; one sentence per affected job."""

    exit_code = WRONG_INPUT

    def __init__(self, losses: Sequence[str]) -> None:
        super().__init__("\n".join(losses))
        self.losses = tuple(losses)


def check_losses(cluster: Cluster, jobs: Sequence[Job]) -> None:
    now, deployment = time.time_ns() // 1_000_000, bytes(IDENTIFIER_BYTES)
    plans = [plan_on(cluster, job, deployment=deployment, now=now, replace=True) for job in jobs]
    losses = [loss for plan in plans if (loss := loss_on(cluster, plan)) is not None]
    if losses:
        raise UnconfirmedLossError(losses)


def loss_on(cluster: Cluster, plan: DeployPlan) -> str | None:
    """Describe what a plan ends and which users it charges again; None if it does neither."""
    if plan.rejection is not None or not plan.starts_over:
        return None
    parts = []
    if plan.step is Step.REPLACE and plan.running is not None:
        job = plan.running
        parts.append(
            f"deployment {job.deployment.hex()[:8]} of job {job.name} would end: "
            f"{of_published(published_epochs(cluster, job), job.name)}"
        )
    elif plan.step is Step.REPLACE:
        name = plan.deployed.name
        parts.append(
            f"the deployment of job {name} by an incompatible version of dpstream would end: "
            "its published epochs will no longer be available (to save them, with that "
            f"version: 'dpstream record {name} --output FOLDER')"
        )
    charged = " and ".join(_charged_again(plan.accounts))
    if charged:
        # Where all charges together have no limit, those in a period may have one.
        charged += "".join(f"; {limit}: {counted}" for limit, counted in plan.periods)
        parts.append(
            f"population {plan.deployed.population_name} would be charged again: {charged}"
        )
    return "; ".join(parts) or None


def of_published(epochs: int, job: str) -> str:
    """Describe the published epochs that are lost when a job's deployment ends.

    >>> of_published(0, "logins")
    'it has published nothing yet'
    """
    if not epochs:
        return "it has published nothing yet"
    counted = "its 1 published epoch" if epochs == 1 else f"its {epochs:,} published epochs"
    return (
        f"{counted} will no longer be available (to save them: 'dpstream record {job} --output "
        "FOLDER')"
    )


def _charged_again(accounts: Sequence[BudgetAccount]) -> Iterator[str]:
    for account in accounts:
        earlier, more = account.earlier, account.charged
        if earlier == 0 or more == 0:
            continue
        if earlier is None or more is None:
            yield f"{account.quantity} without limit in total"
        else:
            yield f"{account.quantity} {rounded_up(more)}, {rounded_up(earlier + more)} in total"
