"""Test on a real broker that idle workers are restarted on demand, without loss."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from dpstream.pipeline.devices.change_log import load_change_log
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import load_job, parse_job
from dpstream.pipeline.kafka.cluster import Cluster, KafkaTransport
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.kafka.local_kafka import LocalKafka
from dpstream.pipeline.kafka.local_kafka.broker import free_port
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.operations.supervisor.children import HUNG_SECONDS
from dpstream.pipeline.results.follow import EstimateReader
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role
from tests.support.commands import Commands
from tests.support.least_privilege import secured_job
from tests.support.processes import TIMEOUT, start_command, wait_until
from tests.support.secured_kafka import SecuredKafka
from tests.support.small_run import EPOCHS, job_text, write_changes

pytestmark = pytest.mark.verify

STAGES = ("shuffle", "aggregate", "publish")
IDLE_TIMEOUT = 2.0
"""Idle timeout in seconds."""


class Supervisor:
    """``dpstream run STAGE`` with an idle timeout."""

    def __init__(
        self, stage: str, pattern: str, cluster: Sequence[str], home: Path, name: str = "w1"
    ) -> None:
        self.stage = stage
        self.log = home / f"{name}-{stage}.log"
        options = ["--jobs", pattern, "--name", name, "--log-format", "json"]
        options += ["--idle-timeout", str(IDLE_TIMEOUT), *cluster]
        with self.log.open("ab") as file:
            self.process = start_command(
                "run", stage, *options, home=home, stdin=subprocess.DEVNULL, stderr=file
            )

    def lines(self, job: str) -> list[str]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line["message"] for line in lines if line["job"] == job and "message" in line]

    def messages(self) -> str:
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return " ".join(line.get("message", "") for line in lines if line["job"] is None)

    def pids(self, job: str) -> list[int]:
        found = (re.fullmatch(r"starting a worker, process (\d+)", x) for x in self.lines(job))
        return [int(match[1]) for match in found if match]

    def is_idle(self, job: str) -> bool:
        return all(not psutil.pid_exists(pid) for pid in self.pids(job))

    def lose(self) -> None:
        """Kill the supervisor with all its processes, like a lost machine."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        for pid in (self.process.pid, *(child.pid for child in children)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


class Operator:
    def __init__(self, servers: str, prefix: str, home: Path) -> None:
        self.cluster = Cluster(Connection((servers,)))
        self.prefix, self.home = prefix, home
        self.changes = load_change_log(write_changes(home / "changes.csv"), last_epoch=EPOCHS)
        self.servers = servers
        self.supervisors = self.supervise(home)
        self.producers: dict[str, Producer] = {}

    def supervise(self, home: Path, name: str = "w1") -> list[Supervisor]:
        home.mkdir(exist_ok=True)
        cluster = ("--bootstrap-servers", self.servers)
        return [Supervisor(each, f"{self.prefix}-*", cluster, home, name) for each in STAGES]

    def deploy(self, name: str) -> DeployedJob:
        job = parse_job(job_text(f"{self.prefix}-{name}"))
        return deploy(self.cluster, job, deployment=secrets.token_bytes(16), now=0)

    def produce(self, job: DeployedJob, first: int, last: int) -> None:
        producer = self.producers.get(job.name)
        if producer is None:
            transport = KafkaTransport(self.cluster, job.name)
            producer = Producer(job, self.home / job.name, name="gateway", transport=transport)
            producer.enroll(self.changes.users)
            self.producers[job.name] = producer
        for epoch, values in enumerate(self.changes.values_by_epoch(), 1):
            if first <= epoch <= last:
                producer.report_all(epoch, values)
                producer.close(epoch)

    def expect_published(self, job: DeployedJob, last: int) -> None:
        """Check that exactly these epochs are published, each with all devices."""
        reader, found = EstimateReader(self.cluster, job), dict[int, tuple[WindowStatus, int]]()

        def complete() -> bool:
            found.update(
                {each.epoch: (each.window_status, each.contributors) for each in reader.read()}
            )
            return len(found) >= last

        wait_until(complete, f"{job.name} is published")
        everybody = (WindowStatus.RELEASED, len(self.changes.users))
        assert found == dict.fromkeys(range(1, last + 1), everybody)

    def all_idle(self, job: DeployedJob) -> bool:
        return all(supervisor.is_idle(job.name) for supervisor in self.supervisors)

    def close(self) -> None:
        for producer in self.producers.values():
            producer.shut()
        for supervisor in self.supervisors:
            supervisor.process.kill()
            supervisor.process.wait()
            print(supervisor.log.name, supervisor.log.read_text(), sep="\n")
        self.cluster.close()


