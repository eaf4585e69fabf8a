"""Test the public groups that users are enrolled in: their texts, storage and renewal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest

from dpstream.pipeline.devices.bad_rows import InputError
from dpstream.pipeline.devices.event_log import load_event_log
from dpstream.pipeline.devices.producer import Producer, ProducerError
from dpstream.pipeline.devices.users import load_job_users
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.memory import MemoryLog
from dpstream.pipeline.results.cohorts import Cohorts
from dpstream.pipeline.simulation.simulated_job import simulate
from tests.support.gateway import open_producer
from tests.support.new_jobs import new_job

GROUPS = [{"attributes": {"os": os}} for os in ("ios", "web", "other")]
QUESTIONS = [{"name": "wau", "answer": "boolean"}, {"name": "mau", "answer": "boolean"}]
IOS, WEB = {"os": "ios"}, {"os": "web"}


def deployed(**keys: bool) -> DeployedJob:
    parameters = {"epsilon": 4, "max_changes": 2, "questions": QUESTIONS, "groups": GROUPS}
    return deploy_job(new_job("app", "panels", parameters, count=2, **keys), deployed_at=0)


def groups_of(producer: Producer) -> list[int]:
    found: list[int] = producer.store.arrays()["group"].tolist()
    return found


def test_groups_are_stored_with_the_users(tmp_path: Path) -> None:
    job, log = deployed(), MemoryLog()
    with open_producer(job, tmp_path / "state", log) as producer:
        producer.enroll(["a", "b", "c", "b"], [WEB, IOS, 2, IOS])
        producer.enroll(["a", "d"], [IOS, IOS])
    with open_producer(job, tmp_path / "state", log) as producer:
        assert producer.users == ("a", "b", "c", "d")
        assert groups_of(producer) == [1, 0, 2, 0]
        producer.report(1, {"a": [1, 0], "b": "0;1"})
        producer.close(1)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (None, "user 'a' has no group: job app has the public attributes os, which must be given"),
        ([IOS], "groups: got 1 for 2 users"),
        ([IOS, {"os": "tv"}], "user 'b': no group has os=tv; expected os from ios, web, other"),
        ([IOS, {"arm": "A"}], "user 'b': public attributes os are missing"),
        ([IOS, 3], "user 'b': got group 3; expected 0 to 2"),
    ],
)
def test_users_without_a_group_are_not_enrolled(
    groups: Sequence[Mapping[str, str] | int] | None, message: str
) -> None:
    with open_producer(deployed(), None, MemoryLog()) as producer:
        with pytest.raises(ProducerError, match=message):
            producer.enroll(["a", "b"], groups)
        assert producer.users == ()
        producer.enroll(["a"], [IOS])


def test_groups_are_for_jobs_with_public_attributes() -> None:
    job = deploy_job(
        new_job("app", "value_stream", {"epsilon": 4, "max_changes": 2}, count=2), deployed_at=0
    )
    with (
        open_producer(job, None, MemoryLog()) as producer,
        pytest.raises(ProducerError, match="groups: job app has no public attributes"),
    ):
        producer.enroll(["a"], [0])


def test_next_horizon_keeps_groups_and_draws_questions_again() -> None:
    job = deployed(renew=True)
    users, groups = [f"user {at}" for at in range(200)], [at % 3 for at in range(200)]
    with open_producer(job, None, MemoryLog()) as producer:
        producer.enroll(users, groups)
        before = producer.store.arrays()["question"]
        producer.withdraw(users[1::4])
        for epoch in (1, 2, 3):
            producer.report_all(epoch, np.zeros((len(producer.users), 2), np.int64))
            producer.close(epoch)
        stayed = np.arange(200) % 4 != 1
        assert groups_of(producer) == np.array(groups)[stayed].tolist()
        assert (producer.store.arrays()["question"] != before[stayed]).any()
        # Users who return have the group they had, or another one that is given.
        producer.enroll(users[1:6:4])
        assert groups_of(producer)[-2:] == [groups[1], groups[5]]
        producer.enroll([users[9]], [2])
        assert (producer.users[-1], groups_of(producer)[-1]) == (users[9], 2)


COHORTS = """
name: app
epochs: {count: 8, start: 2026-01-01, length: P14D, timezone: Europe/Berlin}
parameters: {epsilon: 8}
measures: {active: {type: active}}
attributes: {joined: {enrolled: P1M}, os: {values: [ios], public: true}}
by: [joined, os]
topics: {partitions: 1}
"""


def test_users_are_in_the_period_in_which_they_are_enrolled(tmp_path: Path) -> None:
    job = deploy_job(parse_job(COHORTS), deployed_at=0)
    group = job.domain.group_of
    with open_producer(job, None, MemoryLog()) as producer:
        producer.enroll(["a"], [IOS])
        for epoch in (1, 2, 3):
            producer.report_all(epoch, np.zeros((len(producer.users), 1), np.int64))
            producer.close(epoch)
            producer.enroll(["a", f"b{epoch}"], [{"os": "other"}, {"os": "other"}])
        # A program can state an earlier time.
        producer.enroll(["c"], [{"os": "ios", "joined": "earlier"}])
        expected = ["2026-01", "2026-01", "2026-01", "2026-02"]
        assert groups_of(producer) == [
            group({"joined": joined, "os": os})
            for joined, os in zip(
                (*expected, "earlier"), ("ios", "other", "other", "other", "ios"), strict=True
            )
        ]
        with pytest.raises(ProducerError, match="public attributes os are missing"):
            producer.enroll(["d"], [{}])
    only = deploy_job(parse_job(COHORTS.replace("joined, os", "joined")), deployed_at=0)
    with open_producer(only, None, MemoryLog()) as producer:
        producer.enroll(["a", "b"])
        assert groups_of(producer) == [only.domain.group_of({"joined": "2026-01"})] * 2


def test_dates_of_a_user_list_give_cohorts(tmp_path: Path) -> None:
    """All users who joined are active for a month, and half of them later."""
    job = deploy_job(parse_job(COHORTS), deployed_at=0)
    joined = ("2025-07-01", "2026-01-31T23:30:00Z", "2026-03-02")
    users, events = ["user,os,joined"], ["user,time"]
    for at in range(3_000):
        first = 1 + [0, 2, 4][at % 3]
        users.append(f"u{at},ios,{joined[at % 3]}")
        active = range(first, 9 if at % 2 else first + 2)
        events += [f"u{at},{date(2026, 1, 1) + timedelta(14 * epoch - 7)}" for epoch in active]
    (tmp_path / "users.csv").write_text("\n".join(users))
    (tmp_path / "events.csv").write_text("\n".join(events))
    log = load_event_log(
        job, tmp_path / "events.csv", users=load_job_users(job, tmp_path / "users.csv")
    )
    found = simulate(deploy_job(parse_job(COHORTS), deployed_at=0), log, seed=3)
    cohorts = Cohorts.of(found.job, "joined")
    assert [each.name for each in cohorts.cohorts][:3] == ["2026-01", "2026-02", "2026-03"]
    truths = {"2026-02": 1.0, "2026-03": 1.0}
    shares = [each for each in cohorts.shares(found.records) if each.number.triple is not None]
    assert {each.cohort for each in shares} == set(truths)
    assert {each.users for each in shares} == {1_000.0}
    for each in shares:
        _, low, high = each.number.triple or (0.0, 0.0, 0.0)
        truth = 1.0 if each.since < 2 else 0.5
        assert low - 0.05 < truth < high + 0.05, each
    for text, why in (("May", "which is not a date"), ("2026-05-01", "is after the last epoch")):
        (tmp_path / "users.csv").write_text(f"user,os,joined\nu1,ios,{text}")
        with pytest.raises(InputError, match=why):
            load_event_log(
                job, tmp_path / "events.csv", users=load_job_users(job, tmp_path / "users.csv")
            )
