"""Test requeuing for parallel shufflers: all parts of a batch, the first shuffler last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dpstream.pipeline.actions import Append
from dpstream.pipeline.stages.admission import decode_raw
from dpstream.topics.batches import decode_punctuation, encode_punctuation
from dpstream.topics.frames import RecordType, kind_of
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role
from dpstream.topics.redriven import Redriven
from tests.support.late_registration import COUNTED, HALF, HIDDEN, LateRegistrationScenario
from tests.support.sealing import all_keys, sealed_section

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
def scenario(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LateRegistrationScenario]:
    # In the sealed case, batches have few reports, all in one ciphertext.
    each = made(tmp_path, COUNTED if request.param else HIDDEN, sealed=request.param)
    yield each
    each.world.shut()


def whole(scenario: LateRegistrationScenario, *epochs: int) -> None:
    manifests = scenario.world.manifests()
    assert {epoch: manifests[epoch].contributors for epoch in epochs} == dict.fromkeys(
        epochs, 2 * HALF
    )
    assert all(manifests[epoch].window_status is WindowStatus.RELEASED for epoch in epochs)


def test_late_registered_producer_is_counted_by_all_parallel_shufflers(
    scenario: LateRegistrationScenario, tmp_path: Path
) -> None:
    sealed = scenario.job.sealed is not None
    undisturbed = made(tmp_path / "2", COUNTED if sealed else HIDDEN, sealed=sealed)
    undisturbed.register()
    for each in (undisturbed, scenario):
        each.north(1, 2)
        sent = each.send(1, 2)
        each.settle()
    assert len(scenario.world.log.values(Role.DEAD_LETTERS)) >= sent // 2
    if not sealed:
        # Only the shuffler can determine the sender of a sealed batch.
        early = scenario.redrive()
        assert early.kept == {"enrollment is still not registered": sent}
        assert not early.requeued
    scenario.register()
    planned = scenario.redrive(dry_run=True)
    scenario.cluster.sent.clear()
    done = scenario.redrive()
    assert planned.requeued == done.requeued
    assert done.kept == {}
    order = scenario.cluster.sent
    assert order == sorted(order, key=[Role.REPORTS_2, Role.REPORTS].index)
    assert {Role.REPORTS, Role.REPORTS_2} == set(order)
    scenario.settle()
    whole(scenario, 1, 2)
    assert scenario.world.integers() == undisturbed.world.integers()
    assert scenario.redrive().requeued == {}, "requeued letters are deleted"
    assert all(map(Redriven.from_bytes, scenario.world.log.values(Role.DEAD_LETTERS))), (
        "only markers remain"
    )
    undisturbed.world.shut()


def test_batch_is_not_requeued_while_a_shuffler_lacks_its_part(
    scenario: LateRegistrationScenario,
) -> None:
    scenario.register()
    scenario.north(1)
    (missing, *_) = sent_by_south(scenario, Role.REPORTS_2)
    assert kind_of(missing) is not RecordType.PUNCTUATION
    # Records in the other partition are rejected by all shufflers; some of them are lost.
    for role in reversed(scenario.job.route.reports):
        for value in sent_by_south(scenario, role):
            if value != missing:
                scenario.world.log.append(Append(role, 0, value))
    scenario.settle()
    first = scenario.redrive()
    assert first.kept.keys() == {LACKING}
    assert scenario.cluster.sent
    assert set(scenario.cluster.sent) == {Role.REPORTS_2}
    scenario.settle()
    assert not scenario.world.manifests()
    scenario.world.log.append(Append(Role.REPORTS_2, 1, missing))
    second = scenario.redrive()
    assert second.kept.keys() == {"already requeued"}
    assert sum(second.requeued.values()) == first.kept[LACKING]
    scenario.settle()
    whole(scenario, 1)


def sent_by_south(scenario: LateRegistrationScenario, role: Role) -> list[bytes]:
    return [value for value in scenario.south.values(role, 1) if decode_raw(value).epoch == 1]


def test_batch_with_contradictory_punctuation_is_not_requeued(
    scenario: LateRegistrationScenario,
) -> None:
    scenario.register()
    scenario.north(1)
    *batches, ends = sent_by_south(scenario, Role.REPORTS_2)
    punctuation = decode_punctuation(ends)
    contradicted = encode_punctuation(replace(punctuation, batches=punctuation.batches + 1))
    for value in (*batches, contradicted, ends):
        scenario.world.log.append(Append(Role.REPORTS_2, 1, value))
    for value in sent_by_south(scenario, Role.REPORTS):
        scenario.world.log.append(Append(Role.REPORTS, 0, value))
    scenario.settle()
    assert ends in scenario.world.log.values(Role.REPORTS_2, 1)
    done = scenario.redrive()
    assert done.kept.keys() == {LACKING, "punctuation: cannot be fixed"}
    assert done.requeued == {}
