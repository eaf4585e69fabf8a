"""Prometheus and whoever restarts processes can ask a real worker how it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from dpstream.pipeline.kafka.local_kafka.broker import free_port
from tests.support.commands import Commands
from tests.support.small_run import EPOCHS, USERS, job_text, write_changes

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
STAGES = ("shuffle", "aggregate", "publish")
PUBLISHED = tuple(f"dpstream_estimate{end}" for end in ("", "_low", "_high", "_epoch"))


class Worker:
    """A worker process that serves metrics, and writes JSON lines into a file."""

    def __init__(self, stage: str, job: str, servers: str, folder: Path) -> None:
        self.port = free_port()
        self.log = folder / f"{stage}.log"
        options = ("--metrics", str(self.port), "--log-format", "json", "--name", "w1")
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dpstream.pipeline.cli", "run", stage, job, *options],
                cwd=ROOT,
                env={**os.environ, "DPSTREAM_BOOTSTRAP_SERVERS": servers},
                stdin=subprocess.DEVNULL,
                stderr=file,
                start_new_session=True,
            )

    def get(self, path: str) -> tuple[int, str]:
        """Status and text; status 0 while nothing is served."""
        try:
            with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except URLError as error:
            return getattr(error, "code", 0), str(error)

    def families(self) -> dict[str, Metric]:
        status, text = self.get("/metrics")
        assert status == 200
        return {family.name: family for family in text_string_to_metric_families(text)}

    def total(self, name: str, **labels: str) -> float:
        samples = self.families()[name].samples
        return sum(s.value for s in samples if labels.items() <= s.labels.items())

    def windows(self) -> list[dict[str, object]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if "epoch" in line]


@pytest.fixture
def workers(
    dpstream: Commands, bootstrap_servers: str, job_name: str, tmp_path: Path
) -> Iterator[dict[str, Worker]]:
    """A worker of every stage of a deployed job."""
    job_file = tmp_path / "job.yaml"
    job_file.write_text(job_text(job_name))
    assert dpstream("deploy", job_file).code == 0
    started = {s: Worker(s, job_name, bootstrap_servers, tmp_path) for s in STAGES}
    yield started
    for worker in started.values():
        worker.process.kill()
        worker.process.wait()
        print(worker.log.name, worker.log.read_text(), sep="\n")


def wait_until_ready(workers: dict[str, Worker]) -> None:
    deadline = time.monotonic() + PATIENCE
    for worker in workers.values():
        while (answer := worker.get("/readyz"))[0] != 200:
            assert time.monotonic() < deadline, answer
            assert worker.process.poll() is None
            time.sleep(0.05)


def test_workers_tell_what_they_do_and_of_nobody(
    dpstream: Commands, workers: dict[str, Worker], job_name: str, tmp_path: Path
) -> None:
    wait_until_ready(workers)
    assert workers["shuffle"].get("/readyz")[1] == "ready, partitions: 0, 1\n"
    deadline = time.monotonic() + PATIENCE
    # Told once its first word is acknowledged, which may be a moment later.
    while not all("dpstream_clock_ahead_seconds" in dict(series(w)) for w in workers.values()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    before = {stage: series(worker) for stage, worker in workers.items()}
    changes = write_changes(tmp_path / "changes.csv")
    produced = dpstream("produce", job_name, "--input", changes, "--name", "gateway")
    assert produced.code == 0, produced.errors

    deadline = time.monotonic() + PATIENCE
    for worker in workers.values():
        while (
            worker.total("dpstream_windows") < EPOCHS
            or worker.total("kafka_consumergroup_group_lag") > 0
        ):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    for stage, worker in workers.items():
        assert worker.get("/healthz") == (200, "alive\n")
        assert worker.total("dpstream_windows", fate="released") == EPOCHS
        assert worker.total("dpstream_last_epoch") == EPOCHS
        assert worker.total("dpstream_dead_letters") == 0
        assert worker.total("kafka_consumergroup_group_lag_seconds") == 0
        grown = [name for name, _ in series(worker) - before[stage]]
        published = PUBLISHED if stage == "publish" else ()
        # One for the stage or for each partition, however many epochs there were.
        assert set(grown) <= {
            "dpstream_last_epoch",
            "dpstream_last_window_timestamp_seconds",
            "kafka_consumergroup_group_lag",
            "kafka_consumergroup_group_lag_seconds",
            *published,
        }
        assert len(grown) <= 2 + len(published) + 2 * len(partitions(worker))
        for family in worker.families().values():
            assert family.type in ("gauge", "counter")
        told = worker.get("/metrics")[1]
        assert "gateway" not in told
        assert "user" not in told.replace("user and system CPU time", "")
        assert {window["epoch"] for window in worker.windows()} == set(range(1, EPOCHS + 1))
        assert len(worker.windows()) == EPOCHS
    assert {window["contributors"] for window in workers["publish"].windows()} == {USERS}
    assert partitions(workers["shuffle"]) == {"0", "1"}
    assert partitions(workers["publish"]) == {"0"}

    worker = workers["publish"]
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(PATIENCE) == 0
    assert json.loads(worker.log.read_text().splitlines()[-1])["message"] == "stopped"


def series(worker: Worker) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    """The time series that a worker has at the moment."""
    return {
        (sample.name, frozenset(sample.labels.items()))
        for family in worker.families().values()
        for sample in family.samples
    }


def partitions(worker: Worker) -> set[str]:
    samples = worker.families()["kafka_consumergroup_group_lag"].samples
    return {sample.labels["partition"] for sample in samples}
