"""Test a fleet of real hosts that are restarted under load and lose hosts, links and addresses.

Three brokers, four hosts for workers, two for collectors and three for gateways are separate
machines in a network, running from an installed wheel. In one job, every report has its own cell,
which reveals any loss or repetition. In the other job, devices report seeded values over HTTP.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.stages.partial_log import PartialLog
from dpstream.topics.manifests import Manifest, WindowStatus, decode_manifest
from dpstream.topics.names import Role
from tests.support import cells, namespaces, wheels
from tests.support.hosts import Hosts
from tests.support.http_devices import HttpDevices
from tests.support.namespaces import Namespaces
from tests.support.publications import Publications
from tests.support.three_brokers import NODES, BrokersByName, broker_name
from tests.support.wheels import Installation

GATEWAY = Path(__file__).with_name("gateway_program.py")
TIMEOUT = 300.0
"""Timeout in seconds, far longer than any expected wait."""
READY = 120.0
"""Timeout in seconds for services to exit or to become ready."""

CELLS = 12_000
GATEWAYS = {"gateway-1": (0, 6_000), "gateway-2": (6_000, 4_000), "gateway-3": (10_000, 2_000)}
PACE = 1.0
"""Seconds between two epochs of a gateway."""
WORKERS = {
    "worker-1": ("shuffle", "publish"),
    "worker-2": ("aggregate",),
    "worker-3": ("shuffle",),
    "worker-4": ("aggregate", "publish"),
}
COLLECTORS = ("collector-1", "collector-2")
DESK = "desk"
PHONES, LENGTH, LATE = 100, 40, 120
"""Number of reporting devices, with their epoch length and grace period in seconds."""
BEGINS = 60
"""Seconds until the devices' first epoch, during which all services are started."""
PORT = 8300
SETTLED, HELD = 3, 8
"""Number of epochs of a fault, and of the recovery: twice the number of partitions."""


@dataclass
class Event:
    """Fault in the fleet, with start and end in seconds since 1970."""

    what: str
    began: float
    ended: float = 0.0


@dataclass
class Fleet:
    network: Namespaces
    hosts: Hosts
    brokers: BrokersByName
    cluster: Cluster
    folder: Path
    watches: dict[str, Publications] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    failed: list[BaseException] = field(default_factory=list)

    @property
    def cells(self) -> Publications:
        return self.watches["cells"]

    @property
    def stop(self) -> Path:
        return self.folder / "stop"

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + TIMEOUT
        while True:
            self.hosts.keep_running()
            for watch in self.watches.values():
                watch.read()
            if condition():
                return
            assert not self.failed, f"devices: {self.failed[0]!r}\n{self.hosts.logs()}"
            assert time.monotonic() < deadline, (
                f"after {TIMEOUT:.0f} s still waiting: {what}; published up to epoch "
                f"{self.published}\n{self.hosts.logs()}"
            )
            time.sleep(0.1)

    @property
    def published(self) -> int:
        return max(self.cells.published, default=0)

    def over(self, gateway: str) -> dict[int, float]:
        """Return the epochs that a gateway logged as closed, with the time when closing started."""
        lines = (line.split() for line in self.hosts.log(gateway).splitlines())
        return {int(line[1]): float(line[-1]) for line in lines if line[:1] == ["closed"]}

    def closed(self, gateway: str) -> int:
        return max(self.over(gateway), default=0)

    def all_closed(self, gateways: Iterable[str], epoch: int) -> bool:
        return min(map(self.closed, gateways)) >= epoch

    def run_for(self, epochs: int) -> None:
        """Wait until `epochs` epochs that gateways close from now on are published."""
        wanted = max(map(self.closed, GATEWAYS)) + epochs
        self.wait_until(lambda: self.published >= wanted, f"epoch {wanted} is published")

    @contextmanager
    def event(self, what: str) -> Iterator[None]:
        """Record an event that lasts from the start of this context until recovery."""
        print(f"{self.published:6} published; {what}", flush=True)
        happening = Event(what, time.time())
        self.events.append(happening)
        yield
        self.run_for(SETTLED)
        happening.ended = time.time()

    def while_running(self, work: Callable[[], object], what: str) -> None:
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(work)
            self.wait_until(done.done, what)
            done.result()

    def services(self, installation: Installation) -> dict[str, dict[str, Sequence[str]]]:
        servers = ("--bootstrap-servers", self.brokers.servers)
        dpstream = installation.dpstream
        key = self.hosts.disk(DESK) / "home" / "collector-keys" / "phones"
        found: dict[str, dict[str, Sequence[str]]] = {}
        for host, stages in WORKERS.items():
            found[host] = {
                f"{host}-{stage}": (dpstream, "run", stage, "--name", host, *servers)
                for stage in stages
            }
        for host in COLLECTORS:
            collect = (dpstream, "collect", "--job", "phones", "--bind", f"0.0.0.0:{PORT}")
            found[host] = {host: (*collect, "--collector-key", str(key), *servers)}
        for host, numbers in GATEWAYS.items():
            state = str(self.hosts.disk(host) / "state")
            arguments = ["cells", host, self.brokers.servers, state, *map(str, numbers), str(PACE)]
            program = (installation.python, "-P", str(GATEWAY), *arguments, str(self.stop))
            found[host] = {host: program}
        return found

    def is_ready(self, host: str, times: int) -> bool:
        """Return whether the services of a host have logged their readiness often enough."""
        return self.ready(host) >= times

    def ready(self, host: str) -> int:
        if host in GATEWAYS:
            return self.closed(host)
        if host in COLLECTORS:
            return self.hosts.log(host).count("receiving reports")
        return min(
            sum(
                self.hosts.log(f"{host}-{stage}").count(f" {job} {stage} {host}: partitions:")
                for job in ("cells", "phones")
            )
            for stage in WORKERS[host]
        )


