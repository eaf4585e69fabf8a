"""What is kept of a job agrees with the deployment and with itself, or is named with a remedy."""

from __future__ import annotations

import pytest

from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.jobs.kept_state import (
    ContradictionError,
    KeptState,
    check,
    contradictions,
)
from dpstream.topics.names import Role
from tests.support.small_run import job_text

DEPLOYED = deploy_job(parse_job(job_text()), deployed_at=0)
IDS = {role: f"id of {role}" for role in DEPLOYED.start_offsets}
JOB = DEPLOYED.model_copy(update={"topic_ids": IDS})


def test_contradictions_none_when_topics_are_as_deployed() -> None:
    assert list(contradictions(JOB, KeptState(ids=IDS))) == []
    check(JOB, KeptState(ids=IDS))


@pytest.mark.parametrize("role", [Role.REPORTS, Role.SHUFFLED, Role.MANIFESTS])
def test_contradictions_name_topic_when_it_was_made_again(role: Role) -> None:
    kept = KeptState(ids={**IDS, role: "another"})
    (found,) = contradictions(JOB, kept)
    assert found.startswith(f"topic small.{role} was deleted and made again")
    assert found.endswith("dpstream undeploy small --delete-topics and deploy it again")
    with pytest.raises(ContradictionError, match="deleted and made again"):
        check(JOB, kept)


def test_topic_ids_compare_only_what_is_known() -> None:
    """A cluster before Kafka 2.8 has no ids; a topic that is gone is named elsewhere."""
    assert list(contradictions(DEPLOYED, KeptState(ids=IDS))) == []
    assert list(contradictions(JOB, KeptState())) == []


def test_topic_ids_survive_the_record_of_a_deployed_job() -> None:
    assert DeployedJob.from_bytes(JOB.to_bytes()).topic_ids == IDS
    assert b"topic_ids" not in DEPLOYED.to_bytes()
