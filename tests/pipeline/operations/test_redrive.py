"""Test that rejected reports are requeued after a fix: once, and only if they are admitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dpstream.pipeline.actions import Append
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import Origin, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.deployed_jobs import DeploymentError
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.pipeline.operations.redrive import redrive
from dpstream.pipeline.stages.admission import decode_raw
from dpstream.topics.batches import decode_punctuation, encode_punctuation
from dpstream.topics.frames import RecordType, kind_of
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role
from dpstream.topics.redriven import Redriven
from tests.support.late_registration import COUNTED, HALF, HIDDEN, LateRegistrationScenario
from tests.support.sealing import all_keys, sealed_section


@pytest.fixture(params=[COUNTED, HIDDEN], ids=["counted", "hidden"])
def scenario(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LateRegistrationScenario]:
    made = LateRegistrationScenario(request.param, tmp_path)
    yield made
    made.world.shut()


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[LateRegistrationScenario]:
    made = LateRegistrationScenario(COUNTED, tmp_path)
    yield made
    made.world.shut()


def test_producer_that_registered_late_is_counted_after_a_redrive(
    scenario: LateRegistrationScenario, tmp_path: Path
) -> None:
    undisturbed = LateRegistrationScenario(
        COUNTED if scenario.job.protocol == "future_rand" else HIDDEN, tmp_path / "2"
    )
    undisturbed.register()
    for each in (undisturbed, scenario):
        each.north(1, 2)
        sent = each.send(1, 2)
        each.settle()
    assert len(scenario.world.log.values(Role.DEAD_LETTERS)) == sent
    assert not scenario.world.manifests()

    early = scenario.redrive()
    assert (early.requeued, early.kept) == ({}, {"enrollment is still not registered": sent})
    scenario.register()
    planned = scenario.redrive(dry_run=True)
    before = [scenario.world.log.end(Role.REPORTS, partition) for partition in range(2)]
    done = scenario.redrive()
    assert planned.requeued == done.requeued == {"batch": sent - 2, "punctuation": 2}
    assert (planned.dry_run, done.dry_run, done.epochs, done.kept) == (True, False, 2, {})
    assert sum(scenario.world.log.end(Role.REPORTS, p) for p in range(2)) == sum(before) + sent
    scenario.settle()
    for each in (undisturbed, scenario):
        manifests = each.world.manifests()
        assert {e: m.contributors for e, m in manifests.items()} == {1: 2 * HALF, 2: 2 * HALF}
        assert {m.window_status for m in manifests.values()} == {WindowStatus.RELEASED}
    assert scenario.world.integers() == undisturbed.world.integers()

    again = scenario.redrive()
    assert (again.requeued, again.kept) == ({}, {}), "requeued letters are deleted"
    assert all(map(Redriven.from_bytes, scenario.world.log.values(Role.DEAD_LETTERS))), (
        "only markers remain"
    )
    assert scenario.world.integers() == undisturbed.world.integers()
    undisturbed.world.shut()


def test_record_that_is_requeued_twice_counts_once(
    counted: LateRegistrationScenario, tmp_path: Path
) -> None:
    """The process exits after all records are acknowledged, before it can write markers."""
    undisturbed = LateRegistrationScenario(COUNTED, tmp_path / "undisturbed")
    undisturbed.register()
    undisturbed.north(1)
    undisturbed.send(1)
    undisturbed.settle()
    undisturbed.world.shut()
    counted.north(1)
    sent = counted.send(1)
    counted.settle()
    counted.register()
    counted.die_redriving()
    assert sum(counted.redrive().requeued.values()) == sent
    counted.settle()
    manifest = counted.world.manifests()[1]
    assert (manifest.contributors, manifest.population) == (2 * HALF, 2 * HALF)
    assert counted.world.integers() == undisturbed.world.integers()


def test_finalized_epoch_accepts_no_requeued_records(counted: LateRegistrationScenario) -> None:
    counted.north(1)
    first = counted.send(1)
    counted.settle()
    counted.settle(later=61.0)
    assert counted.world.manifests()[1].contributors == HALF
    counted.north(2)
    second = counted.send(2)
    counted.settle()
    counted.register()
    done = counted.redrive()
    assert done.kept == {"epoch is already finalized": first}
    assert sum(done.requeued.values()) == second
    counted.settle()
    assert counted.world.manifests()[1].contributors == HALF
    assert counted.world.manifests()[2].contributors == 2 * HALF


def test_dead_letters_of_a_future_epoch_are_not_requeued(
    counted: LateRegistrationScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If they were requeued too early, they would be rejected again."""
    counted.register()
    counted.north(1)
    counted.send(1, shift=1)
    counted.settle()
    clock = {"now": 1_672_531_200_000 - 3_600_000}
    monkeypatch.setattr(
        "dpstream.pipeline.operations.redrive.own_milliseconds", lambda: clock["now"]
    )
    early = counted.redrive()
    assert early.requeued == {}
    assert list(early.kept) == ["epoch has not started"]
    clock["now"] += 3_600_000 - 60_000
    assert sum(counted.redrive().requeued.values()) == early.kept["epoch has not started"]


