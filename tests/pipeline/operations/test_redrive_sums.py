"""Test that reports requeued for noisy sums are released once, with a single noise sample.

The difference of two sums of nearly the same messages with the same noise reveals a few messages;
the mean of two sums with different noises reveals more than either sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpstream.pipeline.actions import Append
from dpstream.pipeline.jobs.key_files import NoiseKey
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import (
    STEPS,
    SUM_ZERO,
    ShuffledValueStreamLaw,
)
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role
from tests.support.late_registration import EPOCHS, HALF, LateRegistrationScenario

KEY = NoiseKey(bytes(range(32)))
SUMMED = (
    "name: small\nprotocol: shuffled_counts\n"
    "parameters: {epsilon: 1, delta: 1e-6, max_changes: 1, dummies: shuffle}\n"
    # All epochs have ended before a test starts, so windows wait only for the grace period.
    f"epochs: {{count: {EPOCHS}, start: '2023-01-01', length: PT1H}}\n"
    f"shuffle: {{producers: 2, minimum: {HALF}}}\ntopics: {{partitions: 2}}\n"
)


@pytest.fixture
def scenario(tmp_path: Path) -> Iterator[LateRegistrationScenario]:
    made = summed(tmp_path / "story")
    yield made
    made.world.shut()


@pytest.fixture
def undisturbed(tmp_path: Path) -> Iterator[LateRegistrationScenario]:
    made = summed(tmp_path / "undisturbed")
    made.register()
    made.north(1, 2)
    made.send(1, 2)
    made.settle()
    yield made
    made.world.shut()


def summed(folder: Path) -> LateRegistrationScenario:
    scenario = LateRegistrationScenario(SUMMED, folder, noise_key=KEY)
    law = scenario.job.law
    assert isinstance(law, ShuffledValueStreamLaw)
    assert law.boost > 0, "messages are rounded at random"
    return scenario


def released(scenario: LateRegistrationScenario) -> dict[int, int]:
    words: defaultdict[int, set[int]] = defaultdict(set)
    for partition in range(2):
        for value in scenario.world.log.values(Role.SHUFFLED, partition):
            chunk = decode_chunk(value)
            assert (chunk.index, chunk.total, chunk.words.counts) == (0, 1, None)
            ((word,),) = chunk.words.values.tolist()
            words[chunk.epoch].add(word)
    assert {len(written) for written in words.values()} <= {1}, "an epoch has two sums"
    return {epoch: word for epoch, (word,) in words.items()}


def count_of(scenario: LateRegistrationScenario, epoch: int) -> float:
    """Return the number of devices with value 1 in a sum of the first epoch, without noise."""
    law = scenario.job.law
    assert isinstance(law, ShuffledValueStreamLaw)
    noise = law.noise.draw(KEY.generator(scenario.job.deployment, epoch))
    users = scenario.world.manifests()[epoch].contributors
    return ((released(scenario)[epoch] - SUM_ZERO - noise) / STEPS + users / 2) / (1 + law.boost)


def test_requeued_report_is_added_to_the_sum(
    scenario: LateRegistrationScenario, undisturbed: LateRegistrationScenario
) -> None:
    scenario.north(1, 2)
    sent = scenario.send(1, 2)
    scenario.settle()
    assert not released(scenario)
    scenario.register()
    assert sum(scenario.redrive().requeued.values()) == sent
    scenario.settle()
    assert released(scenario) == released(undisturbed)
    assert released(scenario).keys() == {1, 2}
    # A third of all devices have the value 1, and each message is off by at most one step.
    assert count_of(scenario, 1) == pytest.approx(2 * HALF / 3, abs=2 * HALF / STEPS)
    assert scenario.world.integers() == undisturbed.world.integers()
    # Later records do not change it either.
    assert scenario.redrive().requeued == {}
    scenario.send(1, 2)
    scenario.settle(later=61.0)
    assert released(scenario) == released(undisturbed)


def test_report_that_is_requeued_twice_is_added_once(
    scenario: LateRegistrationScenario, undisturbed: LateRegistrationScenario
) -> None:
    """The command exits after all records are acknowledged, before it can write markers."""
    scenario.north(1, 2)
    sent = scenario.send(1, 2)
    scenario.settle()
    scenario.register()
    scenario.die_redriving()
    assert sum(scenario.redrive().requeued.values()) == sent
    scenario.settle()
    assert released(scenario) == released(undisturbed)
    assert scenario.world.integers() == undisturbed.world.integers()


def test_redrive_never_changes_a_released_sum(
    scenario: LateRegistrationScenario, undisturbed: LateRegistrationScenario
) -> None:
    """South's report arrives after its epoch was released: requeued, or sent manually."""
    scenario.north(1)
    first = scenario.send(1)
    scenario.settle()
    scenario.settle(later=61.0)
    before = released(scenario)
    assert before.keys() == {1}
    assert scenario.world.manifests()[1].contributors == HALF
    assert count_of(scenario, 1) == pytest.approx(HALF / 3, abs=HALF / STEPS)
    integers = scenario.world.integers()
    scenario.register()
    done = scenario.redrive()
    assert (done.requeued, done.kept) == ({}, {"epoch is already finalized": first})
    scenario.send(1)
    # A restarted stage knows only the written records.
    scenario.world.kill("shuffle")
    scenario.settle(later=61.0)
    assert released(scenario) == before
    assert scenario.world.integers() == integers
    assert scenario.world.manifests()[1].contributors == HALF
    # The next epoch includes all producers, with independent noise.
    scenario.north(2)
    scenario.send(2)
    scenario.settle()
    assert released(scenario)[2] == released(undisturbed)[2]
    assert released(scenario)[1] != released(undisturbed)[1]


def test_suppressed_epoch_stays_suppressed_after_redrive(tmp_path: Path) -> None:
    scenario = LateRegistrationScenario(
        SUMMED.replace(f"minimum: {HALF}", f"minimum: {HALF + 1}"), tmp_path, noise_key=KEY
    )
    scenario.north(1)
    first = scenario.send(1)
    scenario.settle()
    scenario.settle(later=61.0)
    assert scenario.world.manifests()[1].window_status is WindowStatus.SUPPRESSED
    scenario.register()
    assert scenario.redrive().kept == {"epoch is already finalized": first}
    for partition in range(2):
        for value in scenario.south.values(Role.REPORTS, partition):
            scenario.world.log.append(Append(Role.REPORTS, partition, value))
    scenario.settle(later=61.0)
    assert 1 not in released(scenario)
    assert scenario.world.manifests()[1].window_status is WindowStatus.SUPPRESSED
    scenario.world.shut()
