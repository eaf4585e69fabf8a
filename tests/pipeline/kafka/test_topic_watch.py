"""Test a worker's monitoring of its topics, and its heartbeat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest
from kafka import KafkaAdminClient
from kafka.errors import (
    InvalidTopicError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.cluster import AccessError, Cluster
from dpstream.pipeline.kafka.cluster_errors import WorkerError
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.workers.topic_watch import GroupWatch, TopicWatch, UnassignedError
from dpstream.pipeline.kafka.workers.worker_facts import heartbeat
from dpstream.pipeline.stages.topic_uses import topic_uses
from dpstream.topics.names import Role
from tests.support.small_run import job_text

OFFSETS = {Role.REPORTS: (5, 0), Role.SHUFFLED: (0, 0)}
SMALL = parse_job(job_text())
JOB = deploy_job(
    SMALL,
    start_offsets={role: OFFSETS.get(role, (0,)) for role in SMALL.topic_settings()},
    deployed_at=0,
)
USED = {role: topic_uses(JOB, stage).topics for stage, role in JOB.route.stages.items()}
AS_DEPLOYED = {role: len(offsets) for role, offsets in JOB.start_offsets.items()}


def counts(**changed: int) -> Mapping[Role, int]:
    return AS_DEPLOYED | {Role[name.upper()]: count for name, count in changed.items()}


@pytest.mark.parametrize("role", [Role.REPORTS, Role.SHUFFLED, Role.PARTIALS])
def test_unchanged_topics_are_not_reported(role: Role) -> None:
    watch = TopicWatch(JOB, role, USED[role])
    assert watch.partitions == AS_DEPLOYED[role]
    for _ in range(10):
        assert watch.see_partitions(AS_DEPLOYED) == []
        watch.see_ends({0: 9, 1: 7}, {0: 9, 1: 3})


def test_added_partitions_are_reported_once() -> None:
    watch = TopicWatch(JOB, Role.REPORTS, USED[Role.REPORTS])
    (warning,) = watch.see_partitions(counts(reports=3))
    assert "small.reports has 3 partitions, but the job was deployed with 2" in warning
    assert "epoch e belongs in partition e mod 2" in warning
    assert watch.see_partitions(counts(reports=4)) == []
    (other,) = watch.see_partitions(counts(reports=4, shuffled=3))
    assert "small.shuffled" in other


@pytest.mark.parametrize(
    ("role", "changed", "message"),
    [
        (Role.REPORTS, {"reports": 0}, "topic small.reports no longer exists"),
        (Role.REPORTS, {"manifests": 0}, "topic small.manifests no longer exists"),
        (Role.REPORTS, {"reports": 1}, "has 1 partitions, but the job was deployed with 2"),
        (Role.SHUFFLED, {"partials": 0}, "topic small.partials no longer exists"),
        (Role.PARTIALS, {"estimates": 0}, "topic small.estimates no longer exists"),
    ],
)
def test_topic_missing_in_several_polls_counts_as_deleted(
    role: Role, changed: Mapping[str, int], message: str
) -> None:
    """A broker that has just restarted might not know all topics yet."""
    watch = TopicWatch(JOB, role, USED[role])
    for _ in range(2):
        watch.see_partitions(counts(**changed))
        watch.see_partitions(counts(**changed))
        watch.see_partitions(AS_DEPLOYED)
    watch.see_partitions(counts(**changed))
    watch.see_partitions(counts(**changed))
    with pytest.raises(WorkerError, match=message) as caught:
        watch.see_partitions(counts(**changed))
    assert "'dpstream undeploy small --delete-topics', then deploy again" in str(caught.value)


@pytest.mark.parametrize(
    ("ends", "reached", "message"),
    [
        ({0: 9, 1: 3}, {1: 4}, "partition 1 ends at offset 3, but had previously reached offset 4"),
        ({0: 4, 1: 0}, {}, "partition 0 ends at offset 4, but had previously reached offset 5"),
    ],
)
def test_topic_whose_log_became_shorter_counts_as_recreated(
    ends: Mapping[int, int], reached: Mapping[int, int], message: str
) -> None:
    watch = TopicWatch(JOB, Role.REPORTS, USED[Role.REPORTS])
    watch.see_ends(ends, reached)
    watch.see_ends(ends, reached)
    watch.see_ends({0: 9, 1: 9}, reached)
    watch.see_ends(ends, reached)
    watch.see_ends(ends, reached)
    with pytest.raises(WorkerError, match=message) as caught:
        watch.see_ends(ends, reached)
    # If a new leader lags behind, operators must not be advised to delete topics.
    assert "While a broker is down" in str(caught.value)


def test_heartbeat_omits_secret_record_counts() -> None:
    body = heartbeat({"counts": {}}, {0: 3}, {0: 5}, read=4, seconds=2.0)
    assert (body["lag"], body["records_per_second"]) == (2, 2.0)
    hidden = heartbeat({"hides_messages": True}, {0: 3}, {0: 5}, read=4, seconds=2.0)
    assert hidden == {"hides_messages": True, "partitions": [0], "busy": True}
    assert heartbeat({"hides_messages": True}, {}, {}, read=0, seconds=2.0)["busy"] is False


def test_topic_whose_id_changed_counts_as_recreated() -> None:
    ids = {role: f"id of {role}" for role in JOB.start_offsets if role is not Role.STATUS}
    job = JOB.model_copy(update={"topic_ids": ids})
    found = {job.topic(role): named for role, named in ids.items()}
    watch = TopicWatch(job, Role.REPORTS, USED[Role.REPORTS])
    watch.see_ids(found)
    # A topic that is missing, or used only by other stages, does not count as recreated.
    watch.see_ids({"small.status": "new"})
    watch.see_ids(found | {"small.estimates": "new"})
    with pytest.raises(WorkerError, match=r"topic small\.manifests was deleted and recreated"):
        watch.see_ids(found | {"small.manifests": "new"})


SESSION = 10.0
ALL = (0, 1, 2)


def test_error_for_an_unassigned_partition_lists_the_partition() -> None:
    watch = GroupWatch(len(ALL), SESSION)
    watch.see([0, 2], 0.0)
    with pytest.raises(UnassignedError, match=r"session timeout of 10 s, partitions 1 have"):
        watch.see([0, 2], 11.0)


class Admin:
    def __init__(self, code: int) -> None:
        self._code = code

    def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        return [{"name": name, "error_code": self._code, "partitions": []} for name in names]


def cluster_that_answers(code: int) -> Cluster:
    cluster = Cluster(Connection(("memory:9092",)))
    cluster._admin_client = cast(KafkaAdminClient, Admin(code))
    return cluster


@pytest.mark.parametrize(
    ("code", "there"),
    [(0, True), (UnknownTopicOrPartitionError.errno, False), (InvalidTopicError.errno, False)],
)
def test_unknown_or_invalid_topic_does_not_exist(code: int, there: bool) -> None:
    assert cluster_that_answers(code).exists("a.reports") is there


def test_access_error_is_raised_for_a_topic_without_permission() -> None:
    with pytest.raises(AccessError) as caught:
        cluster_that_answers(TopicAuthorizationFailedError.errno).exists("a.reports")
    assert caught.value.name == "a.reports"
