"""Jobs for a population with a budget, and concurrent deployments of such jobs."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from dpstream.pipeline.jobs.budgets import BudgetError
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.operations.deployments import carry_out, plan_on
from tests.support.new_jobs import new_job


def job_about(
    name: str,
    budget: float | None = None,
    *,
    people: str = "students",
    epsilon: float = 1,
    **keys: object,
) -> Job:
    return new_job(
        name,
        "future_rand",
        {"epsilon": epsilon, "max_changes": 2},
        count=8,
        population=people,
        **{} if budget is None else {"budget": {"epsilon": budget}},
        **keys,
    )


def deploy_at_once(clusters: Sequence[Cluster], jobs: Sequence[Job]) -> list[bool]:
    """Plan all jobs, then deploy them; return whether the budget admitted each job."""
    together = Barrier(len(jobs))

    def begin(where: Cluster, job: Job) -> bool:
        plan = plan_on(where, job, deployment=secrets.token_bytes(16), now=0)
        assert plan.rejection is None
        together.wait(60)
        try:
            carry_out(where, plan)
        except BudgetError:
            return False
        return True

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(begin, clusters, jobs))