def deploy(fleet: Fleet, installation: Installation, name: str, **sections: object) -> DeployedJob:
    path = fleet.hosts.disk(DESK) / f"{name}.json"
    path.write_text(json.dumps({"name": name, **sections}))
    command = (
        installation.dpstream,
        "deploy",
        str(path),
        "--bootstrap-servers",
        fleet.brokers.servers,
    )
    fleet.hosts.command(DESK, *command)
    return find_deployed(fleet.cluster, name)


def deploy_both(fleet: Fleet, installation: Installation) -> tuple[DeployedJob, DeployedJob]:
    by_gateways = deploy(
        fleet,
        installation,
        "cells",
        protocol=cells.NAME,
        parameters={"cells": CELLS},
        epochs={"count": 64, "renew": True},
        shuffle={"minimum": 1, "producers": len(GATEWAYS), "grace": "1h"},
        topics={"partitions": 4, "replication": 3},
    )
    begins = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=BEGINS)
    by_phones = deploy(
        fleet,
        installation,
        "phones",
        protocol="future_rand",
        parameters={"epsilon": 4, "max_changes": 2},
        epochs={"count": 256, "start": begins.isoformat(), "length": f"PT{LENGTH}S"},
        shuffle={"minimum": 2, "grace": f"PT{LATE + 20}S"},
        topics={"partitions": 2, "replication": 3},
        devices={"late": f"PT{LATE}S"},
    )
    return by_gateways, by_phones


def restart(fleet: Fleet, installation: Installation) -> None:
    """Restart hosts one at a time: graceful stop, start, recovery."""
    services = fleet.services(installation)
    for host in (*WORKERS, *COLLECTORS, *GATEWAYS):
        with fleet.event(f"{host} is restarted"):
            ready = fleet.ready(host)
            fleet.while_running(partial(fleet.hosts.replace, host, services[host], READY), host)
            # A host has one worker per job and stage.
            wanted = ready + (2 if host in WORKERS else 1)
            fleet.wait_until(partial(fleet.is_ready, host, wanted), f"{host} is ready")


def lose_hosts(fleet: Fleet, lost: Iterable[str]) -> None:
    """Lose hosts one at a time and bring them back, while others take over."""
    hosts, brokers = fleet.hosts, fleet.brokers
    for host in lost:
        with fleet.event(f"{host} is lost, and back after {HELD} epochs"):
            hosts.lose(host)
            fleet.run_for(HELD)
            hosts.bring_back(host)
            if host in brokers.names:
                fleet.while_running(partial(brokers.start, host), f"{host} answers")
                wait_for_replicas(fleet)


def cut_links(fleet: Fleet, cuts: Iterable[tuple[str, str]]) -> None:
    """Cut network links in one direction for some epochs."""
    for source, target in cuts:
        with fleet.event(f"nothing arrives from {source} at {target} for {HELD} epochs"):
            fleet.network.cut(source, target)
            ends = {source, target} & GATEWAYS.keys()
            if ends:
                # Windows wait for the gateway that is cut off.
                others = GATEWAYS.keys() - ends
                wanted = max(map(fleet.closed, others)) + HELD
                fleet.wait_until(
                    partial(fleet.all_closed, others, wanted), f"all others close epoch {wanted}"
                )
            else:
                fleet.run_for(HELD)
            fleet.network.heal(source, target)
            if {source, target} & set(fleet.brokers.names):
                wait_for_replicas(fleet)