@pytest.fixture
def operator(
    bootstrap_servers: str, job_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Operator]:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path))
    operator = Operator(bootstrap_servers, job_name, tmp_path)
    yield operator
    operator.close()


def test_idle_workers_exit_and_restart_without_loss(
    operator: Operator, bootstrap_servers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    dpstream = Commands(capsys, ("--bootstrap-servers", bootstrap_servers))
    job, silent = operator.deploy("woken"), operator.deploy("silent")
    for first, last in ((1, 4), (5, 5), (6, EPOCHS)):
        operator.produce(job, first, last)
        operator.expect_published(job, last)
        wait_until(lambda: operator.all_idle(job), "all workers are idle")
        for name in (job.name, silent.name):
            status = json.loads(dpstream("status", name, "--json").output)
            assert status["issues"] == []
            heard = [worker for stage in status["stages"] for worker in stage["workers"]]
            assert [worker["idle"] for worker in heard] == [True] * len(STAGES)
    for supervisor in operator.supervisors:
        assert len(supervisor.pids(job.name)) >= 3, "the worker was woken every time"
        assert supervisor.pids(silent.name) == [], "no record ever arrived"
    everything = json.loads(dpstream("status", "--json").output)
    (listed,) = (each for each in everything if each["job"] == job.name)
    alone = json.loads(dpstream("status", job.name, "--json").output)
    ages = re.compile(r'"(age|time)": [0-9.]+')
    assert ages.sub("", json.dumps(listed)) == ages.sub("", json.dumps(alone))


def test_jobs_that_crash_or_hang_or_attack_do_not_affect_other_jobs(operator: Operator) -> None:
    jobs = {name: operator.deploy(name) for name in ("sound", "crashing", "hanging", "hostile")}
    shuffle = operator.supervisors[0]
    for job in jobs.values():
        # A window in its grace period keeps the shuffle worker running.
        operator.produce(job, 1, 1)
        operator.expect_published(job, 1)

    hostile = jobs["hostile"].topic(Role.REPORTS)
    for size in (0, 1, 100, 200_000) * 25:
        operator.cluster.append(hostile, secrets.token_bytes(size))
    operator.cluster.append(jobs["hanging"].topic(Role.REPORTS), b"wakes it")
    wait_until(lambda: not shuffle.is_idle(jobs["hanging"].name), "the worker is awake")
    stopped = shuffle.pids(jobs["hanging"].name)[-1]
    os.kill(stopped, signal.SIGSTOP)
    for _ in range(3):
        before = len(shuffle.pids(jobs["crashing"].name))
        operator.cluster.append(jobs["crashing"].topic(Role.REPORTS), b"wakes it")
        wait_until(lambda: not shuffle.is_idle(jobs["crashing"].name), "the worker is awake")
        os.kill(shuffle.pids(jobs["crashing"].name)[-1], signal.SIGKILL)
        wait_until(
            lambda before=before: len(shuffle.pids(jobs["crashing"].name)) > before,  # type: ignore[misc]
            "the worker is restarted",
        )
    for epoch in range(2, 5):
        operator.produce(jobs["sound"], epoch, epoch)
        operator.expect_published(jobs["sound"], epoch)
    said = " ".join(shuffle.lines(jobs["sound"].name))
    assert "exited with" not in said
    assert "signal" not in said

    wait_until(
        lambda: "worker was killed by signal 9" in " ".join(shuffle.lines(jobs["hanging"].name)),
        "the hung worker is killed",
        timeout=HUNG_SECONDS + TIMEOUT,
    )
    for job in jobs.values():
        operator.produce(job, 5 if job is jobs["sound"] else 2, 6)
        operator.expect_published(job, 6)


def test_second_supervisor_takes_over_idle_jobs(operator: Operator, tmp_path: Path) -> None:
    job = operator.deploy("shared")
    first, homes = operator.supervisors, (tmp_path, tmp_path / "other")
    second = operator.supervise(homes[1], "w2")
    operator.supervisors = [*first, *second]
    operator.produce(job, 1, 4)
    operator.expect_published(job, 4)
    wait_until(lambda: operator.all_idle(job), "all workers of both supervisors are idle")

    for supervisor in first:
        supervisor.lose()
    operator.produce(job, 5, 6)
    operator.expect_published(job, 6)
    operator.supervisors = second
    wait_until(lambda: operator.all_idle(job), "the remaining workers are idle")

    # The machine is back, with outdated idle notes.
    again = operator.supervise(homes[0])
    for supervisor in second:
        supervisor.lose()
    operator.supervisors = again
    operator.produce(job, 7, EPOCHS)
    operator.expect_published(job, EPOCHS)
    wait_until(lambda: operator.all_idle(job), "all workers are idle")


def test_idle_jobs_wake_after_a_broker_outage(
    tmp_path: Path, job_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path))
    port = free_port()
    broker = LocalKafka(tmp_path / "kafka", brief=True)
    broker.start(port)
    operator = Operator(f"127.0.0.1:{port}", job_name, tmp_path)
    try:
        job = operator.deploy("away")
        operator.produce(job, 1, 4)
        operator.expect_published(job, 4)
        wait_until(lambda: operator.all_idle(job), "all workers are idle")
        started = {each.stage: each.pids(job.name) for each in operator.supervisors}

        pid = broker.status().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        for supervisor in operator.supervisors:
            wait_until(
                lambda supervisor=supervisor: "Kafka does not answer" in supervisor.messages(),  # type: ignore[misc]
                f"{supervisor.stage} notices that the broker is unavailable",
            )
        broker.start(port)
        assert {each.stage: each.pids(job.name) for each in operator.supervisors} == started, (
            "no worker starts while the broker is unavailable"
        )
        operator.produce(job, 5, EPOCHS)
        operator.expect_published(job, EPOCHS)
        wait_until(lambda: operator.all_idle(job), "all workers are idle")
    finally:
        operator.close()
        broker.stop(grace=0.0)


