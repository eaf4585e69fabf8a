"""What finds out: the follower of topics, and what looks at pipelines and smooths curves."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest
from kafka.errors import KafkaTimeoutError

from dpstream.aggregators.estimate import Published as Estimated
from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.phases import Phase
from dpstream.pipeline.jobs.stated_budgets import BY_COMMAND, StatedBudget
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.deployed_jobs import set_phase
from dpstream.pipeline.kafka.topic_reader import read_from
from dpstream.pipeline.ledger.ledger_topic import write_entries
from dpstream.pipeline.ledger.writing import of_budget
from dpstream.pipeline.operations.deployments import undeploy
from dpstream.pipeline.results.smoothing import SmoothedHorizon, smoothed_horizons
from dpstream.pipeline.serve.background import Background, LookBack, Shown
from dpstream.pipeline.serve.board import Jobs
from dpstream.pipeline.serve.follower import (
    Answers,
    Follower,
    KafkaSource,
    News,
    Polled,
    Published,
    Reader,
)
from dpstream.pipeline.serve.history import MOST_EPOCHS
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import Fate
from dpstream.topics.names import JOBS_TOPIC, LEDGER_TOPIC, Role
from tests.support.live_page import NOW, deploy_text, live_page, messages, publish
from tests.support.memory_cluster import MemoryCluster
from tests.support.set_jobs import Run
from tests.support.shown_jobs import COUNT, HOURS, MODES, WORDS, count, found, items, numbers


def read_all(reader: Reader, cluster: MemoryCluster) -> list[News]:
    """All there is to be read, topic by topic, until nothing is left."""
    news: list[News] = []
    while True:
        before = reader.positions
        for topic, position in before.items():
            records = list(cluster.read(topic, start=position))
            told = reader.take(topic, records) if records else None
            news += [] if told is None else [told]
        if reader.positions == before:
            return news


def test_a_reader_follows_deployments_as_they_come_and_go() -> None:
    cluster, reader = MemoryCluster(), Reader()
    assert reader.positions == {JOBS_TOPIC: 0, LEDGER_TOPIC: 0}
    job = deploy_text(cluster, COUNT, b"1" * 16)
    publish(cluster, job, 1, count(5.0))
    jobs, published = read_all(reader, cluster)
    assert isinstance(jobs, Jobs)
    assert jobs.phases == {"count": Phase.RUNNING}
    assert [charge.epsilon for charge in jobs.charges] == [job.guarantee.epsilon]
    assert isinstance(published, Published)
    assert [point.epoch for point in published.points] == [1]
    set_phase(cast(Cluster, cluster), job, Phase.PAUSED, NOW)
    (paused,) = read_all(reader, cluster)
    assert isinstance(paused, Jobs)
    assert paused.phases == {"count": Phase.PAUSED}
    again = deploy_text(cluster, COUNT, b"2" * 16, replace=True)
    publish(cluster, job, 2, count(7.0))
    publish(cluster, again, 1, count(6.0))
    _, published = read_all(reader, cluster)
    assert isinstance(published, Published)
    assert published.deployment == again.deployment
    assert [point.epoch for point in published.points] == [1]
    undeploy(cast(Cluster, cluster), "count")
    news = read_all(reader, cluster)
    assert isinstance(news[-1], Jobs)
    assert not news[-1].jobs
    assert list(reader.positions) == [JOBS_TOPIC, LEDGER_TOPIC]


def test_a_budget_that_only_the_ledger_says_yet_is_told() -> None:
    cluster, reader = MemoryCluster(), Reader()
    deploy_text(cluster, COUNT)
    (before,) = read_all(reader, cluster)
    assert isinstance(before, Jobs)
    assert not before.stated
    budget = StatedBudget("count", 9.0, 0.0, "dpstream budget", BY_COMMAND, 5, True, "a")
    write_entries(cast(Cluster, cluster), of_budget(budget, 5))
    (after,) = read_all(reader, cluster)
    assert isinstance(after, Jobs)
    assert after.stated == (budget,)
    assert after.charges == before.charges


def test_a_ledger_that_is_read_first_does_not_say_that_no_job_is_deployed() -> None:
    cluster, reader = MemoryCluster(), Reader()
    deploy_text(cluster, COUNT)
    jobs, entries = list(cluster.read(JOBS_TOPIC)), list(cluster.read(LEDGER_TOPIC))
    assert reader.take(JOBS_TOPIC, jobs[:1], behind=True) is None
    assert reader.take(LEDGER_TOPIC, entries) is None
    told = reader.take(JOBS_TOPIC, jobs[1:])
    assert isinstance(told, Jobs)
    assert list(told.jobs) == ["count"]


@pytest.mark.parametrize(
    ("text", "estimate", "field", "wrong"),
    [
        (COUNT, count(5.0), "value", float("nan")),
        (COUNT, count(5.0), "high", float("inf")),
        (COUNT, count(5.0), "low", []),
        (COUNT, count(5.0), "flags", [float("nan")]),
        (MODES, items(1.0, 2.0, 3.0), "items", [1.0, 2.0]),
        (MODES, items(1.0, 2.0, 3.0), "items", [1.0, 2.0, None]),
        (MODES, items(1.0, 2.0, 3.0), "half_width", float("nan")),
        (WORDS, found(i7=9.0), "values", [float("nan")]),
        (WORDS, found(i7=9.0), "found", [1 << 30]),
        (HOURS, numbers(*[1.0] * 8), "items", [1.0]),
    ],
)
async def test_an_estimate_that_is_none_of_the_job_is_not_shown(
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
    assert "epoch 2 cannot be shown" in caplog.text


@dataclass
class Flaky:
    """A source that does not answer now and then."""

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


def test_a_follower_waits_for_kafka_and_tells_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpstream.pipeline.serve.follower._BACK_OFF_SECONDS", 0.001)
    cluster = MemoryCluster()
    deploy_text(cluster, COUNT)
    away = KafkaTimeoutError("nobody answers")
    records = list(cluster.read(JOBS_TOPIC))
    nothing = Polled({})
    source = Flaky(
        [nothing, nothing, away, away, OSError("gone"), Polled({JOBS_TOPIC: records}), nothing]
    )
    told: list[News] = []
    follower = Follower(source, Reader(), told.append)
    follower.start()
    assert source.done.wait(20)
    follower.end()
    follower.join(20)
    assert [type(each) for each in told] == [Answers, Answers, Jobs, Answers]
    assert [each.answers for each in told if isinstance(each, Answers)] == [True, False, True]
    assert source.closed


@pytest.mark.parametrize("last_says_nothing", [False, True])
def test_which_jobs_there_are_is_told_when_their_topic_is_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch, last_says_nothing: bool
) -> None:
    """Whatever lies between the polls that this takes: Kafka away, or the end of the records."""
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
    told: list[News] = []
    follower = Follower(source, Reader(), told.append)
    follower.start()
    assert source.done.wait(20)
    follower.end()
    follower.join(20)
    assert [list(each.jobs) for each in told if isinstance(each, Jobs)] == [["count", "modes"]]


class LostConsumer:
    """Of a topic that ends at offset 5; for a while it does not know where it is."""

    def __init__(self, **settings: object) -> None:
        self.positions = [None, 3, 5]

    def topics(self) -> set[str]:
        return {JOBS_TOPIC}

    def end_offsets(self, partitions: object, timeout_ms: int) -> None:
        pass

    def assign(self, partitions: object) -> None:
        pass

    def seek(self, partition: object, offset: int) -> None:
        pass

    def poll(self, timeout_ms: int) -> dict[object, list[object]]:
        return {}

    def highwater(self, partition: object) -> int:
        return 5

    def position(self, partition: object) -> int | None:
        return self.positions.pop(0)


def test_a_source_that_does_not_know_where_it_is_takes_itself_to_be_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dpstream.pipeline.serve.follower.KafkaConsumer", LostConsumer)
    source = KafkaSource(Connection(("memory:9092",)))
    polled = [source.poll({JOBS_TOPIC: 3}) for _ in range(3)]
    assert [each.behind for each in polled] == [{JOBS_TOPIC}, {JOBS_TOPIC}, frozenset()]


@dataclass
class Heard:
    """What a background tells."""

    pipelines: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    horizons: list[tuple[int, SmoothedHorizon]] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def refused(self, message: str) -> None:
        self.refusals.append(message)

    def pipeline(
        self, job: DeployedJob, body: dict[str, Any], problems: tuple[str, ...], behind: float
    ) -> None:
        self.pipelines.append((job.name, problems))

    def smoothed(self, job: DeployedJob, number: int, horizon: SmoothedHorizon) -> None:
        self.horizons.append((number, horizon))


def background(shown: Sequence[Shown], heard: Heard) -> Background:
    return Background(lambda: cast(Cluster, None), lambda: tuple(shown), heard, lambda: NOW)


class Broken(MemoryCluster):
    """Its topics of one job cannot be read."""

    def end_offsets(self, topic: str) -> list[int]:
        if topic.startswith("count."):
            raise ValueError("what is this?")
        return super().end_offsets(topic)


def test_a_job_that_cannot_be_looked_at_leaves_the_others(caplog: pytest.LogCaptureFixture) -> None:
    cluster, heard = MemoryCluster(), Heard()
    jobs = [deploy_text(cluster, COUNT), deploy_text(cluster, MODES, b"m" * 16)]
    shown = [Shown(job, Phase.RUNNING, opened=True, smooths=False) for job in jobs]
    broken = Broken(cluster.records, cluster.partitions)
    background(shown, heard).watch(cast(Cluster, broken))
    assert [name for name, _ in heard.pipelines] == ["modes"]
    assert "job count cannot be looked at" in caplog.text


def report(job: Run, epochs: Sequence[int]) -> None:
    for epoch in epochs:
        job.report(epoch, ["1" if user % 5 < epoch else "0" for user in range(120)])


def test_looking_back_step_by_step_is_looking_back_at_once() -> None:
    cluster = MemoryCluster()
    job = deploy_text(cluster, COUNT.replace("count: 12", "count: 4, renew: true"))
    ran = Run(cluster, "count")
    looking = LookBack(job)
    known: dict[int, SmoothedHorizon] = {}
    for minute, epochs in enumerate(([1, 2], [3], [], [4, 5, 6], [7, 8, 9])):
        report(ran, epochs)
        now = 60.0 * minute
        known.update(looking.read_new(cast(Cluster, cluster), lambda now=now: now))  # type: ignore[misc]
        # Not again so soon.
        assert looking.read_new(cast(Cluster, cluster), lambda now=now: now + 0.1) == []  # type: ignore[misc]
    whole = read_from(cast(Cluster, cluster), job, smoothed_horizons(job, 9))
    assert known.keys() == whole.keys() == {0, 1, 2}
    for number, horizon in whole.items():
        assert known[number].first_epoch == horizon.first_epoch
        assert np.array_equal(known[number].estimates.values, horizon.estimates.values)
        assert np.array_equal(known[number].estimates.half_widths, horizon.estimates.half_widths)


async def test_the_smoothed_curve_is_made_when_somebody_looks_and_told() -> None:
    cluster = MemoryCluster()
    job = deploy_text(cluster, COUNT)
    report(Run(cluster, "count"), [1, 2, 3])

    async with live_page(cluster) as page:
        await page.look()
        assert (await page.get("/api/jobs/count/curve"))["series"][0]["smoothed"] is None
        async with page.view("job=count") as viewer:
            await messages(viewer, "hello")
            while not page.site.board.watched:
                await messages(viewer, "epoch")
            await page.look()
            assert (await messages(viewer, "smoothed"))["epoch"] == 3
            (curve,) = (await page.get("/api/jobs/count/curve"))["series"]
            whole = read_from(cast(Cluster, cluster), job, smoothed_horizons(job, 3))[0]
            assert curve["smoothed"] == pytest.approx(
                whole.estimates.values[:, 0].tolist(), abs=1e-3
            )
            assert curve["smoothed_low"][0] < curve["smoothed"][0]


def estimates_from(first: int, last: int, repeated: Sequence[int] = ()) -> list[LogRecord]:
    """What lies at the end of a topic in which some epochs are repeated first."""
    records = []
    for offset, epoch in enumerate([*repeated, *range(first, last + 1)], 100_000):
        record = EstimateRecord(
            bytes(16), epoch, Fate.RELEASED, NOW + epoch, 90, 100, count(float(epoch)), {}
        )
        records.append(LogRecord(offset, record.to_bytes()))
    return records


@pytest.mark.parametrize("repeated", [(), (7,), (7, 8, 9), (39_990, 39_998, 39_999)])
def test_a_page_begins_near_the_end_whatever_was_repeated_there(repeated: tuple[int, ...]) -> None:
    cluster, reader = MemoryCluster(), Reader()
    job = deploy_text(cluster, COUNT.replace("count: 12", "count: 50000"))
    topic = job.topic(Role.ESTIMATES)
    read_all(reader, cluster)
    assert reader.positions[topic] == -MOST_EPOCHS
    records = estimates_from(40_000, 40_050, repeated)
    assert reader.take(topic, []) is None
    found = [reader.take(topic, part) for part in (records[:30], records[30:])]
    epochs = [point.epoch for each in found if isinstance(each, Published) for point in each.points]
    assert epochs == list(range(epochs[0], 40_051))
    assert epochs[0] in (40_000, 39_998)
    assert reader.positions[topic] == records[-1].offset + 1