def change_addresses(fleet: Fleet, moved: Iterable[str]) -> None:
    """Change the addresses of running hosts without notice."""
    for host in moved:
        with fleet.event(f"{host} has another address"):
            fleet.network.change_address(host)
            fleet.run_for(HELD)
            if host in fleet.brokers.names:
                wait_for_replicas(fleet)


def drop_packets(fleet: Fleet, host: str, share: float) -> None:
    with fleet.event(f"a packet in {round(1 / share)} to {host} is dropped for {HELD} epochs"):
        fleet.network.drop_at_random(host, share)
        fleet.run_for(HELD)
        fleet.network.drop_at_random(host, 0)


def wait_for_replicas(fleet: Fleet) -> None:
    """Wait until all replicas are in sync, so that another broker can be lost."""
    fleet.wait_until(fleet.brokers.are_in_sync, "all replicas are in sync")


@pytest.mark.verify
@pytest.mark.timeout(2 * 3_600)
def test_reports_count_once_when_hosts_fail_or_restart_or_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = namespaces.rejection()
    if reason is not None:
        pytest.skip(f"no hosts: {reason}")
    monkeypatch.setitem(PROTOCOLS, cells.NAME, cells.CELLS)
    installation = installed(tmp_path)
    names = [broker_name(node) for node in NODES]
    groups = {"brokers": list(names), "workers": list(WORKERS)}
    names += [*WORKERS, *COLLECTORS, *GATEWAYS, DESK]
    groups["all"] = names
    with ExitStack() as stack:
        network = stack.enter_context(Namespaces(names, groups))
        (tmp_path / "hosts").mkdir()
        hosts = stack.enter_context(Hosts(network, tmp_path / "hosts", {}))
        brokers = stack.enter_context(BrokersByName(tmp_path / "brokers", network))
        cluster = stack.enter_context(Cluster(brokers.connection, timeout=5.0))
        fleet = Fleet(network, hosts, brokers, cluster, tmp_path)
        by_gateways, by_phones = deploy_both(fleet, installation)
        fleet.watches = {
            "cells": Publications(cluster, by_gateways),
            "phones": Publications(cluster, by_phones),
        }
        for host, services in fleet.services(installation).items():
            for name, command in services.items():
                hosts.run(host, name, command)
        with reporting(fleet, by_phones) as (devices, last_phones):
            fleet.wait_until(lambda: fleet.published >= HELD, "the first epochs are published")
            with fleet.event(f"nothing, for {2 * HELD} epochs"):
                fleet.run_for(2 * HELD)
            restart(fleet, installation)
            lose_hosts(fleet, ("worker-1", "broker-2", "worker-4", "collector-1"))
            cut_links(
                fleet,
                (
                    ("worker-3", "brokers"),
                    ("brokers", "worker-2"),
                    ("broker-1", "all"),
                    ("all", "broker-3"),
                    ("gateway-1", "brokers"),
                    ("brokers", "gateway-2"),
                    ("brokers", "collector-2"),
                ),
            )
            change_addresses(fleet, ("worker-3", "broker-2", "gateway-3", "broker-1"))
            drop_packets(fleet, "worker-2", 0.1)
            with fleet.event(f"nothing, for {2 * HELD} epochs"):
                fleet.run_for(2 * HELD)
        last = max(map(fleet.closed, GATEWAYS)) + SETTLED
        fleet.stop.with_suffix(".new").write_text(str(last))
        fleet.stop.with_suffix(".new").rename(fleet.stop)
        fleet.wait_until(
            lambda: fleet.hosts.finished(*GATEWAYS) and fleet.published >= last,
            f"epoch {last}, the last, is published",
        )
        fleet.wait_until(
            lambda: max(fleet.watches["phones"].published, default=0) >= last_phones[0],
            f"epoch {last_phones[0]} of phones is published",
        )
        assert not hosts.tracebacks(), hosts.logs()
        print_results(fleet, by_phones)
        expect_every_cell_once(fleet, by_gateways, last)
        expect_every_device_once(fleet, by_phones, devices, last_phones[0])


def installed(folder: Path) -> Installation:
    wheels.copy_sources(folder / "sources")
    wheel = wheels.build_wheel(folder / "sources", folder / "wheel")
    return wheels.install(wheel, folder / "venv")


