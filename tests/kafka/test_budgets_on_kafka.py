"""People are not charged beyond the smallest budget that was stated, however jobs are deployed."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from pipeline.jobs.budgets import BudgetError
from pipeline.jobs.job_files import Job, make_job
from pipeline.jobs.stated_budgets import BudgetChange
from pipeline.kafka.cluster import Cluster
from pipeline.kafka.connection import Connection
from pipeline.operations.deployments import (
    carry_out,
    deploy,
    plan_on,
    read_jobs,
    undeploy,
)


def job_about(people: str, name: str, budget: float | None = None) -> Job:
    values: dict[str, Any] = {
        "name": name,
        "protocol": "future_rand",
        "parameters": {"epsilon": 1.0, "changes": 2},
        "epochs": {"count": 8},
        "topics": {"partitions": 1},
        "population": people,
    }
    return make_job(values if budget is None else {**values, "budget": {"epsilon": budget}})


def charged(cluster: Cluster, people: str) -> float:
    return sum(each.epsilon for each in read_jobs(cluster).charges if each.population == people)


def test_a_budget_binds_other_jobs_and_two_who_deploy_at_once(
    bootstrap_servers: str, job_name: str
) -> None:
    connection = Connection((bootstrap_servers,))
    first, second = (job_about(job_name, f"{job_name}-{number}") for number in (1, 2))
    with Cluster(connection) as cluster, Cluster(connection) as another:
        stating = job_about(job_name, f"{job_name}-0", 2.0)
        deploy(cluster, stating, deployment=secrets.token_bytes(16), now=0)
        undeploy(cluster, stating.name, delete_topics=True)

        together = Barrier(2)

        def begin(where: Cluster, job: Job) -> bool:
            plan = plan_on(where, job, deployment=secrets.token_bytes(16), now=0)
            assert plan.refusal is None
            together.wait(60)
            try:
                carry_out(where, plan)
            except BudgetError:
                return False
            return True

        with ThreadPoolExecutor(2) as pool:
            done = sum(pool.map(begin, (cluster, another), (first, second)))
        assert done == 1
        assert charged(cluster, job_name) == 2.0
        third = job_about(job_name, f"{job_name}-3", 99.0)
        said = f"may be charged epsilon 2 in all, as job {stating.name} stated it"
        with pytest.raises(BudgetError, match=said):
            deploy(cluster, third, deployment=secrets.token_bytes(16), now=0)
        assert charged(cluster, job_name) == 2.0, "who is refused charges nobody"
        deploy(
            cluster,
            third,
            deployment=secrets.token_bytes(16),
            now=0,
            set_budget=BudgetChange(job_name, 3.0),
        )
        assert charged(cluster, job_name) == 3.0
