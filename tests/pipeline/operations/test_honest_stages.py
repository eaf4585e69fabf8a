"""Stages that keep to the rules are acquitted, whatever the protocol, whoever dies meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.actions import LogRecord
from pipeline.conformance.finding import find_cases
from pipeline.devices.producer import Producer
from pipeline.jobs.deployed_job import DeployedJob, deploy_job
from pipeline.jobs.job_files import make_job
from pipeline.jobs.noise_keys import NoiseKey
from pipeline.operations.stage_verification.verify_stage import verify_stages
from pipeline.protocols.protocol import Protocol
from pipeline.protocols.registry import PROTOCOLS
from pipeline.simulation.memory import MemoryDriver
from pipeline.simulation.simulate import SimulatedCluster
from pipeline.stages.stage import Stage
from randomizers.randomness import seeded_generator
from tests.conformance.jobs import LAST_EPOCH, case_job_file
from tests.support import cells
from tests.support.device_world import GRACE, DeviceWorld, Sent, device_job
from tests.support.sealed_cells import run, values_of_cells, written_job
from tests.support.sealing import SHUFFLE_KEYS, all_keys, sealed_section, shares_section
from tests.support.signed_stages import (
    SignedWorld,
    evidence_of,
    finding,
    public_key,
    signed,
    verified,
    violated,
)
from tests.support.world import Accidents
from topics.names import Role

KEY = NoiseKey(bytes(range(32)))
USERS = 20
ALWAYS = {"signatures", "membership", "minimum", "order", "attempts"}


def shuffled() -> Iterator[Any]:
    """Every protocol that rests on the stage, as its first example has it, and with stage noise."""
    for protocol in PROTOCOLS.values():
        if not protocol.needs_shuffle:
            continue
        parameters = protocol.examples[0].parameters
        yield pytest.param(protocol, None, id=protocol.name)
        if hasattr(parameters, "dummies"):
            try:
                replace(parameters, dummies="shuffle")
            except ValueError:
                continue
            yield pytest.param(protocol, "shuffle", id=f"{protocol.name}, noise of the stage")


@pytest.mark.parametrize(("protocol", "dummies"), list(shuffled()))
def test_of_every_protocol_that_rests_on_the_stage(protocol: Protocol, dummies: str | None) -> None:
    text = case_job_file(find_cases(protocol.name)[0], dummies=dummies)
    job = deploy_job(make_job(text), deployed_at=0, deployment=bytes(16))
    cluster = SimulatedCluster(job, generators, KEY, around=signed)
    send(cluster, range(1, LAST_EPOCH + 1))
    job = cluster.job
    found = verify_stages(evidence_of(job, cluster.log))
    assert violated(found) == set()
    expected = {*ALWAYS, *(["noise key"] if job.needs_noise_key else [])}
    if job.stage_dummies is not None:
        expected |= {"noise"}
    elif job.sealed is None:
        expected |= {"amount"}
    assert verified(found) == expected
    assert finding(found, "order").checked == LAST_EPOCH
    if job.needs_noise_key:
        again = verify_stages(evidence_of(job, cluster.log), noise_key=KEY)
        assert violated(again) == set()


def send(cluster: SimulatedCluster, epochs: range) -> None:
    """Have as many devices as a window needs report that they hold nothing."""
    job = cluster.job
    producer = Producer(
        job,
        None,
        name="one",
        transport=MemoryDriver(cluster.log),
        generators=generators,
    )
    users = max(USERS, job.shuffle.minimum)
    producer.enrol([f"u{number}" for number in range(users)])
    for epoch in epochs:
        producer.report_all(epoch, np.full((users, *job.domain.shape), job.domain.initial))
        producer.close(epoch)
        cluster.settle()
    producer.shut()


def generators(purpose: str, number: int) -> np.random.Generator:
    return seeded_generator(5, len(purpose), number)


@pytest.fixture(autouse=True)
def cells_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROTOCOLS, cells.NAME, cells.CELLS)


def cells_job(sealed: dict[str, Any] | None, **values: Any) -> DeployedJob:
    job = make_job(written_job(sealed, **values))
    return deploy_job(job, deployment=bytes(range(16)), deployed_at=0)


def world_of(job: DeployedJob, folder: Path, accidents: Accidents | None = None) -> SignedWorld:
    keys = all_keys(SHUFFLE_KEYS, (1, 2))
    return SignedWorld(job, folder, values_of_cells(), accidents or Accidents(), keys=keys)


@pytest.mark.parametrize(
    ("sealed", "shuffle", "roles"),
    [
        (None, {}, {Role.SHUFFLED}),
        (sealed_section(((2,), (3,), (4,))), {}, {Role.HOP_1, Role.HOP_2, Role.SHUFFLED}),
        (None, {"instances": 3}, {Role.SHUFFLED}),
        (sealed_section(((2,), (3,))), {"instances": 2}, {Role.SHUFFLED}),
    ],
    ids=["one stage", "three in series", "three side by side", "two, sealed, side by side"],
)
def test_of_every_arrangement_of_stages(
    tmp_path: Path, sealed: dict[str, Any] | None, shuffle: dict[str, Any], roles: set[Role]
) -> None:
    job = cells_job(sealed, shuffle={"minimum": 10, "producers": 2, **shuffle})
    world = run(world_of(job, tmp_path))
    evidence = evidence_of(job, world.log, raw=True)
    assert {attempt.role for attempt in evidence.attempts} == roles
    found = verify_stages(evidence, signers=[public_key(stage) for stage in job.stages])
    assert violated(found) == set()
    assert verified(found) >= ALWAYS | {"timing"}
    assert finding(found, "signatures").missing == ""
    assert ("cut" in verified(found)) == (sealed is None and job.instances == 1)


def test_sums_of_shares_are_signed_by_who_adds_them_up(tmp_path: Path) -> None:
    job = cells_job(shares_section())
    world = run(world_of(job, tmp_path))
    evidence = evidence_of(job, world.log)
    assert {attempt.role for attempt in evidence.attempts} == {
        *(Role.SHUFFLED, Role.PARTIALS_A, Role.PARTIALS_B)
    }
    found = verify_stages(evidence, signers=[public_key(stage) for stage in job.stages])
    assert violated(found) == set()


@pytest.mark.parametrize(
    ("keep", "stride"),
    [
        pytest.param(True, 3, id="unflushed kept, every third action"),
        pytest.param(True, 1, id="unflushed kept", marks=pytest.mark.verify),
        pytest.param(False, 1, id="unflushed lost", marks=pytest.mark.verify),
    ],
)
def test_stages_that_are_killed_are_acquitted_and_nothing_changes_by_signing(
    tmp_path: Path, keep: bool, stride: int
) -> None:
    job = cells_job(None)
    undisturbed = run(world_of(job, tmp_path / "undisturbed"))
    twice = 0
    for strike in range(1, undisturbed.accidents.count + 1, stride):
        world = run(world_of(job, tmp_path / str(strike), Accidents(frozenset([strike]), keep)))
        assert world.integers() == undisturbed.integers(), f"killed after action {strike}"
        evidence = evidence_of(job, world.log)
        twice += len(evidence.attempts) > 2
        assert violated(verify_stages(evidence)) == set(), f"killed after action {strike}"
    assert twice, "some windows were written twice"


def test_an_older_deployment_goes_on_and_has_nothing_to_be_held_to(tmp_path: Path) -> None:
    made = cells_job(None)
    offsets = {role: each for role, each in made.start_offsets.items() if role is not Role.STAGES}
    job = DeployedJob.from_bytes(made.model_copy(update={"start_offsets": offsets}).to_bytes())
    world = run(world_of(job, tmp_path))
    assert world.log.end(Role.STAGES, 0) == 0
    found = verify_stages(evidence_of(job, world.log))
    assert violated(found) == set()
    assert "deploy the job anew" in finding(found, "signatures").missing
    assert verified(found) >= ALWAYS - {"signatures"}


class SignedDeviceWorld(DeviceWorld):
    """A world whose devices report for themselves, and whose stages sign."""

    def stage(self, name: str) -> Stage:
        return signed(self.job, name, super().stage(name))


@pytest.mark.parametrize("early", [False, True], ids=["in time", "before the end of the epoch"])
def test_of_devices_that_report_for_themselves(early: bool) -> None:
    """One of them says what the protocol does not have: a contributor, of whom nothing is left."""
    parameters = {
        "domain": ["a", "b", "c"],
        "response": "randomized_response",
        "epsilon": 1,
        "delta": 1e-6,
    }
    job = device_job("single_message", parameters, shuffle={"minimum": 10, "grace": "PT40S"})
    world = SignedDeviceWorld(job)
    for epoch in (1, 2):
        world.at(epoch, 50)
        words = [[200 if each == 3 else each % 3] for each in range(30)]
        sent = [Sent(each, word, enrols=epoch == 1) for each, word in enumerate(words)]
        world.collect(epoch, sent)
        world.settle()
        world.at(epoch + 1, 1)
        world.settle()
        world.at(epoch + 1, GRACE + 2)
        world.settle()

    def moved(role: Role, record: LogRecord) -> LogRecord:
        # By more than clocks may differ.
        earlier = record.timestamp - 1000 * int(GRACE + 2 + 61)
        return replace(record, timestamp=earlier) if role is Role.MANIFESTS and early else record

    found = verify_stages(evidence_of(job, world.log, change=moved))
    assert violated(found) == ({"timing"} if early else set())
    assert verified(found) >= ALWAYS | {"amount"}
    held = [each.messages for each in evidence_of(job, world.log).attempts]
    assert held == [29, 29]
