"""Test on a real broker that every report is counted exactly once under kills and pauses.

Two workers of every stage and two producers run. While epochs are reported, a random process or the
broker is repeatedly killed with SIGKILL, and workers are suspended for longer than their group
waits for them. Devices report over real HTTP and repeat requests at random, while collectors,
stages and the broker are killed or suspended: each device counts once.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.sealing_keys import make_key_pair
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.local_kafka import LocalKafka
from dpstream.pipeline.kafka.local_kafka.broker import free_port
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.stages.partial_log import PartialLog
from dpstream.pipeline.state import sealing_keys_folder
from dpstream.topics.manifests import WindowStatus, decode_manifest
from dpstream.topics.names import Role
from tests.support import cells
from tests.support.cell_processes import Processes, Published, expect_every_cell_once
from tests.support.http_devices import HttpDevices
from tests.support.new_jobs import new_job
from tests.support.warm import WarmPopen

CELLS = 65_000
# Every epoch has more than one batch and more than one chunk.
PRODUCERS = {"north": (0, 40_000), "south": (40_000, 25_000)}
STAGES = ("shuffle", "aggregate", "publish")


@dataclass(frozen=True)
class Scenario:
    """Numbers of faults during a run of `epochs`; pauses are long enough for a takeover."""

    epochs: int
    workers: int
    brokers: int
    pauses: int


SHORT = Scenario(epochs=20, workers=3, brokers=1, pauses=1)
LONG = Scenario(epochs=96, workers=19, brokers=3, pauses=3)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[LocalKafka]:
    broker = LocalKafka(tmp_path / "kafka", brief=True)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


def kill_broker(broker: LocalKafka) -> None:
    pid = broker.status().pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    broker.start()


@pytest.mark.parametrize(
    "scenario", [SHORT, pytest.param(LONG, marks=pytest.mark.verify)], ids=["short", "long"]
)
def test_every_report_counts_once_under_kills_and_pauses(
    scenario: Scenario, own_broker: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROTOCOLS, cells.NAME, cells.CELLS)
    servers = own_broker.status().bootstrap_servers
    assert servers is not None
    job = new_job(
        "cells",
        cells.NAME,
        {"cells": CELLS},
        epochs={"count": scenario.epochs},
        shuffle={"minimum": 1, "producers": 2, "grace": "1h"},
    )
    with Cluster(Connection((servers,))) as cluster:
        deployed = deploy(cluster, job, deployment=secrets.token_bytes(16), now=0)
        published = Published(cluster, deployed)
        processes = Processes(servers, deployed, tmp_path, dict.fromkeys(STAGES, 2), PRODUCERS)
        killed = survive_accidents(scenario, own_broker, processes, published)
        expect_every_cell_once(cluster, deployed, published)
    assert killed == scenario.workers + scenario.brokers


def survive_accidents(
    scenario: Scenario, broker: LocalKafka, processes: Processes, published: Published
) -> int:
    """Run the job to its end through all faults, and return the number of kills."""
    chance = random.Random(20261121)
    accidents = (
        ["broker"] * scenario.brokers + ["pause"] * scenario.pauses + ["kill"] * scenario.workers
    )
    chance.shuffle(accidents)
    killed = 0
    try:
        published.wait_for(1, processes)
        for accident in accidents:
            seen = len(published.records)
            if accident == "broker":
                kill_broker(broker)
            elif accident == "pause":
                # Eight more epochs require that other workers take over its partitions.
                name = chance.choice([n for n in processes.names if n not in PRODUCERS])
                processes.signal(name, signal.SIGSTOP)
                published.wait_for(min(seen + 8, scenario.epochs), processes)
                processes.signal(name, signal.SIGCONT)
            else:
                name = chance.choice(sorted(set(processes.names) - processes.finished))
                processes.signal(name, signal.SIGKILL)
            killed += accident != "pause"
            published.wait_for(min(seen + 2, scenario.epochs), processes)
        published.wait_for(scenario.epochs, processes)
    finally:
        processes.stop()
    return killed


ROOT = Path(__file__).parents[2]
TIMEOUT = 400.0
"""Seconds, far longer than any expected wait."""


@dataclass(frozen=True)
class DeviceScenario:
    """Load and faults of a run in which `devices` devices report for `epochs` epochs."""

    devices: int
    epochs: int
    length: int
    late: int
    kills: int
    sealed: bool = False
    tokens: bool = False
    start: int = 12
    """Seconds until the first epoch, during which all processes are started."""

    def on_a_machine(self, broker_start: float) -> DeviceScenario:
        """Return the scenario for a machine on which a broker starts in `broker_start` seconds.

        Devices discard a report once its epoch is closed, so killed processes must restart earlier.
        """
        return replace(
            self,
            start=max(self.start, math.ceil(2 * broker_start)),
            late=max(self.late, math.ceil(4 * broker_start)),
        )


SHORT_DEVICES = DeviceScenario(
    devices=120, epochs=2, length=5, late=20, kills=5, sealed=True, tokens=True
)
# Killed processes need seconds to restart: with shorter intervals, none would be up.
LONG_DEVICES = DeviceScenario(devices=2_000, epochs=5, length=72, late=240, kills=60)


class Commands:
    """Commands that are restarted whenever they exit, as by a supervisor."""

    def __init__(self, servers: str, folder: Path) -> None:
        self._folder = folder
        self._environment = {**os.environ, "DPSTREAM_BOOTSTRAP_SERVERS": servers}
        # Compiling all modules at each start would keep the machine busy.
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._commands: dict[str, tuple[str, ...]] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> None:
        self._commands[name] = arguments
        self._launch(name)

    @property
    def names(self) -> list[str]:
        return sorted(self._commands)

    def signal(self, name: str, number: signal.Signals) -> None:
        self._running[name].send_signal(number)

    def restart_exited(self) -> None:
        for name, process in self._running.items():
            if process.poll() is not None:
                self._launch(name)

    def stop(self) -> None:
        for process in self._running.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{self.log(name)[-2000:]}" for name in self.names)

    def _launch(self, name: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = WarmPopen(
                [sys.executable, "-m", "dpstream.pipeline.cli", *self._commands[name]],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


@pytest.fixture
def devices_broker(tmp_path: Path) -> Iterator[tuple[LocalKafka, float]]:
    """Broker of this test, which kills it, and the seconds that it took to start."""
    broker = LocalKafka(tmp_path / "kafka", brief=True)
    try:
        begun = time.monotonic()
        broker.start()
        yield broker, time.monotonic() - begun
    finally:
        broker.stop()


def deployed(
    scenario: DeviceScenario, cluster: Cluster, tmp_path: Path
) -> tuple[DeployedJob, object]:
    """Deployed job that starts soon, and the key that signs its tokens."""
    signer = Ed25519PrivateKey.generate()
    devices: dict[str, object] = {"late": f"PT{scenario.late}S"}
    if scenario.sealed:
        make_key_pair(sealing_keys_folder() / "stage.key", tmp_path / "stage.pub")
        devices["seal"] = "stage.pub"
    if scenario.tokens:
        key = json.loads(jwt.algorithms.OKPAlgorithm.to_jwk(signer.public_key()))
        keys = {"keys": [{**key, "kid": "app"}]}
        (tmp_path / "app.jwks").write_text(json.dumps(keys))
        devices["tokens"] = {"keys": "app.jwks"}
    start = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=scenario.start)
    job = new_job(
        "logins",
        "future_rand",
        {"epsilon": 4, "max_changes": 2},
        tmp_path,
        epochs={"count": 64, "start": start.isoformat(), "length": f"PT{scenario.length}S"},
        shuffle={"minimum": 2, "grace": f"PT{scenario.late + 10}S"},
        topics={"partitions": 2},
        devices=devices,
    )
    now = int(time.time() * 1000)
    return deploy(cluster, job, deployment=secrets.token_bytes(16), now=now), signer


@pytest.mark.parametrize(
    "scenario",
    [
        SHORT_DEVICES,
        pytest.param(LONG_DEVICES, marks=pytest.mark.verify),
        pytest.param(replace(LONG_DEVICES, sealed=True, tokens=True), marks=pytest.mark.verify),
    ],
    ids=["short", "long", "long, sealed and with tokens"],
)
def test_each_device_counts_once_per_epoch(
    scenario: DeviceScenario,
    devices_broker: tuple[LocalKafka, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    broker, broker_start = devices_broker
    scenario = scenario.on_a_machine(broker_start)
    servers = broker.status().bootstrap_servers
    assert servers is not None
    ports = random.sample(sorted({free_port() for _ in range(12)}), 3)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    commands = Commands(servers, tmp_path)
    with Cluster(Connection((servers,))) as cluster:
        job, signer = deployed(scenario, cluster, tmp_path)
        token: Callable[[int], str] | None = None
        if scenario.tokens:
            expires = datetime.now(UTC) + timedelta(hours=1)
            tokens = [
                jwt.encode(
                    {"sub": f"user-{number}", "aud": "logins", "exp": expires},
                    signer,  # type: ignore[arg-type]
                    "EdDSA",
                    {"kid": "app"},
                )
                for number in range(scenario.devices)
            ]
            token = tokens.__getitem__
        devices = HttpDevices(job, scenario.devices, token=token)
        try:
            for stage in STAGES:
                commands.start(stage, "run", stage, job.name)
            for number, port in enumerate(ports):
                name = f"collector-{number}"
                commands.start(name, "collect", "--job", job.name, "--bind", f"127.0.0.1:{port}")
            epochs = range(1, scenario.epochs + 1)
            failed: list[BaseException] = []
            sender = threading.Thread(target=_send, args=(devices, epochs, urls, failed))
            sender.start()
            strike(scenario, broker, commands, sender)
            sender.join()
            assert not failed, f"{failed}: {devices.statuses}\n{commands.logs()}"
            expected = {(epoch, n) for epoch in epochs for n in range(scenario.devices)}
            assert devices.acknowledged == expected
            integers = published(cluster, job, scenario.epochs, commands)
        finally:
            commands.stop()
        for value in (record.value for record in cluster.read(job.topic(Role.MANIFESTS))):
            manifest = decode_manifest(value)
            if manifest.epoch in epochs:
                assert manifest.window_status is WindowStatus.RELEASED
                assert manifest.contributors == manifest.population == scenario.devices
    assert {epoch: integers[epoch] for epoch in epochs} == {
        epoch: devices.integers(epoch) for epoch in epochs
    }
    # Some reports have arrived more than once.
    assert devices.statuses[202] > len(devices.acknowledged)
    for name in commands.names:
        assert "Traceback" not in commands.log(name)


def _send(
    devices: HttpDevices, epochs: range, urls: list[str], failed: list[BaseException]
) -> None:
    try:
        asyncio.run(devices.send(epochs, urls))
    except BaseException as error:
        failed.append(error)


def strike(
    scenario: DeviceScenario, broker: LocalKafka, commands: Commands, sender: threading.Thread
) -> None:
    """Kill or suspend processes repeatedly, while devices report and afterwards."""
    chance = random.Random(20261123)
    every = scenario.epochs * scenario.length / scenario.kills
    done = 0
    while done < scenario.kills:
        begun = time.monotonic()
        name = chance.choice(commands.names)
        if done % 10 == 4:
            pid = broker.status().pid
            assert pid is not None
            if done % 20 == 14:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(every / 2)
                os.kill(pid, signal.SIGCONT)
            else:
                os.kill(pid, signal.SIGKILL)
                broker.start()
        elif chance.random() < 0.3:
            commands.signal(name, signal.SIGSTOP)
            time.sleep(every / 2)
            commands.signal(name, signal.SIGCONT)
        else:
            commands.signal(name, signal.SIGKILL)
        done += 1
        time.sleep(max(0.0, every - (time.monotonic() - begun)))
        commands.restart_exited()
    while sender.is_alive():
        commands.restart_exited()
        sender.join(0.5)


def published(
    cluster: Cluster, job: DeployedJob, epochs: int, commands: Commands
) -> dict[int, bytes]:
    """Return the first complete partial of every epoch, once all epochs have one."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        commands.restart_exited()
        partials: dict[int, bytes] = {}
        reader = PartialLog(job, partials.__setitem__)
        for record in cluster.read(job.topic(Role.PARTIALS)):
            reader.apply(LogRecord(record.offset, record.value))
        estimates = cluster.end_offsets(job.topic(Role.ESTIMATES))[0]
        if partials.keys() >= set(range(1, epochs + 1)) and estimates >= epochs:
            return partials
        time.sleep(0.5)
    raise AssertionError(f"epochs are missing:\n{commands.logs()}")
