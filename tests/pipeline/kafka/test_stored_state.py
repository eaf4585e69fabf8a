"""Test that contradictions in the stored state are reported with a remedy."""

from __future__ import annotations

import pytest

from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.stored_state import (
    ContradictionError,
    StageOffsets,
    StoredState,
    check,
    contradictions,
)
from dpstream.pipeline.kafka.workers import Committed
from dpstream.topics.names import Role
from tests.support.small_run import job_text

DEPLOYED = deploy_job(parse_job(job_text()), deployed_at=0)
IDS = {role: f"id of {role}" for role in DEPLOYED.start_offsets}
JOB = DEPLOYED.model_copy(update={"topic_ids": IDS})


def test_no_contradiction_is_reported_if_topics_are_unchanged_since_deployment() -> None:
    assert list(contradictions(JOB, StoredState(ids=IDS))) == []
    check(JOB, StoredState(ids=IDS))


@pytest.mark.parametrize("role", [Role.REPORTS, Role.SHUFFLED, Role.MANIFESTS])
def test_recreated_topic_is_reported_as_a_contradiction(role: Role) -> None:
    kept = StoredState(ids={**IDS, role: "another"})
    (found,) = contradictions(JOB, kept)
    assert found.startswith(f"topic small.{role} was deleted and recreated")
    assert found.endswith("'dpstream undeploy small --delete-topics', then deploy again")
    with pytest.raises(ContradictionError, match="deleted and recreated"):
        check(JOB, kept)


def test_truncated_topic_is_reported_as_a_contradiction() -> None:
    assert list(contradictions(JOB, StoredState(starts={Role.MANIFESTS: 0}))) == []
    (found,) = contradictions(JOB, StoredState(starts={Role.MANIFESTS: 7}, decided=0, published=6))
    assert "topic small.manifests, which must keep all records, starts at offset 7" in found
    assert found.endswith("'dpstream undeploy small --delete-topics', then deploy again")


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (StoredState(decided=5, published=5, aggregated=5), None),
        (StoredState(decided=5), None),
        (StoredState(published=10), None),
        (StoredState(decided=5, published=10), "epoch 10 is published, but no epoch after 5 is"),
        (StoredState(decided=5, aggregated=6), "epoch 6 is aggregated, but no epoch after 5 is"),
    ],
)
def test_epochs_that_were_not_finalized_are_reported_as_a_contradiction(
    kept: StoredState, message: str | None
) -> None:
    found = list(contradictions(JOB, kept))
    assert len(found) == (message is not None)
    if message is not None:
        assert message in found[0]
        assert "restore the newer copy" in found[0]


@pytest.mark.parametrize(
    ("role", "key", "value", "message"),
    [
        (Role.REPORTS, "cleanup.policy", "compact", "delete. Kafka deletes"),
        (Role.REPORTS, "retention.ms", "1000", "604800000 or more. Kafka deletes"),
        (Role.MANIFESTS, "retention.ms", "604800000", "-1. Kafka deletes"),
        (Role.MANIFESTS, "retention.bytes", "1000", "-1. Kafka deletes"),
        (Role.SHUFFLED, "max.message.bytes", "300", "524288 or more. Kafka rejects"),
        (Role.REPORTS, "retention.ms", "-1", None),
        (Role.REPORTS, "max.message.bytes", "1048576", None),
    ],
)
def test_settings_that_lose_or_reject_records_are_reported_as_a_contradiction(
    role: Role, key: str, value: str, message: str | None
) -> None:
    found = list(contradictions(JOB, StoredState(settings={role: {key: value}})))
    assert len(found) == (message is not None)
    if message is not None:
        assert f"topic small.{role} has {key} {value}; expected {message}" in found[0]
        assert f"--topic small.{role} --add-config {key}=" in found[0]


@pytest.mark.parametrize(
    ("committed", "message"),
    [
        (None, None),
        (Committed(7), None),
        (
            Committed(9),
            "beyond the end of small.reports (partition 0: offset 9, end offset 8)",
        ),
        (Committed(8, own=False), "(partition 0: offset 8, start offset 5)"),
        (Committed(5, own=False), None),
    ],
)
def test_unexplained_offsets_are_reported_as_a_contradiction(
    committed: Committed | None, message: str | None
) -> None:
    offsets = StageOffsets(Role.REPORTS, [5, 0], [committed, None], [8, 0])
    found = list(contradictions(JOB, StoredState(stages={"shuffle": offsets})))
    assert len(found) == (message is not None)
    if message is not None:
        assert message in found[0]
        assert "stage shuffle" in found[0]
