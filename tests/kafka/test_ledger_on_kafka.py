"""Test the ledger on a real broker: concurrent deployments, forged and deleted records."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.deployed_jobs import read_jobs
from dpstream.pipeline.ledger.ledger_report import report_on
from dpstream.pipeline.ledger.ledger_topic import read_spending
from dpstream.pipeline.operations.deployments import deploy
from dpstream.topics.names import LEDGER_TOPIC, ledger_topic
from tests.support.budgeted_jobs import deploy_at_once, job_about


@pytest.fixture
def clusters(bootstrap_servers: str) -> Iterator[tuple[Cluster, Cluster]]:
    connection = Connection((bootstrap_servers,))
    with Cluster(connection) as one, Cluster(connection) as other:
        yield one, other


def test_concurrent_deployments_leave_one_charge_and_one_job(
    clusters: tuple[Cluster, Cluster], job_name: str
) -> None:
    """The budget allows one more deployment in addition to the first job."""
    small: dict[str, Any] = {"people": job_name, "topics": {"partitions": 1}}
    jobs = [job_about(f"{job_name}-{number}", **small) for number in range(3)]
    first = job_about(jobs[0].name, 2, **small)
    deploy(clusters[0], first, deployment=secrets.token_bytes(16), now=0)
    done = deploy_at_once(clusters, jobs[1:])
    assert sorted(done) == [False, True]
    state = read_spending(clusters[0])
    assert state.damage is None
    charged = [each.job for each in state.charges if each.population == job_name]
    deployed = [job.name for job in jobs if job.name in read_jobs(clusters[0]).jobs]
    assert charged == deployed == [jobs[0].name, jobs[1 + done.index(True)].name]
    # Other tests deploy on this broker, some of them without charges.
    report = report_on(clusters[0], deployed)
    assert not [each for each in report.findings(state.chain.head) if job_name in each.what]
    assert not [each for each in report.findings() if each.offset is not None]

    topic = clusters[0].existing_topics([LEDGER_TOPIC])[LEDGER_TOPIC]
    wanted = ledger_topic(None).configs
    assert {key: topic.configs[key] for key in wanted} == wanted
