"""Test that reports requeued for noisy sums are released once, with one noise.

The difference of two sums of nearly the same words with the same noise is a few words; the mean of
two sums with different noises reveals more than either.
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
from tests.support.late_registration import EPOCHS, HALF, Story

KEY = NoiseKey(bytes(range(32)))
SUMMED = (
    "name: small\nprotocol: shuffled_counts\n"
    "parameters: {epsilon: 1, delta: 1e-6, max_changes: 1, dummies: shuffle}\n"
    # All epochs are over before a story starts, so windows wait for the grace period only.
    f"epochs: {{count: {EPOCHS}, start: '2023-01-01', length: PT1H}}\n"
    f"shuffle: {{producers: 2, minimum: {HALF}}}\ntopics: {{partitions: 2}}\n"
)


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    made = summed(tmp_path / "story")
    yield made
    made.world.shut()


@pytest.fixture
def undisturbed(tmp_path: Path) -> Iterator[Story]:
    made = summed(tmp_path / "undisturbed")
    made.register()
    made.north(1, 2)
    made.send(1, 2)
    made.settle()
    yield made
    made.world.shut()


def summed(folder: Path) -> Story:
    story = Story(SUMMED, folder, noise_key=KEY)
    law = story.job.law
    assert isinstance(law, ShuffledValueStreamLaw)
    assert law.boost > 0, "words are rounded at random"
    return story


def released(story: Story) -> dict[int, int]:
    words: defaultdict[int, set[int]] = defaultdict(set)
    for partition in range(2):
        for value in story.world.log.values(Role.SHUFFLED, partition):
            chunk = decode_chunk(value)
            assert (chunk.index, chunk.total, chunk.words.counts) == (0, 1, None)
            ((word,),) = chunk.words.values.tolist()
            words[chunk.epoch].add(word)
    assert {len(written) for written in words.values()} <= {1}, "two sums of an epoch"
    return {epoch: word for epoch, (word,) in words.items()}


def count_of(story: Story, epoch: int) -> float:
    """Return the count of value 1 in a sum of the first epoch, without its noise."""
    law = story.job.law
    assert isinstance(law, ShuffledValueStreamLaw)
    noise = law.noise.draw(KEY.generator(story.job.deployment, epoch))
    users = story.world.manifests()[epoch].contributors
    return ((released(story)[epoch] - SUM_ZERO - noise) / STEPS + users / 2) / (1 + law.boost)


def test_what_was_refused_and_fed_back_is_in_the_one_sum(story: Story, undisturbed: Story) -> None:
    story.north(1, 2)
    sent = story.send(1, 2)
    story.settle()
    assert not released(story)
    story.register()
    assert sum(story.redrive().requeued.values()) == sent
    story.settle()
    assert released(story) == released(undisturbed)
    assert released(story).keys() == {1, 2}
    # A third of all devices have the value 1, and each message is off by at most one step.
    assert count_of(story, 1) == pytest.approx(2 * HALF / 3, abs=2 * HALF / STEPS)
    assert story.world.integers() == undisturbed.world.integers()
    # Nor do later records change it.
    assert story.redrive().requeued == {}
    story.send(1, 2)
    story.settle(later=61.0)
    assert released(story) == released(undisturbed)


def test_what_is_fed_back_twice_is_added_once(story: Story, undisturbed: Story) -> None:
    """The command ends after everything was acknowledged, before it could record that."""
    story.north(1, 2)
    sent = story.send(1, 2)
    story.settle()
    story.register()
    story.die_redriving()
    assert sum(story.redrive().requeued.values()) == sent
    story.settle()
    assert released(story) == released(undisturbed)
    assert story.world.integers() == undisturbed.world.integers()


def test_a_sum_that_was_released_stays_the_same_word(story: Story, undisturbed: Story) -> None:
    """South arrives after its epoch was released without it: requeued, or sent manually."""
    story.north(1)
    first = story.send(1)
    story.settle()
    story.settle(later=61.0)
    before = released(story)
    assert before.keys() == {1}
    assert story.world.manifests()[1].contributors == HALF
    assert count_of(story, 1) == pytest.approx(HALF / 3, abs=HALF / STEPS)
    integers = story.world.integers()
    story.register()
    done = story.redrive()
    assert (done.requeued, done.kept) == ({}, {"epoch is already finalized": first})
    story.send(1)
    # A restarted stage has only the written records.
    story.world.kill("shuffle")
    story.settle(later=61.0)
    assert released(story) == before
    assert story.world.integers() == integers
    assert story.world.manifests()[1].contributors == HALF
    # The next epoch includes everyone, with independent noise.
    story.north(2)
    story.send(2)
    story.settle()
    assert released(story)[2] == released(undisturbed)[2]
    assert released(story)[1] != released(undisturbed)[1]


def test_suppressed_epoch_is_never_released_whatever_is_fed_back(tmp_path: Path) -> None:
    story = Story(
        SUMMED.replace(f"minimum: {HALF}", f"minimum: {HALF + 1}"), tmp_path, noise_key=KEY
    )
    story.north(1)
    first = story.send(1)
    story.settle()
    story.settle(later=61.0)
    assert story.world.manifests()[1].window_status is WindowStatus.SUPPRESSED
    story.register()
    assert story.redrive().kept == {"epoch is already finalized": first}
    for partition in range(2):
        for value in story.south.values(Role.REPORTS, partition):
            story.world.log.append(Append(Role.REPORTS, partition, value))
    story.settle(later=61.0)
    assert 1 not in released(story)
    assert story.world.manifests()[1].window_status is WindowStatus.SUPPRESSED
    story.world.shut()
