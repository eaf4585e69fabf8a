"""Test combined metrics and health of all workers of a supervisor."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace

from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dpstream.pipeline.operations.supervisor.supervise import Lines
from dpstream.pipeline.operations.supervisor.watch import (
    View,
    Watched,
    liveness,
    readiness,
    registry_of,
)

SCRAPE = """\
# HELP dpstream_windows_total Windows.
# TYPE dpstream_windows_total counter
dpstream_windows_total{{dpstream_job="{job}",stage="shuffle",status="released"}} {value}
# HELP dpstream_process_open_fds Descriptors.
# TYPE dpstream_process_open_fds gauge
dpstream_process_open_fds 7.0
# HELP kafka_consumergroup_group_lag Lag.
# TYPE kafka_consumergroup_group_lag gauge
kafka_consumergroup_group_lag{{group="{job}.shuffle",topic="{job}.reports",partition="0"}} 5.0
"""
VIEW = View(
    at=100.0,
    stage="shuffle",
    workers=(Watched("a", 1, since=50.0), Watched("b", 2, since=50.0, restarts=3)),
    informed=True,
    broker_answers=True,
)


def scraped(answers: dict[int, str]) -> str:
    registry = registry_of(
        lambda: VIEW, lambda port, path: (200, answers[port]) if port in answers else None
    )
    return generate_latest(registry).decode()


def test_scraped_metrics_combine_those_of_all_workers() -> None:
    answers = {1: SCRAPE.format(job="a", value=4), 2: SCRAPE.format(job="b", value=6)}
    text = scraped(answers)
    assert text.count("# TYPE dpstream_windows_total ") == 1
    families = {family.name: family for family in text_string_to_metric_families(text)}
    windows = {s.labels["dpstream_job"]: s.value for s in families["dpstream_windows"].samples}
    assert windows == {"a": 4, "b": 6}
    for sample in families["dpstream_process_open_fds"].samples:
        assert sample.labels["dpstream_job"] in "ab"
        assert sample.labels["stage"] == "shuffle"
    lag = families["kafka_consumergroup_group_lag"].samples
    assert all(set(sample.labels) == {"group", "topic", "partition"} for sample in lag)
    assert [sample.value for sample in families["dpstream_supervised_jobs"].samples] == [2]
    restarts = {
        s.labels["dpstream_job"]: s.value for s in families["dpstream_worker_restarts"].samples
    }
    assert restarts == {"a": 0, "b": 3}
    every = [(s.name, frozenset(s.labels.items())) for f in families.values() for s in f.samples]
    assert len(every) == len(set(every)), "no duplicate series"


def test_scraped_metrics_omit_an_unresponsive_worker() -> None:
    text = scraped({2: SCRAPE.format(job="b", value=6)})
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert [s.labels["dpstream_job"] for s in families["dpstream_windows"].samples] == ["b"]
    assert [sample.value for sample in families["dpstream_supervised_jobs"].samples] == [2]


def test_conflicting_metric_types_of_workers_do_not_break_the_scrape() -> None:
    other = SCRAPE.format(job="b", value=6).replace("lag gauge", "lag untyped")
    text = scraped({1: SCRAPE.format(job="a", value=4), 2: other})
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(families["kafka_consumergroup_group_lag"].samples) == 1
    assert len(families["dpstream_windows"].samples) == 2


Answer = tuple[int, str] | None
GOOD, HUNG = (200, "alive\n"), (503, "the event loop has been blocked for 15 s\n")


def asking(*answers: Answer) -> Callable[[int, str], Answer]:
    return lambda port, path: answers[port - 1]


def test_supervisor_is_healthy_while_polling_with_healthy_workers() -> None:
    good = liveness(VIEW, 100.5, asking(GOOD, GOOD))
    assert (good.good, good.line) == (True, "alive, workers: 2")
    hung = liveness(VIEW, 100.5, asking(GOOD, HUNG))
    assert (hung.good, hung.line) == (False, "job b: the event loop has been blocked for 15 s")
    blocked = liveness(VIEW, 130.0, asking(GOOD, GOOD))
    assert (blocked.good, blocked.line) == (False, "the supervisor has been blocked for 30 s")


def test_starting_worker_is_healthy_but_not_ready() -> None:
    assert liveness(VIEW, 100.5, asking(GOOD, None)).good
    later = replace(VIEW, at=200.0)
    assert liveness(later, 200.0, asking(GOOD, None)).line == "the worker of job b does not answer"
    waiting = replace(VIEW, workers=(VIEW.workers[0], Watched("b", None, since=50.0)))
    healthy = liveness(waiting, 100.5, asking(GOOD))
    assert (healthy.good, healthy.line) == (True, "alive, workers: 1, 1 waiting for restart")
    assert readiness(VIEW, 100.5, asking(GOOD, None)).line == "the worker of job b does not answer"
    assert readiness(waiting, 100.5, asking(GOOD)).line == "the worker of job b is not running"


def test_supervisor_without_jobs_or_broker_is_not_ready() -> None:
    assert readiness(VIEW, 100.5, asking(GOOD, GOOD)).good
    assert not readiness(VIEW, 130.0, asking(GOOD, GOOD)).good
    assert not readiness(replace(VIEW, informed=False), 100.5, asking(GOOD, GOOD)).good
    away = replace(VIEW, broker_answers=False)
    assert not readiness(away, 100.5, asking(GOOD, GOOD)).good
    assert liveness(away, 100.5, asking(GOOD, GOOD)).good
    nothing = replace(VIEW, workers=())
    assert readiness(nothing, 100.5, asking()).line == "ready, workers: 0"


def test_idle_worker_repeats_its_last_metrics() -> None:
    idle_metrics = Watched("b", None, since=50.0, idle_metrics=SCRAPE.format(job="b", value=6))
    view = replace(VIEW, workers=(VIEW.workers[0], idle_metrics))
    registry = registry_of(lambda: view, lambda port, path: None)
    families = {
        family.name: family
        for family in text_string_to_metric_families(generate_latest(registry).decode())
    }
    windows = {s.labels["dpstream_job"]: s.value for s in families["dpstream_windows"].samples}
    assert windows == {"b": 6}
    samples = families["dpstream_worker_idle"].samples
    assert {s.labels["dpstream_job"]: s.value for s in samples} == {"a": 0, "b": 1}


def test_every_log_line_is_json() -> None:
    stream = io.StringIO()
    lines = Lines("shuffle", "w1", as_json=True, stream=stream)
    lines.relay("students", '{"message": "partitions: 0"}')
    lines.relay("students", "Traceback (most recent call last):")
    lines.info(None, "stopped")
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    messages = ["partitions: 0", "Traceback (most recent call last):", "stopped"]
    assert [line["message"] for line in found] == messages
    assert [line.get("job") for line in found[1:]] == ["students", None]
