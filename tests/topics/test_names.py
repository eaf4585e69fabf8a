"""Test valid and collision-free topic names, and settings that retain the required records."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dpstream.topics.names import (
    COMPACTED,
    FURTHER_REPORTS,
    HOPS,
    JOB_NAME_MAX,
    JOBS_TOPIC,
    SUMS,
    Role,
    job_topics,
    jobs_topic,
    topic_name,
    validate_job_name,
)

_WEEK = 7 * 24 * 3600 * 1000
_KEPT = {
    *SUMS,
    *(Role.MANIFESTS, Role.PARTIALS, Role.ESTIMATES),
    *(Role.PRODUCERS,),
}
_SPREAD = (Role.REPORTS, *FURTHER_REPORTS, *HOPS, Role.SHUFFLED)
job_names = st.from_regex(r"[a-z0-9][a-z0-9_-]*", fullmatch=True).filter(
    lambda name: len(name) <= JOB_NAME_MAX
)


def test_topic_names_are_pinned() -> None:
    assert {str(role): topic_name("a-b_c", role) for role in Role} == {
        "reports": "a-b_c.reports",
        "reports-2": "a-b_c.reports-2",
        "reports-3": "a-b_c.reports-3",
        "reports-4": "a-b_c.reports-4",
        "hop-1": "a-b_c.hop-1",
        "hop-2": "a-b_c.hop-2",
        "manifests": "a-b_c.manifests",
        "shuffled": "a-b_c.shuffled",
        "partials-a": "a-b_c.partials-a",
        "partials-b": "a-b_c.partials-b",
        "partials": "a-b_c.partials",
        "estimates": "a-b_c.estimates",
        "results": "a-b_c.results",
        "producers": "a-b_c.producers",
        "devices": "a-b_c.devices",
        "status": "a-b_c.status",
        "dead-letters": "a-b_c.dead-letters",
    }


def test_longest_topic_name_has_the_length_kafka_allows() -> None:
    longest = "x" * JOB_NAME_MAX
    assert max(len(topic_name(longest, role)) for role in Role) == 249
    with pytest.raises(ValueError, match=f"expected 1 to {JOB_NAME_MAX} lower-case letters"):
        validate_job_name(longest + "x")


@pytest.mark.parametrize(
    "name", ["", "A", "a.b", "-a", "_a", "a b", "é", "a/b", "a\n", "..", "__consumer_offsets"]
)
def test_invalid_job_names_are_rejected_with_the_rule(name: str) -> None:
    with pytest.raises(ValueError, match="lower-case letters, digits, '-' and '_'"):
        validate_job_name(name)
    with pytest.raises(
        ValueError,
        match=("lower-case letters, digits, '-' and '_', starting with a letter or digit"),
    ):
        topic_name(name, Role.REPORTS)


@given(st.sets(job_names, min_size=2, max_size=5))
def test_topic_names_differ_even_if_dots_are_replaced_by_underscores(jobs: set[str]) -> None:
    topics = [topic_name(job, role) for job in jobs for role in Role] + [JOBS_TOPIC]
    assert len({topic.replace(".", "_") for topic in topics}) == len(topics)


def test_topics_have_the_requested_partitions_and_replication() -> None:
    topics = job_topics(
        "job",
        4,
        3,
        _WEEK,
        hops=HOPS,
        further_reports=FURTHER_REPORTS,
        shared=True,
        devices=True,
    )
    assert list(topics) == list(Role)
    assert list(job_topics("job", 4, 3, _WEEK)) == [
        role for role in Role if role not in (Role.DEVICES, *FURTHER_REPORTS, *HOPS, *SUMS)
    ]
    for role, topic in topics.items():
        assert topic.name == topic_name("job", role)
        assert topic.partitions == (4 if role in _SPREAD else 1)
        assert topic.replication == 3


def test_topics_have_the_requested_retention() -> None:
    topics = job_topics(
        "job", 4, None, _WEEK, hops=HOPS, further_reports=FURTHER_REPORTS, shared=True
    )
    for role, topic in topics.items():
        if role in COMPACTED:
            continue
        assert topic.configs["cleanup.policy"] == "delete"
        assert topic.configs["compression.type"] == "uncompressed"
        assert topic.configs["retention.bytes"] == "-1"
        passing = (*_SPREAD, Role.DEAD_LETTERS)
        expected = dict.fromkeys(passing, _WEEK)
        assert topic.configs["retention.ms"] == str(expected.get(role, -1))
        assert (role in _KEPT) == (topic.configs["retention.ms"] == "-1")
    for topic in job_topics("job", 4, None, -1).values():
        assert topic.configs.get("retention.ms", "-1") == "-1"


def test_raw_reports_leave_broker_disks_soon_after_they_expire() -> None:
    """Kafka deletes only whole segments, and never the active one."""
    for retention, longest in (
        (_WEEK, 3_600_000),
        (3_600_000, 450_000),
        (1, 60_000),
        (-1, 3_600_000),
    ):
        topics = job_topics("job", 4, None, retention, further_reports=FURTHER_REPORTS)
        for role in (Role.REPORTS, *FURTHER_REPORTS, Role.DEAD_LETTERS):
            assert topics[role].configs["segment.ms"] == str(longest)
            assert topics[role].configs["file.delete.delay.ms"] == "1000"


def test_dead_letter_topic_accepts_larger_records_than_its_sources() -> None:
    topics = job_topics("job", 4, None, _WEEK)
    assert topics[Role.REPORTS].configs["max.message.bytes"] == "524288"
    assert topics[Role.SHUFFLED].configs["max.message.bytes"] == "524288"
    assert topics[Role.DEAD_LETTERS].configs["max.message.bytes"] == "1048576"


def test_status_and_jobs_topics_are_compacted_and_small() -> None:
    for topic in (job_topics("job", 4, 1, _WEEK)[Role.STATUS], jobs_topic(1)):
        assert topic.partitions == 1
        assert topic.configs["cleanup.policy"] == "compact"
        assert topic.configs["compression.type"] == "uncompressed"
        assert int(topic.configs["segment.ms"]) <= 600_000
        assert float(topic.configs["min.cleanable.dirty.ratio"]) <= 0.1
    assert jobs_topic(None).name == "dpstream.jobs"


@pytest.mark.parametrize("replication", [None, 1, 2, 3, 5])
def test_acknowledged_record_with_three_replicas_survives_a_broker_failure(
    replication: int | None,
) -> None:
    durable = replication is not None and replication >= 3
    for topic in [*job_topics("job", 1, replication, _WEEK).values(), jobs_topic(replication)]:
        assert topic.replication == replication
        assert topic.configs.get("min.insync.replicas") == ("2" if durable else None)
        assert topic.configs["message.timestamp.type"] == "LogAppendTime"


def test_settings_out_of_range_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"topic job\.reports has 0 partitions; expected at least"):
        job_topics("job", 0, None, _WEEK)
    with pytest.raises(ValueError, match="has replication 0"):
        job_topics("job", 1, 0, _WEEK)
    with pytest.raises(ValueError, match=r"topic dpstream\.jobs has replication 0"):
        jobs_topic(0)
    for retention in (0, -2):
        with pytest.raises(ValueError, match=f"retention is {retention} ms; expected at least 1"):
            job_topics("job", 1, None, retention)
