"""Test the public groups that users are enrolled in: their texts, storage and renewal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from dpstream.pipeline.devices.producer import Producer, ProducerError
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.kafka.memory import MemoryLog
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
