"""Test that metrics describe the work of every stage, but no user's reports."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest
from prometheus_client import REGISTRY
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from dpstream.aggregators.estimate import GAP
from dpstream.aggregators.panel_estimates import PanelEstimates
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.jobs.key_files import NoiseKey
from dpstream.pipeline.kafka.workers.execution import Execution, Log
from dpstream.pipeline.kafka.workers.log_lines import LogLines
from dpstream.pipeline.kafka.workers.metrics import WorkerSnapshot, metric_families, registry_of
from dpstream.pipeline.kafka.workers.monitor import MonitorAddress, serve
from dpstream.pipeline.kafka.workers.observer import EndHistory, Observer, WindowCounters
from dpstream.pipeline.kafka.workers.timings import Timings
from dpstream.pipeline.kafka.workers.watchdog import (
    EventLoopHeartbeat,
    Health,
    Watchdog,
    liveness,
    readiness,
)
from dpstream.pipeline.kafka.workers.worker_facts import JobFacts
from dpstream.pipeline.results.measure_rows import rows_of
from dpstream.pipeline.results.watched_estimates import WatchedEstimates
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role
from tests.support.world import World

PEOPLE = 40
EPOCHS = (1, 2, 3)
KEY = NoiseKey(bytes(range(32)))
PARTITIONS = 2
STAGES = ("shuffle", "aggregate", "publish")


def deployed(protocol: str, parameters: Mapping[str, object]) -> DeployedJob:
    values = {
        "name": "watched",
        "protocol": protocol,
        "parameters": parameters,
        "epochs": {"count": 4},
        "shuffle": {"minimum": 10, "grace": "60 s", "producers": 1},
        "topics": {"partitions": PARTITIONS},
    }
    return deploy_job(make_job(values), deployment=bytes(16), deployed_at=0)


def local_job() -> DeployedJob:
    return deployed("future_rand", {"epsilon": 2, "max_changes": 2})


def shuffled_job() -> DeployedJob:
    parameters = {"epsilon": 1, "delta": 1e-6, "dummies": "shuffle"}
    job = deployed("shuffled_counts", parameters)
    return job.model_copy(update={"noise_key": KEY.digest})


class Watched:
    def __init__(self, job: DeployedJob, folder: Path, value: int = 1) -> None:
        users = {f"secret{user}": value for user in range(PEOPLE)}
        self.job = job
        self.world = World(job, folder, {"gateway": dict.fromkeys(EPOCHS, users)}, noise_key=KEY)
        self.lines = {stage: io.StringIO() for stage in STAGES}
        self.counters: dict[str, WindowCounters] = {}
        for stage, stream in self.lines.items():
            lines = LogLines("watched", stage, "w1", True, stream, self.clock, lambda: 1.7e9 + 5)
            counters = WindowCounters(lines.window, self.clock, lambda: 1.7e9 + 5)
            self.world.listeners[stage] = self.counters[stage] = counters
        for epoch in EPOCHS:
            self.world.close_epoch("gateway", epoch)
            self.world.settle()

    def clock(self) -> float:
        return self.world.now + 2.5

    def snapshot(self, stage: str, *, hides_messages: bool = False) -> WorkerSnapshot:
        log, worker = self.world.log, self.world.workers[stage]
        role = worker.stage.role
        ends = {p: log.end(role, p) for p in range(len(self.job.start_offsets[role]))}
        execution = Execution(
            worker.stage,
            cast(Log, None),
            str,
            starts=self.job.start_offsets[role],
            pause=1.0,
            report=print,
            fail=print,
        )
        execution.restored, execution.records = True, sum(ends.values())
        execution.positions = dict(ends)
        execution.committed = {p: log.committed.get((role, p), 0) for p in ends}
        facts = JobFacts.of(self.job)
        blank = WorkerSnapshot(
            "watched", stage, "group", f"watched.{role}", hides_messages, facts=facts
        )
        watched = WatchedEstimates(self.job)
        for value in log.values(Role.ESTIMATES):
            watched.next(EstimateRecord.from_bytes(value))
        publishes = stage == "publish"
        observer = Observer(
            blank, self.counters[stage], lambda: watched.latest if publishes else None
        )
        observer.observe(0.0, execution, worker.stage, ends, broker_answers=True)
        return observer.snapshot


def values_of(families: Iterable[Metric]) -> dict[str, float]:
    """Return the value of every sample by its name and its labels except job and stage."""
    found = {}
    for family in families:
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in ("dpstream_job", "stage")}
            found[sample.name + "".join(f" {k}={v}" for k, v in sorted(labels.items()))] = (
                sample.value
            )
    return found


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_counts_its_windows(tmp_path: Path, stage: str) -> None:
    watched = Watched(local_job(), tmp_path)
    found = values_of(metric_families(watched.snapshot(stage)))
    assert found["dpstream_windows_total status=released"] == len(EPOCHS)
    assert found["dpstream_windows_total status=suppressed"] == 0
    assert found["dpstream_last_epoch"] == max(EPOCHS)
    assert found["dpstream_last_window_timestamp_seconds"] == 1.7e9 + 5
    assert found["dpstream_worker_ready"] == 1
    topic = f"watched.{watched.world.workers[stage].stage.role}"
    for partition in range(1 if stage == "publish" else PARTITIONS):
        where = f" group=group partition={partition} topic={topic}"
        assert found["kafka_consumergroup_group_lag" + where] == 0
        assert found["kafka_consumergroup_group_lag_seconds" + where] == 0
    if stage != "publish":
        assert found["dpstream_reports_total"] > PEOPLE


def test_contradicting_device_reports_are_counted(tmp_path: Path) -> None:
    snapshot = Watched(local_job(), tmp_path).snapshot("shuffle")
    counts = cast(Mapping[str, int], snapshot.heartbeat["counts"])
    name = "dpstream_contradicting_reports_total"
    assert name not in values_of(metric_families(snapshot)), "not a job of devices"
    beat = {**snapshot.heartbeat, "counts": {**counts, "contradicting_reports": 3}}
    assert values_of(metric_families(replace(snapshot, heartbeat=beat)))[name] == 3


def test_metric_labels_are_bounded_and_identify_no_user(tmp_path: Path) -> None:
    watched = Watched(local_job(), tmp_path)
    labels = {
        "dpstream_job",
        "stage",
        "partition",
        "topic",
        "group",
        "status",
        "reason",
        "unit",
        "item",
    }
    for stage in STAGES:
        for family in metric_families(watched.snapshot(stage)):
            assert family.name.startswith(("dpstream_", "kafka_consumergroup_group_lag"))
            assert family.documentation
            for sample in family.samples:
                assert set(sample.labels) <= labels
                assert sample.name.endswith("_total") == (family.type == "counter")
                assert not any("secret" in v or "gateway" in v for v in sample.labels.values())


def measured_job(values: list[str]) -> DeployedJob:
    job = {
        "name": "watched",
        "parameters": {"epsilon": 1},
        "epochs": {"count": 4},
        "measures": {
            "wau": {"type": "active"},
            "mau": {"type": "active", "within": 2},
            "life": {"type": "lifecycle", "within": 2},
        },
        "attributes": {
            "os": {"values": values, "public": True},
            "plan": {"values": ["free"], "public": True},
        },
        "by": ["os", ["os", "plan"], "plan"],
        "ratios": {
            "returning": {"numerator": "wau", "denominator": "mau"},
            "unknown": {"numerator": "mau", "denominator": "wau"},
        },
    }
    return deploy_job(make_job(job), deployment=bytes(16), deployed_at=0)


def families_of(job: DeployedJob, estimate: PanelEstimates) -> list[Metric]:
    watched = WatchedEstimates(job)
    watched.next(EstimateRecord(bytes(16), 1, WindowStatus.RELEASED, 0, 900, 1_000, estimate, {}))
    snapshot = WorkerSnapshot("watched", "publish", "g", "t", False, estimates=watched.latest)
    return list(metric_families(snapshot))


def panel_estimates(job: DeployedJob, *flags: str) -> PanelEstimates:
    """Return estimates whose rows are 1, 2, ..., with a standard error of 10."""
    numbers = np.arange(1.0, job.domain.size)
    deviations, sizes = np.full(len(numbers), 10.0), np.full(len(numbers), 500.0)
    return PanelEstimates(numbers, deviations, sizes, numbers.astype(np.int64), 900, 1_000, flags)


def test_measures_and_attributes_are_labels() -> None:
    job = measured_job(["ios"])
    estimate = panel_estimates(job)
    suppressed = [each.label for each in rows_of(job)].index("wau: os=other")
    estimate.values[suppressed] = estimate.standard_errors[suppressed] = np.nan
    mau = [each.label for each in rows_of(job)].index("mau")
    estimate.standard_errors[mau] = 1.0
    found = values_of(families_of(job, estimate))
    assert found["dpstream_estimate measure=wau"] == 1.0
    assert found["dpstream_estimate_ci95_low by=os measure=wau os=ios"] == pytest.approx(
        2 - 19.6, 1e-3
    )
    new = [each.label for each in rows_of(job)].index("life=new: os=ios, plan=free")
    assert found["dpstream_estimate by=os,plan measure=life os=ios plan=free value=new"] == 1 + new
    assert not any("by=os measure=wau os=other" in name for name in found)
    assert found["dpstream_ratio ratio=returning"] == 1 / (1 + mau)
    assert found["dpstream_ratio_ci95_low ratio=returning"] < 0
    # The number 1, with an error of 10, is not distinguishable from 0.
    assert "dpstream_ratio ratio=unknown" not in found
    gap = values_of(families_of(job, panel_estimates(job, GAP)))
    assert "dpstream_estimate measure=wau" in gap
    assert "dpstream_estimate_ci95_low measure=wau" not in gap


def test_breakdowns_are_exported_as_a_whole_up_to_200_series() -> None:
    job = measured_job([f"v{number}" for number in range(8)])
    samples = [
        sample.labels
        for family in families_of(job, panel_estimates(job))
        for sample in family.samples
        if family.name.startswith("dpstream_estimate") and "measure" in sample.labels
    ]
    # Totals and groups by os are 6 x (1 + 9) rows of three series; 6 x 2 more would exceed 200.
    assert len(samples) == 3 * 60
    watched = WatchedEstimates(job)
    for epoch in (1, 2):
        estimate = panel_estimates(job)
        watched.next(
            EstimateRecord(bytes(16), epoch, WindowStatus.RELEASED, 0, 900, 1_000, estimate, {})
        )
    assert watched.latest is not None
    # The rest suffices for the changes of the totals.
    changed = [each.labels for each in watched.latest.numbers if each.change is not None]
    assert len(changed) == 6
    assert not any("by" in labels for labels in changed)
    assert {labels.get("by") for labels in samples} == {None, "os"}


def test_number_of_time_series_does_not_grow_with_epochs(tmp_path: Path) -> None:
    watched = Watched(local_job(), tmp_path)
    before = {stage: set(values_of(metric_families(watched.snapshot(stage)))) for stage in STAGES}
    watched.world.values["gateway"][4] = watched.world.values["gateway"][1]  # type: ignore[index]
    watched.world.close_epoch("gateway", 4)
    watched.world.settle()
    for stage in STAGES:
        found = values_of(metric_families(watched.snapshot(stage)))
        assert found["dpstream_last_epoch"] == 4
        assert set(found) == before[stage]


def test_metrics_are_independent_of_secret_message_counts(tmp_path: Path) -> None:
    """A device of `shuffled_counts` sends a message only if its value is 1."""
    silent = Watched(shuffled_job(), tmp_path / "silent", value=0)
    talking = Watched(shuffled_job(), tmp_path / "talking", value=1)
    raw = [
        sum(each.world.log.end(Role.REPORTS, p) for p in range(PARTITIONS))
        for each in (silent, talking)
    ]
    assert raw[0] == raw[1]
    families = [
        list(metric_families(each.snapshot("shuffle", hides_messages=True)))
        for each in (silent, talking)
    ]
    assert families[0] == families[1]
    found = values_of(families[0])
    assert found["dpstream_contributors_total"] == PEOPLE * len(EPOCHS)
    assert "dpstream_reports_total" not in found
    assert "dpstream_records_read_total" not in found
    assert not any(name.startswith("kafka_consumergroup_group_lag ") for name in found)
    assert sum(name.startswith("kafka_consumergroup_group_lag_seconds ") for name in found) == 2


def test_metrics_include_alert_thresholds() -> None:
    job = local_job()
    timed = make_job(
        {**job.to_json(), "epochs": {"count": 4, "start": "2024-02-01", "length": "P1M"}}
    )
    found = [
        values_of(
            metric_families(
                WorkerSnapshot("watched", "publish", "g", "t", False, facts=JobFacts.of(each))
            )
        )
        for each in (job, deploy_job(timed, deployed_at=0))
    ]
    for values in found:
        assert values["dpstream_grace_seconds"] == 60
        assert values["dpstream_minimum_contributors"] == 10
        assert values["dpstream_epsilon unit=stream"] == job.guarantee.epsilon
        assert values["dpstream_delta unit=stream"] == 0
    # Epochs without a calendar have no length; February 2024 had 29 days.
    assert "dpstream_epoch_seconds" not in found[0]
    assert found[1]["dpstream_epoch_seconds"] == 29 * 86_400


def test_lag_is_the_age_of_the_oldest_uncommitted_record() -> None:
    history = EndHistory()
    for now, end in ((0, 5), (60, 5), (61, 15), (100, 15)):
        history.note(now, end)
    assert history.lag_seconds(100, 15) == 0
    # Nothing is written during the first minute.
    assert history.lag_seconds(100, 5) == 40
    assert history.lag_seconds(100, 10) == 39.5
    assert history.lag_seconds(100, 4) == 100


def watchdog_after(heartbeat: EventLoopHeartbeat, seconds: int, *, beats: bool = True) -> Watchdog:
    watchdog = Watchdog(Timings(blocked=30, unrestored=60, stalled=120))
    watchdog.beat(heartbeat)
    for _ in range(seconds):
        if beats:
            watchdog.beat(heartbeat)
        watchdog.check(1.0)
    return watchdog


QUIET = EventLoopHeartbeat(True, True, 0, positions={0: 5, 2: 9}, ends={0: 5, 2: 9})
HUNG = EventLoopHeartbeat(True, True, 0, positions={0: 5, 2: 9}, ends={0: 5, 2: 10})
RESTORING = EventLoopHeartbeat(restored=False, broker_answers=True, work=0)
AWAY = EventLoopHeartbeat(False, False, 0, positions={}, ends={0: 9})


def test_worker_of_a_quiet_stream_is_healthy_but_a_hung_worker_is_not() -> None:
    quiet, hung = watchdog_after(QUIET, 10_000), watchdog_after(HUNG, 70)
    assert liveness(quiet) == Health(True, "alive")
    assert readiness(quiet) == Health(True, "ready, partitions: 0, 2")
    assert not liveness(hung).good
    assert liveness(hung).line.startswith("partition 2 has records that were not read for 60 s")
    assert readiness(hung) == liveness(hung)
    assert hung.fault() is None, "unhealthy before the watchdog ends the process"
    assert liveness(watchdog_after(HUNG, 50)).good


def test_blocked_event_loop_is_unhealthy() -> None:
    blocked = watchdog_after(QUIET, 20, beats=False)
    assert liveness(blocked) == Health(False, "the event loop has been blocked for 15 s")


def test_worker_that_restores_its_state_is_healthy_but_not_ready() -> None:
    restoring, away = watchdog_after(RESTORING, 20), watchdog_after(AWAY, 10_000)
    assert liveness(restoring).good
    assert readiness(restoring) == Health(False, "partitions are being assigned or restored")
    assert liveness(away) == Health(True, "alive, without a broker")
    assert readiness(away) == Health(False, "the broker is unreachable")
    assert not liveness(watchdog_after(RESTORING, 40)).good


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://{address}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def served() -> Iterator[Callable[..., str]]:
    servers = []

    def start(snapshot: WorkerSnapshot, ready: Health) -> str:
        server = serve(
            MonitorAddress(0),
            registry_of(lambda: snapshot),
            alive=lambda: Health(True, "alive"),
            ready=lambda: ready,
        )
        servers.append(server)
        return f"127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_scraped_metrics_are_valid_prometheus_text(
    tmp_path: Path, served: Callable[..., str]
) -> None:
    watched = Watched(local_job(), tmp_path)
    snapshot = watched.snapshot("shuffle")
    address = served(snapshot, Health(False, "not yet"))
    status, text = get(address, "/metrics")
    assert status == 200
    scraped = values_of(text_string_to_metric_families(text))
    expected = values_of(metric_families(snapshot))
    assert expected.items() <= scraped.items()
    rest = set(scraped) - set(expected)
    assert all(name.startswith("dpstream_process_") for name in rest)
    assert not any(family.name.startswith("dpstream") for family in REGISTRY.collect())


def test_health_check_answers_with_a_status_code_and_one_line(served: Callable[..., str]) -> None:
    address = served(WorkerSnapshot("j", "publish", "g", "t", False), Health(False, "not yet"))
    assert get(address, "/healthz") == (200, "alive\n")
    assert get(address, "/readyz?verbose") == (503, "not yet\n")
    assert get(address, "/")[0] == 404