def test_misrouted_record_is_requeued_to_its_partition(
    counted: LateRegistrationScenario,
) -> None:
    counted.north(1)
    counted.register()
    sent = counted.send(1, shift=1)
    counted.settle()
    assert not counted.world.manifests()
    assert sum(counted.redrive().requeued.values()) == sent
    counted.settle()
    assert counted.world.manifests()[1].contributors == 2 * HALF


def damage(scenario: LateRegistrationScenario) -> None:
    value = scenario.south.values(Role.REPORTS, 1)[0]
    scenario.world.log.append(Append(Role.REPORTS, 1, value[:-1]))


def foreign(scenario: LateRegistrationScenario) -> None:
    other = deploy_job(parse_job(COUNTED), deployed_at=0, deployment=b"another one, yes")
    log = MemoryLog()
    producer = Producer(other, None, name="south", transport=MemoryDriver(log))
    producer.close(1)
    producer.shut()
    scenario.world.log.append(Append(Role.REPORTS, 1, log.values(Role.REPORTS, 1)[0]))


@pytest.mark.parametrize(
    ("corrupt", "why"),
    [(damage, "unreadable: cannot be fixed"), (foreign, "deployment: cannot be fixed")],
)
def test_dead_letters_that_stay_invalid_are_not_requeued(
    counted: LateRegistrationScenario, corrupt: Callable[[LateRegistrationScenario], None], why: str
) -> None:
    counted.register()
    corrupt(counted)
    counted.settle()
    done = counted.redrive()
    assert (done.requeued, done.kept) == ({}, {why: 1})


def test_dead_letters_of_a_replay_cannot_be_redriven(counted: LateRegistrationScenario) -> None:
    origin = Origin.model_validate({"job": "big", "deployment": "00" * 16})
    replay = counted.job.model_copy(update={"replay_of": origin})
    with pytest.raises(DeploymentError, match="is a replay of big"):
        redrive(counted.cluster.cluster, replay)


KEYS = [[2], [3]]
LACKING = "the part for another shuffler is missing"


def job_text(text: str, *, sealed: bool) -> str:
    values = yaml.safe_load(text)
    values["shuffle"]["instances"] = 2
    if sealed:
        values["sealed"] = sealed_section(KEYS)
    written: str = yaml.safe_dump(values)
    return written


def made(folder: Path, text: str = HIDDEN, *, sealed: bool = False) -> LateRegistrationScenario:
    return LateRegistrationScenario(job_text(text, sealed=sealed), folder, all_keys(KEYS))


