"""Run the demonstration: broker, stages, collectors, fleet, and both pages."""

from __future__ import annotations

import json
import secrets
import time
import webbrowser
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, Queue
from typing import Final

from dpstream.pipeline.demo.devices.fleet import (
    COLLECTORS,
    DEVICES,
    EPOCH_SECONDS,
    EPOCHS,
    NAME,
    have_it_on,
    job_text,
)
from dpstream.pipeline.jobs.deployed_job import IDENTIFIER_BYTES, DeployedJob
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection, find_cluster
from dpstream.pipeline.kafka.local_kafka import LocalKafkaError
from dpstream.pipeline.kafka.local_kafka.broker import free_port
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.operations.processes import dpstream_command, python_module
from dpstream.pipeline.operations.restarted_processes import RestartedProcesses
from dpstream.pipeline.operations.signals import Signals
from dpstream.pipeline.operations.up.managed_broker import ManagedBroker, Message
from dpstream.pipeline.operations.up.run_up import address_of
from dpstream.pipeline.results.follow import EstimateReader
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.state import FolderLock, private_folder, state_home

STAGES: Final = ("shuffle", "aggregate", "publish")
FLEETS: Final = 2
_WAIT_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """Settings of the demonstration; `devices` does not include the visitor's device.

    The demonstration ends after `epochs` published epochs or, if None, when it is stopped. Without
    `servers` and `kafka_config`, it uses the local broker.
    """

    devices: int = DEVICES
    epochs: int | None = None
    servers: str | None = None
    kafka_config: Path | None = None
    browser: bool = True


@dataclass(slots=True)
class _GroundTruth:
    parts: int = 0
    true: int = 0
    taken: int = 0
    others: dict[str, int] = field(default_factory=dict)


def run_demo(settings: DemoSettings, print_message: Callable[[str], None]) -> None:
    """Run the demonstration until a signal arrives; end all its processes before returning."""
    purpose = "dpstream demo devices"
    with FolderLock(state_home() / "up", purpose), Signals() as signals, ExitStack() as stack:
        _Demo(settings, print_message, signals).run(stack)