def test_idle_workers_need_only_permissions_for_their_stage(
    secured_kafka: SecuredKafka,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    dpstream = Commands(capsys)
    name = "secured-rest"
    job_file = tmp_path / "job.yaml"
    job_file.write_text(job_text(name))
    secured = secured_job(secured_kafka, load_job(job_file))
    assert dpstream(*secured.as_role("operator", "deploy", job_file)).code == 0
    changes = load_change_log(write_changes(tmp_path / "changes.csv"), last_epoch=EPOCHS)
    with secured.cluster("producer") as cluster:
        job = find_deployed(cluster, name)
        supervisors = []
        for stage in STAGES:
            (tmp_path / stage).mkdir()
            own = ("--kafka-config", str(secured.users[stage]))
            supervisors.append(Supervisor(stage, name, own, tmp_path / stage))
        try:
            for first, last in ((1, 0), (1, 4), (5, EPOCHS)):
                transport = KafkaTransport(cluster, name)
                if last:
                    with Producer(
                        job, tmp_path / "gateway", name="gateway", transport=transport
                    ) as producer:
                        if first == 1:
                            producer.enroll(changes.users)
                        for epoch, values in enumerate(changes.values_by_epoch(), 1):
                            if first <= epoch <= last:
                                producer.report_all(epoch, values)
                                producer.close(epoch)
                    secured.written(Role.ESTIMATES, last)
                wait_until(lambda: all(each.is_idle(name) for each in supervisors), "all idle")

                def reported() -> list[bool]:
                    line = secured.as_role("operator", "status", name, "--json")
                    status = json.loads(dpstream(*line).output)
                    heard = [worker for stage in status["stages"] for worker in stage["workers"]]
                    return [worker["idle"] for worker in heard]

                wait_until(lambda: reported() == [True] * len(STAGES), "all workers report it")
        finally:
            for supervisor in supervisors:
                supervisor.lose()
                print(supervisor.log.name, supervisor.log.read_text(), sep="\n")
    assert secured.denied() == set()