@pytest.fixture(params=[False, True], ids=["open", "sealed"])
def scenario_of_instances(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[LateRegistrationScenario]:
    # In the sealed case, batches have few reports, all in one ciphertext.
    each = made(tmp_path, COUNTED if request.param else HIDDEN, sealed=request.param)
    yield each
    each.world.shut()


def whole(scenario_of_instances: LateRegistrationScenario, *epochs: int) -> None:
    manifests = scenario_of_instances.world.manifests()
    assert {epoch: manifests[epoch].contributors for epoch in epochs} == dict.fromkeys(
        epochs, 2 * HALF
    )
    assert all(manifests[epoch].window_status is WindowStatus.RELEASED for epoch in epochs)


def test_producer_that_registered_late_is_counted_by_all_parallel_shufflers(
    scenario_of_instances: LateRegistrationScenario, tmp_path: Path
) -> None:
    sealed = scenario_of_instances.job.sealed is not None
    undisturbed = made(tmp_path / "2", COUNTED if sealed else HIDDEN, sealed=sealed)
    undisturbed.register()
    for each in (undisturbed, scenario_of_instances):
        each.north(1, 2)
        sent = each.send(1, 2)
        each.settle()
    assert len(scenario_of_instances.world.log.values(Role.DEAD_LETTERS)) >= sent // 2
    if not sealed:
        # Only the shuffler can determine the sender of a sealed batch.
        early = scenario_of_instances.redrive()
        assert early.kept == {"enrollment is still not registered": sent}
        assert not early.requeued
    scenario_of_instances.register()
    planned = scenario_of_instances.redrive(dry_run=True)
    scenario_of_instances.cluster.sent.clear()
    done = scenario_of_instances.redrive()
    assert planned.requeued == done.requeued
    assert done.kept == {}
    order = scenario_of_instances.cluster.sent
    assert order == sorted(order, key=[Role.REPORTS_2, Role.REPORTS].index)
    assert {Role.REPORTS, Role.REPORTS_2} == set(order)
    scenario_of_instances.settle()
    whole(scenario_of_instances, 1, 2)
    assert scenario_of_instances.world.integers() == undisturbed.world.integers()
    assert scenario_of_instances.redrive().requeued == {}, "requeued letters are deleted"
    assert all(
        map(Redriven.from_bytes, scenario_of_instances.world.log.values(Role.DEAD_LETTERS))
    ), "only markers remain"
    undisturbed.world.shut()


def test_batch_is_not_requeued_while_a_shuffler_lacks_its_part(
    scenario_of_instances: LateRegistrationScenario,
) -> None:
    scenario_of_instances.register()
    scenario_of_instances.north(1)
    (missing, *_) = sent_by_south(scenario_of_instances, Role.REPORTS_2)
    assert kind_of(missing) is not RecordType.PUNCTUATION
    # Records in the other partition are rejected by all shufflers; some of them are lost.
    for role in reversed(scenario_of_instances.job.route.reports):
        for value in sent_by_south(scenario_of_instances, role):
            if value != missing:
                scenario_of_instances.world.log.append(Append(role, 0, value))
    scenario_of_instances.settle()
    first = scenario_of_instances.redrive()
    assert first.kept.keys() == {LACKING}
    assert scenario_of_instances.cluster.sent
    assert set(scenario_of_instances.cluster.sent) == {Role.REPORTS_2}
    scenario_of_instances.settle()
    assert not scenario_of_instances.world.manifests()
    scenario_of_instances.world.log.append(Append(Role.REPORTS_2, 1, missing))
    second = scenario_of_instances.redrive()
    assert second.kept.keys() == {"already requeued"}
    assert sum(second.requeued.values()) == first.kept[LACKING]
    scenario_of_instances.settle()
    whole(scenario_of_instances, 1)


def sent_by_south(scenario_of_instances: LateRegistrationScenario, role: Role) -> list[bytes]:
    return [
        value
        for value in scenario_of_instances.south.values(role, 1)
        if decode_raw(value).epoch == 1
    ]


def test_batch_with_contradictory_punctuation_is_not_requeued(
    scenario_of_instances: LateRegistrationScenario,
) -> None:
    scenario_of_instances.register()
    scenario_of_instances.north(1)
    *batches, ends = sent_by_south(scenario_of_instances, Role.REPORTS_2)
    punctuation = decode_punctuation(ends)
    contradicted = encode_punctuation(replace(punctuation, batches=punctuation.batches + 1))
    for value in (*batches, contradicted, ends):
        scenario_of_instances.world.log.append(Append(Role.REPORTS_2, 1, value))
    for value in sent_by_south(scenario_of_instances, Role.REPORTS):
        scenario_of_instances.world.log.append(Append(Role.REPORTS, 0, value))
    scenario_of_instances.settle()
    assert ends in scenario_of_instances.world.log.values(Role.REPORTS_2, 1)
    done = scenario_of_instances.redrive()
    assert done.kept.keys() == {LACKING, "punctuation: cannot be fixed"}
    assert done.requeued == {}
