"""Test the threads that follow topics, check pipelines and smooth curves."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from kafka.errors import KafkaTimeoutError

from dpstream.aggregators.estimate import Published as Estimated
from dpstream.pipeline.jobs.budget_declarations import BY_COMMAND, BudgetDeclaration
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import set_phase
from dpstream.pipeline.ledger.ledger_topic import write_entries
from dpstream.pipeline.ledger.writing import of_budget
from dpstream.pipeline.operations.deployments import undeploy
from dpstream.pipeline.results.smoothing import SmoothedHorizon
from dpstream.pipeline.serve.background import Background, Shown
from dpstream.pipeline.serve.follower import (
    JobFollower,
    NewlyPublished,
    News,
    Polled,
    Reader,
)
from dpstream.pipeline.serve.job_store import Jobs
from dpstream.topics.names import JOBS_TOPIC, LEDGER_TOPIC, Role
from tests.support.live_page import NOW, deploy_text, live_page, publish
from tests.support.memory_cluster import MemoryCluster
from tests.support.shown_jobs import COUNT, HOURS, MODES, WORDS, count, found, items, numbers


def read_all(reader: Reader, cluster: MemoryCluster) -> list[News]:
    news: list[News] = []
    while True:
        before = reader.positions
        for topic, position in before.items():
            records = list(cluster.read(topic, start=position))
            item = reader.take(topic, records) if records else None
            news += [] if item is None else [item]
        if reader.positions == before:
            return news


def test_reader_returns_estimates_of_the_current_deployment_only() -> None:
    cluster, reader = MemoryCluster(), Reader()
    assert reader.positions == {JOBS_TOPIC: 0, LEDGER_TOPIC: 0}
    job = deploy_text(cluster, COUNT, b"1" * 16)
    publish(cluster, job, 1, count(5.0))
    jobs, published = read_all(reader, cluster)
    assert isinstance(jobs, Jobs)
    assert jobs.phases == {"count": Phase.RUNNING}
    assert [charge.epsilon for charge in jobs.charges] == [job.guarantee.epsilon]
    assert isinstance(published, NewlyPublished)
    assert [point.epoch for point in published.points] == [1]
    set_phase(cast(Cluster, cluster), job, Phase.PAUSED, NOW)
    (paused,) = read_all(reader, cluster)
    assert isinstance(paused, Jobs)
    assert paused.phases == {"count": Phase.PAUSED}
    again = deploy_text(cluster, COUNT, b"2" * 16, replace=True)
    publish(cluster, job, 2, count(7.0))
    publish(cluster, again, 1, count(6.0))
    _, published = read_all(reader, cluster)
    assert isinstance(published, NewlyPublished)
    assert published.deployment == again.deployment
    assert [point.epoch for point in published.points] == [1]
    undeploy(cast(Cluster, cluster), "count")
    news = read_all(reader, cluster)
    assert isinstance(news[-1], Jobs)
    assert not news[-1].jobs
    assert list(reader.positions) == [JOBS_TOPIC, LEDGER_TOPIC]


def test_budget_declared_only_in_the_ledger_is_shown() -> None:
    cluster, reader = MemoryCluster(), Reader()
    deploy_text(cluster, COUNT)
    (before,) = read_all(reader, cluster)
    assert isinstance(before, Jobs)
    assert not before.declared
    budget = BudgetDeclaration("count", 9.0, 0.0, "dpstream budget", BY_COMMAND, 5, True, "a")
    write_entries(cast(Cluster, cluster), of_budget(budget, 5))
    (after,) = read_all(reader, cluster)
    assert isinstance(after, Jobs)
    assert after.declared == (budget,)
    assert after.charges == before.charges


@pytest.mark.parametrize(
    ("text", "estimate", "field", "wrong"),
    [
        (COUNT, count(5.0), "value", float("nan")),
        (COUNT, count(5.0), "ci95_high", float("inf")),
        (COUNT, count(5.0), "ci95_low", []),
        (COUNT, count(5.0), "flags", [float("nan")]),
        (MODES, items(1.0, 2.0, 3.0), "items", [1.0, 2.0]),
        (MODES, items(1.0, 2.0, 3.0), "items", [1.0, 2.0, None]),
        (MODES, items(1.0, 2.0, 3.0), "half_width", float("nan")),
        (WORDS, found(i7=9.0), "values", [float("nan")]),
        (WORDS, found(i7=9.0), "found", [1 << 30]),
        (HOURS, numbers(*[1.0] * 8), "items", [1.0]),
    ],
)
async def test_estimate_of_another_deployment_is_not_shown(
    text: str, estimate: Estimated, field: str, wrong: object, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = MemoryCluster()
    job = deploy_text(cluster, text)
    body = publish(cluster, job, 1, estimate).to_json()
    body["epoch"], body["estimate"][field] = 2, wrong
    cluster.append(job.topic(Role.ESTIMATES), json.dumps(body).encode())
    publish(cluster, job, 3, estimate)

    async with live_page(cluster) as page:
        (body,) = (await page.get("/api/jobs"))["jobs"]
        assert body["last_epoch"] == 3
        (curve, *_) = (await page.get(f"/api/jobs/{job.name}/curve"))["series"]
        assert curve["epochs"] == [1, 3]
    assert "displaying epoch 2 failed" in caplog.text


@dataclass
class Flaky:
    answers: Sequence[Polled | Exception]
    done: threading.Event = field(default_factory=threading.Event)
    polls: int = 0
    closed: bool = False

    def poll(self, positions: Mapping[str, int]) -> Polled:
        if self.polls == len(self.answers):
            self.done.set()
            return Polled({})
        answer = self.answers[self.polls]
        self.polls += 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("last_says_nothing", [False, True])
def test_jobs_are_listed_after_their_topic_is_read(
    monkeypatch: pytest.MonkeyPatch, last_says_nothing: bool
) -> None:
    monkeypatch.setattr("dpstream.pipeline.serve.follower._BACK_OFF_SECONDS", 0.001)
    cluster = MemoryCluster()
    deploy_text(cluster, COUNT)
    deploy_text(cluster, MODES, b"m" * 16)
    records = list(cluster.read(JOBS_TOPIC))
    behind = frozenset({JOBS_TOPIC})
    parts = [Polled({JOBS_TOPIC: [record]}, behind) for record in records[:-1]]
    end = [Polled({JOBS_TOPIC: records[-1:]})]
    if last_says_nothing:
        end = [Polled({JOBS_TOPIC: records[-1:]}, behind), Polled({})]
    source = Flaky([*parts[:1], KafkaTimeoutError("away"), *parts[1:], *end])
    messages: list[News] = []
    follower = JobFollower(source, Reader(), messages.append)
    follower.start()
    assert source.done.wait(20)
    follower.end()
    follower.join(20)
    assert [list(each.jobs) for each in messages if isinstance(each, Jobs)] == [["count", "modes"]]


@dataclass
class Heard:
    pipelines: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    horizons: list[tuple[int, SmoothedHorizon]] = field(default_factory=list)
    rejections: list[str] = field(default_factory=list)

    def rejected(self, message: str) -> None:
        self.rejections.append(message)

    def pipeline(
        self, job: DeployedJob, body: dict[str, Any], issues: tuple[str, ...], lag_seconds: float
    ) -> None:
        self.pipelines.append((job.name, issues))

    def smoothed(self, job: DeployedJob, number: int, horizon: SmoothedHorizon) -> None:
        self.horizons.append((number, horizon))


def background(shown: Sequence[Shown], heard: Heard) -> Background:
    return Background(lambda: cast(Cluster, None), lambda: tuple(shown), heard, lambda: NOW)


class Broken(MemoryCluster):
    def end_offsets(self, topic: str) -> list[int]:
        if topic.startswith("count."):
            raise ValueError("what is this?")
        return super().end_offsets(topic)


def test_unreadable_job_does_not_affect_other_jobs(caplog: pytest.LogCaptureFixture) -> None:
    cluster, heard = MemoryCluster(), Heard()
    jobs = [deploy_text(cluster, COUNT), deploy_text(cluster, MODES, b"m" * 16)]
    shown = [Shown(job, Phase.RUNNING, opened=True, smooths=False) for job in jobs]
    broken = Broken(cluster.records, cluster.partitions)
    background(shown, heard).watch(cast(Cluster, broken))
    assert [name for name, _ in heard.pipelines] == ["modes"]
    assert "status of job count failed" in caplog.text