@contextmanager
def reporting(fleet: Fleet, job: DeployedJob) -> Iterator[tuple[HttpDevices, list[int]]]:
    """Let devices report during this context, and then until all reports are acknowledged."""
    devices, begun, over = HttpDevices(job, PHONES), [0], threading.Event()
    urls = [f"http://{fleet.network.observed_at(host)}:{PORT}" for host in COLLECTORS]

    def epochs() -> Iterator[int]:
        for epoch in itertools.takewhile(lambda epoch: not over.is_set(), itertools.count(1)):
            begun[0] = epoch
            yield epoch

    def send() -> None:
        try:
            asyncio.run(devices.send(epochs(), urls))
        except BaseException as error:
            fleet.failed.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield devices, begun
    finally:
        over.set()
        if not fleet.failed:
            fleet.wait_until(lambda: not sender.is_alive(), "all devices have reported")
        sender.join()
    assert devices.acknowledged == set(itertools.product(range(1, begun[0] + 1), range(PHONES)))


def print_results(fleet: Fleet, by_phones: DeployedJob) -> None:
    """Print the delay of estimates since the last gateway started to close the epoch."""
    overs = [fleet.over(gateway) for gateway in GATEWAYS]
    held = {
        epoch: max(0.0, moment - max(over[epoch] for over in overs))
        for epoch, moment in fleet.cells.published_at.items()
    }
    print(
        f"{len(held)} epochs of gateways, from when the last of them begins to close one to its "
        f"publication: median {np.median(list(held.values())):.2f} s, "
        f"longest {max(held.values()):.2f} s"
    )
    at = fleet.cells.published_at
    for event in fleet.events:
        during = [held[epoch] for epoch in held if event.began <= at[epoch] <= event.ended]
        print(
            f"{max(during, default=0.0):8.2f} s at most of {len(during):3} epochs in "
            f"{event.ended - event.began:6.1f} s: {event.what}"
        )
    assert by_phones.epochs.start is not None
    begins = by_phones.epochs.start.timestamp()
    phones = {
        epoch: moment - (begins + epoch * LENGTH + LATE)
        for epoch, moment in fleet.watches["phones"].published_at.items()
        if fleet.watches["phones"].published[epoch].contributors
    }
    print(
        f"{len(phones)} epochs of {PHONES} devices, from when none may come any more to "
        f"publication: longest {max(phones.values()):.2f} s"
    )


def partials(fleet: Fleet, job: DeployedJob) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    log = PartialLog(job, found.__setitem__)
    for record in fleet.cluster.read(job.topic(Role.PARTIALS)):
        log.apply(record)
    return found


def expect_every_cell_once(fleet: Fleet, job: DeployedJob, last: int) -> None:
    epochs = list(range(1, last + 1))
    found = partials(fleet, job)
    assert sorted(found) == sorted(fleet.cells.published) == epochs
    law = job.law
    assert isinstance(law, cells.CellsLaw)
    lost = doubled = 0
    for epoch in epochs:
        counts = cells.CellsAggregator.from_bytes(law, found[epoch]).counts
        of_epoch = counts[job.epochs.local(epoch)]
        assert counts.sum() == of_epoch.sum(), f"epoch {epoch} is counted in another epoch"
        lost += int((of_epoch == 0).sum())
        doubled += int((of_epoch[of_epoch > 1] - 1).sum())
        record = fleet.cells.published[epoch]
        assert record.headline is not None
        assert (record.headline.ci95_low, record.headline.ci95_high) == (1.0, 1.0), epoch
        assert (record.headline.value, record.contributors) == (CELLS, CELLS), epoch
    print(f"{last * CELLS:,} reports of gateways in {last} epochs: {lost} lost, {doubled} doubled")
    assert lost == doubled == 0
    assert not list(fleet.cluster.read(job.topic(Role.DEAD_LETTERS)))


def expect_every_device_once(
    fleet: Fleet, job: DeployedJob, devices: HttpDevices, last: int
) -> None:
    """Check that every device report is counted once, by comparing partials with reports."""
    epochs = range(1, last + 1)
    found = partials(fleet, job)
    decided: dict[int, Manifest] = {}
    for record in fleet.cluster.read(job.topic(Role.MANIFESTS)):
        manifest = decode_manifest(record.value)
        decided.setdefault(manifest.epoch, manifest)
    for epoch in epochs:
        assert decided[epoch].window_status is WindowStatus.RELEASED, epoch
        assert decided[epoch].contributors == decided[epoch].population == PHONES, epoch
    wrong = [epoch for epoch in epochs if found[epoch] != devices.integers(epoch)]
    print(
        f"{last * PHONES:,} reports of devices in {last} epochs, "
        f"{devices.statuses[202] - last * PHONES:,} more copies acknowledged: "
        f"{len(wrong)} epochs counted wrong"
    )
    assert not wrong
