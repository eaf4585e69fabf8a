"""What a fleet needs follows from a law of costs, and its traffic from what producers send."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.devices.producer import Producer
from pipeline.jobs.deployed_job import deploy_job
from pipeline.jobs.job_files import Job, make_job
from pipeline.planning.fleet import Fleet, FleetError, FleetPlan, plan_fleet, traffic_of
from pipeline.planning.fleet_costs import (
    PARTS,
    CostConstants,
    PartCost,
    Traffic,
    cost_constants,
    memory_megabytes,
    processor_seconds,
)
from pipeline.planning.plan import plan
from pipeline.simulation.memory import MemoryDriver, MemoryLog
from tests.support.commands import Commands
from topics.names import Role

STREAM: dict[str, Any] = {
    "name": "weeks",
    "protocol": "value_stream",
    "parameters": {"epsilon": 1, "changes": 2},
    "epochs": {"count": 4},
}
COUNTED: dict[str, Any] = {
    "name": "modes",
    "protocol": "single_message",
    "parameters": {"epsilon": 2, "delta": 1e-3, "domain": ["dark", "light", "auto", "none"]},
    "epochs": {"count": 2},
    "shuffle": {"minimum": 200},
}
SETS: dict[str, Any] = {
    "name": "items",
    "protocol": "count_min",
    "parameters": {"epsilon": 1, "delta": 1e-6, "domain": ["walk", "bus", "car"]},
    "epochs": {"count": 1},
    "shuffle": {"minimum": 300},
}
CALENDAR = {"start": "2026-03-01", "length": "1d", "renew": True}
COST = PartCost(0.5, 0.25, 2.0, 3.0, 0.125, 100.0, 1e6)
CONSTANTS = CostConstants("a machine", dict.fromkeys(PARTS, COST), 0.001, 0.5)
FLEET = Fleet(devices=300, gateways=3, jobs=2, epoch_seconds=10.0)


@pytest.fixture
def commands(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


def planned(values: dict[str, Any], fleet: Fleet = FLEET) -> FleetPlan:
    job = make_job(values)
    return plan_fleet(job, plan(job, fleet.devices), fleet, 1.0, CONSTANTS)


def sent(job: Job, fleet: Fleet) -> list[bytes]:
    """What real producers write in the first epoch."""
    log = MemoryLog()
    deployed = deploy_job(job, deployed_at=0)
    for number in range(fleet.gateways):
        transport = MemoryDriver(log)
        with Producer(deployed, None, name=f"{number}", transport=transport) as producer:
            each = fleet.devices // fleet.gateways
            producer.enrol([f"{number}-{device}" for device in range(each)])
            shape = (each, *job.domain.shape)
            producer.report_all(1, np.ones(shape, np.int64))
            producer.close(1)
    return [
        value
        for partition in range(job.partitions)
        for value in log.values(Role.REPORTS, partition)
    ]


@pytest.mark.parametrize("values", [STREAM, COUNTED, SETS], ids=lambda values: values["protocol"])
def test_traffic_is_what_producers_send(values: dict[str, Any]) -> None:
    job = make_job(values)
    traffic = traffic_of(job, job.calibrate(), plan(job, FLEET.devices), FLEET)
    records = sent(job, FLEET)
    assert traffic.records == len(records)
    # What is added to each record for its frame and for Kafka is within a few dozen bytes.
    assert traffic.megabytes * 1e6 == pytest.approx(sum(map(len, records)), abs=100 * len(records))


def test_the_law_of_costs() -> None:
    traffic = Traffic(reports=100, gateways=2, gateway_bytes=200_000, tabular=True)
    assert traffic.records == 2 * (1 + 4)
    megabytes = traffic.megabytes
    assert megabytes == pytest.approx(0.4 + 10 * 150 / 1e6)
    assert processor_seconds(COST, traffic) == 0.5 + 0.25 * 10 + 2.0 * megabytes
    assert processor_seconds(COST, replace(traffic, tabular=False)) == 3.0 + 3.0 * megabytes
    assert memory_megabytes(COST, traffic, 3) == 3 * (100 + 10)


def test_needs_add_up() -> None:
    needed = planned(STREAM)
    traffic = Traffic(reports=300, gateways=3, gateway_bytes=100, tabular=True)
    assert (needed.reports, needed.records) == (300, 6)
    assert needed.megabytes == traffic.megabytes
    closing = processor_seconds(COST, traffic)
    assert needed.closing_seconds == closing
    parts = {part.name: part for part in needed.parts}
    # Two jobs, an epoch every ten seconds, and what they take while nothing comes.
    assert parts["shuffle"].busy == pytest.approx(2 * closing / 10 + 2 * 0.125)
    assert parts["broker"].busy == pytest.approx(3 * 2 * closing / 10 + 2 * 0.125)
    assert parts["shuffle"].megabytes == 2 * (100 + 6)
    assert parts["broker"].megabytes == 100 + 6
    assert parts["shuffle"].cores == int(np.ceil(parts["shuffle"].busy / 0.6))
    assert parts["shuffle"].received == pytest.approx(2 * traffic.megabytes / 10)
    copies = sum(topic.partitions for topic in make_job(STREAM).topic_settings().values())
    assert needed.copies == 2 * 3 * copies
    assert needed.brokers == 3
    assert needed.device_seconds == pytest.approx(1.0 / 4 * 300 / 1e6)


def test_windows_that_one_core_is_too_slow_for_need_partitions() -> None:
    assert planned(STREAM).partitions_needed == 1
    hasty = planned(STREAM, replace(FLEET, epoch_seconds=0.25))
    assert hasty.partitions_needed == int(np.ceil(hasty.closing_seconds / (0.6 * 0.25)))
    assert hasty.partitions_needed > 1


def test_more_of_anything_needs_no_less() -> None:
    few = planned(SETS)
    for more in (
        replace(FLEET, devices=3_000),
        replace(FLEET, gateways=30),
        replace(FLEET, jobs=20),
        replace(FLEET, epoch_seconds=1.0),
    ):
        many = planned(SETS, more)
        for part, other in zip(few.parts, many.parts, strict=True):
            assert other.busy > part.busy, (more, part.name)
        assert many.disk_gigabytes > few.disk_gigabytes
        assert many.brokers >= few.brokers
    assert planned(SETS, replace(FLEET, jobs=300)).brokers > 3


def test_constants_that_are_installed_were_measured() -> None:
    constants = cost_constants()
    assert set(constants.parts) == set(PARTS)
    assert CostConstants.from_json(json.loads(json.dumps(constants.to_json()))) == constants
    for part in constants.parts.values():
        assert part.megabytes > 10
        assert part.epoch + part.record > 0
    # Every report passes the broker and the shuffle stage.
    for name in ("broker", "shuffle"):
        assert constants.parts[name].tabular_megabyte > 0
    assert 0 < constants.sorted_out < 2


def test_fleets_that_there_are_not() -> None:
    with pytest.raises(FleetError, match="4 gateways for 3 devices: a gateway holds one"):
        Fleet(3, 4, 1, 1.0)
    with pytest.raises(FleetError, match="are above 0"):
        Fleet(3, 1, 1, 0.0)
    with pytest.raises(FleetError, match="devices of weeks report for themselves"):
        planned({**STREAM, "devices": {}, "epochs": {**STREAM["epochs"], **CALENDAR}})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--gateways", "10"), "about a fleet: give --devices"),
        (("--devices", "100M"), "give --every"),
        (("--devices", "many", "--every", "1h"), "give a number such as 25000, 300k"),
        (("--devices", "100", "--every", "soon"), "--every is soon:"),
        (("--devices", "9", "--gateways", "10", "--every", "1h"), "10 gateways for 9 devices"),
    ],
)
def test_what_is_asked_wrongly_is_said(
    commands: Commands, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    job = tmp_path / "job.json"
    job.write_text(json.dumps(STREAM))
    done = commands("plan", str(job), *options)
    assert done.code == 2
    assert said in " ".join(done.errors.split())


def test_a_plan_shows_a_fleet(commands: Commands, tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    job.write_text(json.dumps(STREAM))
    asked = ("plan", str(job), "--devices", "100M", "--gateways", "10k", "--every", "10s")
    shown = commands(*asked)
    assert shown.code == 0, shown.errors
    text = " ".join(shown.output.split())
    assert "a fleet of 100,000,000 devices behind 10,000 gateways, an epoch every 10 s" in text
    assert "in 20,000 records" in text
    told = commands(*asked, "--json").json
    assert told["users"] == 100_000_000
    assert told["fleet"]["fleet"]["gateways"] == 10_000
    assert [part["name"] for part in told["fleet"]["parts"]] == list(PARTS)
