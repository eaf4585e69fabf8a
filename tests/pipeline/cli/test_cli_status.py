"""Test ``dpstream status``: reported issues, and their absence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.jobs.deployed_job import DeployedJob, Origin, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.jobs.routes import Route
from dpstream.pipeline.json_values import json_text
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import DeploymentError
from dpstream.pipeline.kafka.workers import Committed
from dpstream.pipeline.operations.registrations import Registrations
from dpstream.pipeline.operations.status.collection import JobWatch, gather_status
from dpstream.pipeline.operations.status.facts import (
    HEARTBEAT_TIMEOUT,
    JobStatus,
    OpenWindowStatus,
    StageStatus,
    TopicStatus,
    WorkerStatus,
)
from dpstream.pipeline.operations.status.health_rules import STUCK_SECONDS, find_issues, find_notes
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import Manifest, WindowStatus, encode_manifest
from dpstream.topics.names import Role
from dpstream.topics.partials import encode_partial, split_partial
from dpstream.topics.records import Deregistration, Registration
from tests.support.memory_cluster import MemoryCluster
from tests.support.small_run import EPOCHS, job_text

NOW = 1_700_000_000_000
JOB = deploy_job(
    parse_job(job_text() + "shuffle: {grace: PT30S}\n"), deployed_at=NOW, deployment=bytes(16)
)


def worker(stage: str, **values: Any) -> WorkerStatus:
    up = WorkerStatus(
        stage=stage,
        worker="w1",
        age=0.5,
        partitions=(0, 1),
        records_per_second=0.0,
        reports_per_second=None,
        windows=(),
        open_windows=0,
    )
    return replace(up, **values)


def stages(**changed: StageStatus) -> tuple[StageStatus, ...]:
    return tuple(
        changed.get(stage, StageStatus(stage, (worker(stage),), lag=0, waiting=None))
        for stage in Route().stages
    )


def publication(epoch: int) -> EstimateRecord:
    return EstimateRecord(bytes(16), epoch, WindowStatus.EMPTY, NOW, 0, 0, None, {})


def status_of(found: tuple[StageStatus, ...], **more: Any) -> JobStatus:
    published = more.pop("published", None)
    letters = more.pop("dead_letters", {})
    more.setdefault("producers", 1)
    return JobStatus(JOB.name, "", NOW, JOB.last_epoch, published, found, letters, **more)


def issues(found: tuple[StageStatus, ...], **more: Any) -> list[str]:
    return list(find_issues(JOB, status_of(found, **more)))


def notes(**more: Any) -> list[str]:
    return list(find_notes(JOB, status_of(stages(), **more)))


@pytest.mark.parametrize("stage", Route().stages)
def test_status_requires_a_live_worker_per_stage(stage: str) -> None:
    for workers in ((), (worker(stage, age=HEARTBEAT_TIMEOUT + 0.1),)):
        (issue,) = issues(stages(**{stage: StageStatus(stage, workers, 0, None)}))
        assert f"dpstream run {stage} small" in issue
    one_gone = (
        worker(stage, age=HEARTBEAT_TIMEOUT + 0.1),
        worker(stage, worker="w2", age=HEARTBEAT_TIMEOUT),
    )
    assert issues(stages(**{stage: StageStatus(stage, one_gone, 0, None)})) == []


GONE = tuple(StageStatus(stage, (), 1_000, 10_000.0) for stage in Route().stages)


def test_finished_job_needs_no_workers() -> None:
    assert len(issues(GONE, published=publication(EPOCHS - 1))) == 3
    assert issues(GONE, published=publication(EPOCHS), suppressed=5) == []
    ended = "'dpstream drain small' or 'dpstream undeploy small'"
    assert notes(published=publication(EPOCHS)) == [
        f"The last epoch is published; no workers are needed. To end the job: {ended}"
    ]
    (replayed,) = find_notes(REPLAY, status_of((), published=publication(EPOCHS)))
    assert replayed.endswith("To end the job: 'dpstream undeploy small'")


@pytest.mark.parametrize("phase", Phase)
def test_paused_or_drained_job_needs_no_workers(phase: Phase) -> None:
    assert bool(issues(GONE, phase=phase)) == phase.works
    text = " ".join(notes(phase=phase))
    assert (phase.value in text.lower()) == (phase is not Phase.RUNNING)
    assert ("dpstream resume small" in text) == (not phase.works)


REPLAY = JOB.model_copy(
    update={"replay_of": Origin.model_validate({"job": "big", "deployment": "00" * 16})}
)


@pytest.mark.parametrize("stage", Route().stages)
def test_stage_is_stuck_when_old_records_remain_unread(stage: str) -> None:
    limit = STUCK_SECONDS + (30.0 if stage == "shuffle" else 0.0)

    def lagging(waiting: float, busy: bool, lag: int | None = 12_345) -> list[str]:
        idle = worker(stage, worker="w2")
        reader = worker(stage, busy=busy)
        return issues(stages(**{stage: StageStatus(stage, (reader, idle), lag, waiting)}))

    assert lagging(limit, False) == []
    assert lagging(limit + 1, True) == []
    (issue,) = lagging(limit + 1, False)
    assert f"Stage {stage} is stuck: 12,345 records" in issue
    (issue,) = lagging(limit + 1, False, lag=None)
    assert f"Stage {stage} is stuck: the oldest for" in issue


def test_stage_is_not_stuck_while_a_producer_is_ahead_of_time() -> None:
    def found(grace_left: float | None) -> list[str]:
        window = OpenWindowStatus(epoch=1, reports=5, waits_for=("p",), grace_left=grace_left)
        ahead = worker("shuffle", ahead={"gateway": 3_000}, windows=(window,))
        return issues(stages(shuffle=StageStatus("shuffle", (ahead,), 5, STUCK_SECONDS + 31.0)))

    for waits in (None, 12.0):
        (issue,) = found(waits)
        assert "Producer gateway is 3,000 epochs ahead of time" in issue
    assert [issue for issue in found(0.0) if "Stage shuffle is stuck" in issue]


def test_three_suppressed_epochs_in_a_row_are_an_issue() -> None:
    assert issues(stages(), suppressed=2) == []
    (issue,) = issues(stages(), suppressed=3)
    assert "The last 3 epochs were suppressed: each had fewer than 100 devices" in issue


def test_changed_topics_are_reported_with_a_remedy() -> None:
    def of(partitions: int, *, unexpected_records: bool = False) -> tuple[list[str], list[str]]:
        changed = (TopicStatus("small.reports", partitions, 2, unexpected_records),)
        return issues(stages(), topics=changed), notes(topics=changed)

    (gone,), _ = of(0)
    assert "Topic small.reports no longer exists" in gone
    assert "dpstream undeploy small --delete-topics" in gone
    (fewer,), _ = of(1)
    assert "has 1 partitions, but was deployed with 2: it was deleted and recreated" in fewer
    none, (more,) = of(4)
    assert none == []
    assert "has 4 partitions; the job uses the first 2" in more
    (unexpected_records,), nothing = of(4, unexpected_records=True)
    assert "poch e belongs in partition e mod 2" in unexpected_records
    assert nothing == []


def test_records_lost_to_retention_are_reported() -> None:
    shuffle = StageStatus("shuffle", (worker("shuffle"),), 3, 1.0, deleted=(1,))
    (issue,) = issues(stages(shuffle=shuffle))
    assert "in partition 1 was deleted, probably by retention (7 days)" in issue


class Topics(MemoryCluster):
    def __init__(self) -> None:
        parts = {JOB.topic(role): len(each) for role, each in JOB.start_offsets.items()}
        super().__init__(partitions=parts)
        self.floors: dict[str, int] = {}
        self.requested: list[str] = []

    def add(self, role: Role, value: bytes, *, key: bytes | None = None, **more: Any) -> None:
        held = self.records[JOB.topic(role), 0]
        if role is Role.STATUS:
            # A heartbeat is written when it is sent.
            body = json.loads(value) if value[:1] == b"{" else {}
            more["timestamp"] = body["time"] if isinstance(body.get("time"), int) else 0
        held.append(LogRecord(len(held), value, key=key, **more))

    def committed(self, group: str, topic: str) -> list[Committed | None]:
        floor = self.floors.get(group)
        first = None if floor is None else Committed(floor)
        return [first, *super().committed(group, topic)[1:]]

    def read(
        self, topic: str, partition: int = 0, start: int = 0, stop: int | None = None
    ) -> Iterator[LogRecord]:
        for record in super().read(topic, partition, start, stop):
            self.requested.append(topic)
            yield record

    @property
    def cluster(self) -> Cluster:
        return cast(Cluster, self)


def heartbeat(stage: str, name: str, time: int, **more: Any) -> bytes:
    body = {
        "stage": stage,
        "worker": name,
        "time": time,
        "partitions": [0],
        "records_per_second": 3.0,
        **more,
    }
    return json.dumps(body).encode()


def test_status_uses_the_latest_heartbeat_from_every_worker() -> None:
    topics = Topics()
    windows = [{"epoch": 4, "reports": 17, "waits_for": ["gateway-2"]}]
    for time, reports in ((NOW - 5000, 0), (NOW - 2000, 1000), (NOW - 1000, 1600)):
        record = heartbeat(
            "shuffle", "w1", time, counts={"reports": reports}, windows=windows, open_windows=1
        )
        topics.add(Role.STATUS, record, key=b"shuffle/w1")
    topics.add(
        Role.STATUS, heartbeat("aggregate", "w9", NOW - 60_000, counts={}), key=b"aggregate/w9"
    )
    foreign = heartbeat("publish", "w1", NOW, deployment="ff" * 16)
    topics.add(Role.STATUS, foreign, key=b"publish/w1")
    for strange in (b"no JSON", b"[]", b"{}", b'{"stage": "publish", "worker": "w2", "time": "?"}'):
        topics.add(Role.STATUS, strange, key=b"publish/w2")

    status = gather_status(topics.cluster, JOB, NOW)
    shuffle, aggregate, publish = status.stages
    (live,) = shuffle.workers
    assert (live.up, live.age, live.reports_per_second) == (True, 1.0, 600.0)
    assert (live.windows[0].epoch, live.windows[0].waits_for) == (4, ("gateway-2",))
    (gone,) = aggregate.workers
    assert (gone.up, gone.age, gone.reports_per_second) == (False, 60.0, None)
    assert publish.workers == ()
    assert json.loads(json_text(status))["stages"][0]["workers"][0]["worker"] == "w1"
    assert [issue.split(":")[0] for issue in status.issues] == [
        "No worker of stage aggregate is up. Start one",
        "No worker of stage publish is up. Start one",
    ]


def test_stopped_worker_is_not_an_issue() -> None:
    """A killed worker is reported as missing, because it did not announce its stop."""
    topics = Topics()
    for name in ("killed", "stopped", "again", "old"):
        then = NOW - (2 * 86_400_000 if name == "old" else 20_000)
        topics.add(Role.STATUS, heartbeat("shuffle", name, then), key=b"shuffle/" + name.encode())
    for name in ("stopped", "again"):
        record = {"stage": "shuffle", "worker": name, "time": NOW - 15_000, "stopped": True}
        topics.add(Role.STATUS, json.dumps(record).encode(), key=b"shuffle/" + name.encode())
    topics.add(Role.STATUS, heartbeat("shuffle", "again", NOW), key=b"shuffle/again")
    (shuffle, *_) = gather_status(topics.cluster, JOB, NOW).stages
    assert [(each.worker, each.up) for each in shuffle.workers] == [
        ("again", True),
        ("killed", False),
    ]


def test_watch_of_a_job_reads_only_new_records(registered: Topics) -> None:
    watch = JobWatch(registered.cluster, JOB)
    first = watch.status(NOW)
    assert (first.windows, first.producers, first.missing_producers) == (
        {"released": 4, "suppressed": 0, "empty": 0},
        3,
        ("b",),
    )
    assert [stage.epoch for stage in first.stages] == [4, None, None]
    registered.requested.clear()
    assert watch.status(NOW) == first
    assert registered.requested == []

    for epoch, window_status in (
        (5, WindowStatus.EMPTY),
        (6, WindowStatus.SUPPRESSED),
        (7, WindowStatus.EMPTY),
    ):
        decided = manifest(JOB, epoch, b=True, c=False)
        devices = 0 if window_status is WindowStatus.EMPTY else 7
        decided = replace(decided, window_status=window_status, contributors=devices)
        registered.add(Role.MANIFESTS, encode_manifest(decided))
    registered.add(Role.ESTIMATES, publication(4).to_bytes())
    registered.add(Role.ESTIMATES, publication(3).to_bytes())
    (part,) = split_partial(
        fingerprint=JOB.fingerprint,
        deployment=JOB.deployment,
        epoch=9,
        manifest_offset=0,
        attempt=bytes(16),
        payload=b"sum",
    )
    registered.add(Role.PARTIALS, encode_partial(part))
    then = watch.status(NOW)
    assert then.windows == {"released": 4, "suppressed": 1, "empty": 2}
    assert (then.suppressed, then.missing_producers) == (3, ())
    assert [stage.epoch for stage in then.stages] == [7, 9, 4]
    assert "The last 3 epochs were suppressed" in then.issues[-1]
    assert then == gather_status(registered.cluster, JOB, NOW)


def test_status_hides_secret_record_counts_and_rates() -> None:
    text = (
        "name: small\nprotocol: shuffled_counts\nparameters: {epsilon: 1, delta: 1e-6}\n"
        "epochs: {count: 4}\nshuffle: {minimum: 1000}\ntopics: {partitions: 2}\n"
    )
    job = deploy_job(parse_job(text), deployed_at=NOW, deployment=bytes(16))
    topics = Topics()
    for _ in range(17):
        topics.add(Role.REPORTS, b"", timestamp=NOW - 5_000)
    windows = [{"epoch": 4, "devices": 900, "grace_left": 9.5, "waits_for": ["gateway-2"]}]
    record = heartbeat("shuffle", "w1", NOW - 1_000, windows=windows, counts={"late_reports": 3})
    topics.add(Role.STATUS, record, key=b"shuffle/w1")
    status = gather_status(topics.cluster, job, NOW)
    shuffle = status.stages[0]
    assert (shuffle.lag, shuffle.waiting) == (None, 5.0)
    (window,) = shuffle.workers[0].windows
    assert (window.reports, window.devices, window.grace_left) == (None, 900, 8.5)
    assert shuffle.workers[0].records_per_second is None
    assert "17" not in json_text(status.stages)
    assert "3 devices arrived after their epoch was finalized" in " ".join(status.issues)


def test_deleted_topics_are_reported() -> None:
    topics = Topics()
    gone = set(topics.partitions)
    topics.partitions.clear()
    status = gather_status(topics.cluster, JOB, NOW)
    assert {topic.name for topic in status.topics} == gone
    assert {topic.partitions for topic in status.topics} == {0}
    assert {stage.lag for stage in status.stages} == {None}
    assert sum("no longer exists; its data is lost" in issue for issue in status.issues) == 9


def test_deleted_unprocessed_records_are_reported() -> None:
    topics = Topics()
    for partition in (0, 1):
        topics.delete_below(JOB.topic(Role.REPORTS), 2, partition)
    group = f"{JOB.name}.shuffle.{JOB.deployment.hex()}"
    for _ in range(3):
        topics.add(Role.REPORTS, b"", timestamp=NOW)
    topics.floors[group] = 1
    assert gather_status(topics.cluster, JOB, NOW).stages[0].deleted == (0, 1)
    topics.floors[group] = 2
    assert gather_status(topics.cluster, JOB, NOW).stages[0].deleted == (1,)


def test_lag_counts_unfinished_records_and_their_age() -> None:
    topics = Topics()
    for age in (90_000, 50_000, 20_000):
        topics.add(Role.REPORTS, b"", timestamp=NOW - age)
    shuffle = gather_status(topics.cluster, JOB, NOW).stages[0]
    assert (shuffle.lag, shuffle.waiting) == (3, 90.0)

    topics.floors[f"{JOB.name}.shuffle.{JOB.deployment.hex()}"] = 1
    shuffle = gather_status(topics.cluster, JOB, NOW).stages[0]
    assert (shuffle.lag, shuffle.waiting) == (2, 50.0)

    topics.floors[f"{JOB.name}.shuffle.{JOB.deployment.hex()}"] = 3
    shuffle = gather_status(topics.cluster, JOB, NOW).stages[0]
    assert (shuffle.lag, shuffle.waiting) == (0, None)


@pytest.fixture
def registered() -> Topics:
    topics = Topics()
    for name in "abc":
        enrollment = name.encode() * 16
        record = Registration(JOB.deployment, name, enrollment, 1)
        topics.add(Role.PRODUCERS, record.to_bytes())
    topics.add(Role.PRODUCERS, Deregistration(JOB.deployment, b"c" * 16, 2).to_bytes())
    for epoch in range(1, 5):
        topics.add(Role.MANIFESTS, encode_manifest(manifest(JOB, epoch, b=epoch < 2, c=epoch < 3)))
    return topics


def manifest(job: DeployedJob, epoch: int, *, b: bool, c: bool) -> Manifest:
    inside = (True, b, c)
    populations = tuple(100 + index for index in range(3) if inside[index])
    return Manifest(
        job.fingerprint, job.deployment, epoch, WindowStatus.RELEASED, 0, 1, 1, inside,
        populations, sum(populations), 303, NOW,
    )  # fmt: skip


def test_deleted_records_are_no_issue_when_all_windows_are_published(registered: Topics) -> None:
    def deleted() -> tuple[int, ...]:
        return gather_status(registered.cluster, JOB, NOW).stages[0].deleted

    for _ in range(2):
        registered.add(Role.REPORTS, b"", timestamp=NOW)
    registered.delete_below(JOB.topic(Role.REPORTS), 1)
    assert deleted() == (0,)
    registered.add(Role.ESTIMATES, publication(3).to_bytes())
    assert deleted() == (0,), "epoch 4 is decided and not published"
    registered.add(Role.ESTIMATES, publication(4).to_bytes())
    assert deleted() == ()
    registered.delete_below(JOB.topic(Role.REPORTS), 2)
    assert deleted() == (0,), "what lay beyond the last window is not decided"


def test_producer_is_retired_at_the_last_finalized_epoch(registered: Topics) -> None:
    assert Registrations(registered.cluster, JOB).retire("b") == 4
    statuses = Registrations(registered.cluster, JOB).statuses()
    assert [(each.state, each.last_epoch) for each in statuses][1] == ("left", 4)
    for name, message in (("b", "already left, after epoch 4"), ("d", "registered: a, b, c")):
        with pytest.raises(DeploymentError, match=message):
            Registrations(registered.cluster, JOB).retire(name)
