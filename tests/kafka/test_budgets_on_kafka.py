"""People are not charged beyond the smallest budget that was stated, however jobs are deployed."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from dpstream.pipeline.jobs.budgets import BudgetError
from dpstream.pipeline.jobs.stated_budgets import BudgetChange
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.operations.deployed_jobs import read_jobs
from dpstream.pipeline.operations.deployments import deploy, undeploy
from tests.support.budgeted_jobs import deploy_at_once, job_about


def charged(cluster: Cluster, people: str) -> float:
    return sum(each.epsilon for each in read_jobs(cluster).charges if each.population == people)


def test_a_budget_binds_other_jobs_and_two_who_deploy_at_once(
    bootstrap_servers: str, job_name: str
) -> None:
    connection = Connection((bootstrap_servers,))
    small: dict[str, Any] = {"people": job_name, "topics": {"partitions": 1}}
    both = [job_about(f"{job_name}-{number}", **small) for number in (1, 2)]
    with Cluster(connection) as cluster, Cluster(connection) as another:
        stating = job_about(f"{job_name}-0", 2, **small)
        deploy(cluster, stating, deployment=secrets.token_bytes(16), now=0)
        undeploy(cluster, stating.name, delete_topics=True)

        assert sum(deploy_at_once((cluster, another), both)) == 1
        assert charged(cluster, job_name) == 2.0
        third = job_about(f"{job_name}-3", 99, **small)
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