class _Demo:
    def __init__(
        self, settings: DemoSettings, print_message: Callable[[str], None], signals: Signals
    ) -> None:
        self._settings = settings
        self._print_message = print_message
        self._signals = signals
        self._folder = private_folder(state_home() / "demo-devices")
        self._ground_truth_file = self._folder / "ground-truth.jsonl"
        self._lines: Queue[str] = Queue()
        self._ground_truths: dict[int, _GroundTruth] = {}
        self._broker: ManagedBroker | None = None

    def run(self, stack: ExitStack) -> None:
        connection = self._connect(stack)
        if connection is None:
            return
        with Cluster(connection) as cluster:
            job = deploy(
                cluster,
                parse_job(job_text(datetime.now(UTC))),
                deployment=secrets.token_bytes(IDENTIFIER_BYTES),
                now=int(time.time() * 1000),
                replace=True,
            )
            processes = stack.enter_context(
                RestartedProcesses(self._print_message, hurry=self._signals.hurry)
            )
            address = self._start(processes, connection, job)
            self._print_message(f"Become a device: {address}")
            if self._settings.browser:
                webbrowser.open(address)
            reader, published, over = EstimateReader(cluster, job), 0, False
            calendar = job.epochs.calendar
            assert calendar is not None
            while not self._signals.received:
                if self._broker is not None:
                    self._broker.check()
                processes.check()
                self._hear()
                for record in reader.read():
                    published += 1
                    self._tell(calendar.shown(record.epoch), record)
                if self._settings.epochs is not None and published >= self._settings.epochs:
                    return
                if published >= EPOCHS and not over:
                    self._print_message("The last epoch is published. Stop with Ctrl-C")
                    over = True
                time.sleep(_WAIT_SECONDS)

    def _connect(self, stack: ExitStack) -> Connection | None:
        settings = self._settings
        if settings.servers or settings.kafka_config:
            return find_cluster(settings.servers, settings.kafka_config)
        events: Queue[Message] = Queue()
        self._broker = stack.enter_context(ManagedBroker(events.put, hurry=self._signals.hurry))
        while not self._signals.received:
            self._broker.check()
            try:
                message = events.get(timeout=_WAIT_SECONDS)
            except Empty:
                continue
            match message["kind"]:
                case "failed":
                    raise LocalKafkaError(message["text"])
                case "ready":
                    return Connection((message["text"],))
                case "progress":
                    self._print_message(message["text"])
        return None

    def _start(
        self, processes: RestartedProcesses, connection: Connection, job: DeployedJob
    ) -> str:
        page, operators, *collectors = _free_ports(2 + COLLECTORS)
        origin = f"http://127.0.0.1:{page}"
        urls = [f"http://127.0.0.1:{port}" for port in collectors]
        where = connection.arguments()
        for stage in STAGES:
            self._run(processes, stage, ["run", stage, NAME, *where])
        for number, port in enumerate(collectors, 1):
            options = ["--job", NAME, "--bind", f"127.0.0.1:{port}", "--allow-origin", origin]
            self._run(processes, f"collector-{number}", ["collect", *options, *where])
        self._run(processes, "serve", ["serve", NAME, "--port", str(operators), *where])
        assert job.signed_description is not None
        visited = {
            "job": NAME,
            "collectors": urls,
            "signer": job.signed_description.signer.hex(),
            "operators": address_of(operators, [NAME]),
            "devices": self._settings.devices,
            "ground_truth": str(self._ground_truth_file),
        }
        self._ground_truth_file.write_text("")
        processes.start(
            "the visitors' page",
            [
                *python_module(
                    "dpstream.pipeline.demo.devices.visitor_page", str(page), json.dumps(visited)
                ),
                *where,
            ],
            self._folder / "page.log",
        )
        share, rest = divmod(self._settings.devices, FLEETS)
        for number in range(FLEETS):
            count = share + (number < rest)
            processes.start(
                f"fleet process {number + 1}",
                python_module(
                    "dpstream.pipeline.demo.devices.fleet", str(number), str(count), *urls
                ),
                self._folder / f"fleet-{number + 1}.log",
                on_line=self._lines.put,
            )
        self._print_message(
            f"{self._settings.devices:,} devices report every {EPOCH_SECONDS} s, to {COLLECTORS} "
            f"collectors: {', '.join(urls)}"
        )
        return f"{origin}/"

    def _run(self, processes: RestartedProcesses, name: str, arguments: list[str]) -> None:
        processes.start(name, dpstream_command(*arguments), self._folder / f"{name}.log")

    def _hear(self) -> None:
        while True:
            try:
                text = json.loads(self._lines.get_nowait())
            except Empty:
                return
            except ValueError:
                continue
            ground_truth = self._ground_truths.setdefault(text["epoch"], _GroundTruth())
            ground_truth.parts += 1
            ground_truth.true += text["true"]
            ground_truth.taken += text.get("taken", 0)
            if ground_truth.parts == FLEETS:
                line = {
                    "epoch": text["epoch"],
                    "true": ground_truth.true,
                    "taken": ground_truth.taken,
                }
                with self._ground_truth_file.open("a") as file:
                    file.write(json.dumps(line) + "\n")

    def _tell(self, begins: str, record: EstimateRecord) -> None:
        ground_truth = self._ground_truths.get(record.epoch)
        text = have_it_on(record) or str(record.window_status)
        true = (
            ""
            if ground_truth is None
            else f"; ground truth {ground_truth.true:,}, unknown to all servers"
        )
        self._print_message(f"{begins}: {record.contributors:,} devices reported; {text}{true}")


def _free_ports(count: int) -> list[int]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return sorted(ports)
