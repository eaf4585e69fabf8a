"""Test supervisors on a real broker: workers start and stop with their own jobs only."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.jobs.key_files import NoiseKey
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.deployed_jobs import set_phase
from dpstream.pipeline.kafka.local_kafka.broker import free_port
from dpstream.pipeline.operations.deployments import deploy, undeploy
from dpstream.pipeline.results.follow import EstimateReader
from dpstream.topics.names import JOBS_TOPIC
from tests.support.commands import Commands
from tests.support.ended import still_running
from tests.support.processes import start_command, wait_until
from tests.support.small_run import EPOCHS, job_text, write_changes

STAGES = ("shuffle", "aggregate", "publish")
TIMEOUT = 90.0
"""Timeout in seconds, far longer than any expected wait."""


class Supervisor:
    """``dpstream run STAGE`` that logs JSON lines to a file and serves metrics."""

    def __init__(self, stage: str, pattern: str, servers: str, home: Path) -> None:
        self.port = free_port()
        self.stage = stage
        self.log = home / f"{stage}-{secrets.token_hex(4)}.log"
        options = ["--jobs", pattern, "--name", "w1", "--log-format", "json"]
        options += ["--metrics", str(self.port), "--bootstrap-servers", servers]
        with self.log.open("wb") as file:
            self.process = start_command(
                "run", stage, *options, home=home, stdin=subprocess.DEVNULL, stderr=file
            )

    def children(self) -> dict[str, psutil.Process]:
        found = {}
        for child in psutil.Process(self.process.pid).children():
            try:
                command = child.cmdline()
            except psutil.Error:
                continue
            if "dpstream.pipeline.cli" in command and child.status() != psutil.STATUS_ZOMBIE:
                found[command[command.index(self.stage) + 1]] = child
        return found

    def lines(self, job: str | None) -> list[str]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line["message"] for line in lines if line["job"] == job and "message" in line]

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except URLError as error:
            return 0, str(error)

    def total(self, name: str, **labels: str) -> float:
        status, text = self.get("/metrics")
        assert status == 200
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


class Operator:
    def __init__(self, servers: str, prefix: str, home: Path, dpstream: Commands) -> None:
        self.cluster = Cluster(Connection((servers,)))
        self.servers, self.prefix, self.home, self.dpstream = servers, prefix, home, dpstream
        self.changes = write_changes(home / "changes.csv")
        self.supervisors = {stage: self.supervise(stage) for stage in STAGES}

    def supervise(self, stage: str) -> Supervisor:
        return Supervisor(stage, f"{self.prefix}-*", self.servers, self.home)

    def deploy(self, name: str) -> DeployedJob:
        job = parse_job(job_text(f"{self.prefix}-{name}"))
        return deploy(self.cluster, job, deployment=secrets.token_bytes(16), now=0)

    def produce(self, job: DeployedJob) -> None:
        done = self.dpstream("produce", job.name, "--input", self.changes, "--name", "gateway")
        assert done.code == 0, done.errors

    def expect_all_published(self, job: DeployedJob) -> None:
        reader, found = EstimateReader(self.cluster, job), set[int]()

        def complete() -> bool:
            found.update(record.epoch for record in reader.read())
            return found == set(range(1, EPOCHS + 1))

        wait_until(complete, f"{job.name} is published")

    def wait_until_ready(self, supervisor: Supervisor) -> None:
        wait_until(lambda: supervisor.get("/readyz")[0] == 200, "all workers are ready")

    def wait_until_logged(self, supervisor: Supervisor, job: DeployedJob) -> None:
        wait_until(
            lambda: supervisor.total("dpstream_windows_total", dpstream_job=job.name) == EPOCHS,
            "all windows are logged",
        )

    def children(self, job: DeployedJob) -> dict[str, int]:
        found = {stage: each.children() for stage, each in self.supervisors.items()}
        return {
            stage: children[job.name].pid
            for stage, children in found.items()
            if job.name in children
        }

    def close(self) -> None:
        for supervisor in self.supervisors.values():
            supervisor.process.kill()
            supervisor.process.wait()
            print(supervisor.log.name, supervisor.log.read_text(), sep="\n")
        self.cluster.close()


@pytest.fixture
def operator(
    bootstrap_servers: str,
    job_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Operator]:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path))
    commands = Commands(capsys, ("--bootstrap-servers", bootstrap_servers))
    operator = Operator(bootstrap_servers, job_name, tmp_path, commands)
    yield operator
    operator.close()


@pytest.mark.slow
def test_workers_start_and_stop_with_their_jobs(operator: Operator) -> None:
    supervisors = operator.supervisors
    one, two = operator.deploy("one"), operator.deploy("two")
    future = f"{operator.prefix}-future"
    operator.cluster.append(JOBS_TOPIC, b"of a later version", key=future.encode())
    for job in (one, two):
        operator.produce(job)
    for job in (one, two):
        operator.expect_all_published(job)
    before = {job.name: operator.children(job) for job in (one, two)}
    assert all(children.keys() == set(STAGES) for children in before.values())
    for supervisor in supervisors.values():
        assert supervisor.lines(future) == [
            "not run: deployed by an incompatible version of dpstream"
        ]
    operator.cluster.append(JOBS_TOPIC, None, key=future.encode())

    for supervisor in supervisors.values():
        operator.wait_until_ready(supervisor)
        assert supervisor.get("/healthz") == (200, "alive, workers: 2\n")
        assert supervisor.total("dpstream_supervised_jobs") == 2
        for job in (one, two):
            operator.wait_until_logged(supervisor, job)
        assert supervisor.total("dpstream_process_resident_memory_bytes", dpstream_job=one.name) > 0
        assert supervisor.total("dpstream_worker_restarts_total") == 0

    for stage, pid in before[one.name].items():
        own = Path(f"/proc/{supervisors[stage].process.pid}/oom_score_adj")
        if own.exists():
            assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) > int(own.read_text())
        os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: len(operator.children(one).items() - before[one.name].items()) == len(STAGES),
        "the killed workers are back",
    )
    assert operator.children(two) == before[two.name]
    for supervisor in supervisors.values():
        assert supervisor.total("dpstream_worker_restarts_total", dpstream_job=one.name) == 1
        assert supervisor.total("dpstream_worker_restarts_total", dpstream_job=two.name) == 0
        assert "the worker was killed by signal 9" in " ".join(supervisor.lines(one.name))

    # Rewrite the job's record, as if only operator settings had changed.
    restarted = operator.children(one)
    shuffle = one.shuffle.model_copy(update={"grace": 2 * one.shuffle.grace})
    changed = one.model_copy(update={"shuffle": shuffle})
    operator.cluster.append(JOBS_TOPIC, changed.to_bytes(), key=one.name.encode())
    wait_until(
        lambda: len(operator.children(one).items() - restarted.items()) == len(STAGES),
        "workers with the new record have replaced the earlier ones",
    )
    labels = {"dpstream_job": one.name}
    assert supervisors["shuffle"].total("dpstream_worker_restarts_total", **labels) == 1

    set_phase(operator.cluster, one, Phase.PAUSED, 1)
    wait_until(lambda: not operator.children(one), "a paused job has no workers")
    set_phase(operator.cluster, one, Phase.DRAINING, 2)
    wait_until(
        lambda: operator.children(one).keys() == set(STAGES), "a draining job has workers again"
    )
    undeploy(operator.cluster, one.name)
    wait_until(lambda: not operator.children(one), "an undeployed job has no workers")
    assert operator.children(two) == before[two.name]

    processes = [psutil.Process(pid) for pid in operator.children(two).values()]
    supervisors["shuffle"].process.send_signal(signal.SIGTERM)
    assert supervisors["shuffle"].process.wait(TIMEOUT) == 0
    assert supervisors["shuffle"].lines(None)[-1] == "stopped"
    for stage in ("aggregate", "publish"):
        supervisors[stage].process.kill()
    assert not still_running(processes, TIMEOUT)


@pytest.mark.verify
def test_failing_job_does_not_affect_other_jobs(operator: Operator, job_name: str) -> None:
    """The noise key of one job is missing on this machine."""
    shuffle = operator.supervisors["shuffle"]
    noisy = parse_job(
        f"name: {job_name}-noisy\nprotocol: shuffled_counts\n"
        "parameters: {epsilon: 1, delta: 1.0e-6, dummies: shuffle}\n"
        "epochs: {count: 4}\nshuffle: {minimum: 100}\ntopics: {partitions: 2}\n"
    )
    elsewhere = operator.home / "elsewhere"
    deployed = deploy(
        operator.cluster, noisy, deployment=secrets.token_bytes(16), now=0, noise_key=elsewhere
    )
    sound = operator.deploy("sound")
    operator.produce(sound)
    operator.expect_all_published(sound)
    (said,) = shuffle.lines(deployed.name)
    assert said.startswith("cannot start a worker: noise key ")
    assert deployed.name not in shuffle.children()
    assert shuffle.get("/healthz") == (200, "alive, workers: 1, 1 waiting for restart\n")
    assert shuffle.get("/readyz")[0] == 503

    place = operator.home / "noise-keys" / deployed.name
    NoiseKey.at(place)
    rejected = "the worker exited with code 2 ("
    wait_until(
        lambda: any(line.startswith(rejected) for line in shuffle.lines(deployed.name)),
        "the rejection of another job's key is logged",
    )
    elsewhere.replace(place)
    operator.wait_until_ready(shuffle)
