"""Test deletion by the shuffler: its distribution, and identical rewrites of a window."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from fractions import Fraction
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_files import NoiseKey
from dpstream.pipeline.stages import crowd_deletion as deletion
from dpstream.pipeline.stages.crowd_deletion import left_of_crowds, numbers_left, uniform_choice
from dpstream.pipeline.stages.multisets import MessageMultiset
from dpstream.randomizers.crowds import CrowdCounts, CrowdsLaw
from dpstream.randomizers.crowds.calibration import calibrate
from dpstream.randomizers.randomness import cryptographic_generator, seeded_generator
from dpstream.randomizers.single_message import SingleMessageParameters
from dpstream.randomizers.single_message.calibration import calibrate as calibrate_messages
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.messages import Messages, pack_messages
from dpstream.topics.names import Role
from tests.support.killed_worlds import check_writings_when_killed
from tests.support.new_jobs import hidden_sizes
from tests.support.world import DEPLOYMENT, Accidents, Owner, World, world_job

KEY = NoiseKey(bytes(range(32)))
FALSE_ALARM = 1e-10
DRAWS = 200_000
CROWDS = ("old", "new", "rare")
MINIMUM = 4


class Choices:
    """Generator that returns given choices, and records the number of options of each."""

    def __init__(self, path: tuple[int, ...]) -> None:
        self.path = list(path)
        self.ranges: list[int] = []

    def integers(self, low: int, high: int, *, endpoint: bool) -> int:
        assert low == 0
        assert endpoint
        self.ranges.append(high + 1)
        return self.path.pop(0) if self.path else 0


def law_of_choice(counts: list[int], chosen: int) -> dict[tuple[int, ...], Fraction]:
    table = np.array(counts, np.int64)
    probe = Choices(())
    uniform_choice(table, chosen, probe)  # type: ignore[arg-type]
    law: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)
    paths = list(product(*(range(each) for each in probe.ranges)))
    for path in paths:
        subset = uniform_choice(table, chosen, Choices(path))  # type: ignore[arg-type]
        law[tuple(subset.tolist())] += Fraction(1, len(paths))
    return dict(law)


@pytest.mark.parametrize("counts", [[1, 1, 1, 1, 1], [2, 0, 3], [4, 1], [1, 3], [1], []])
def test_deletion_draws_subsets_of_messages_uniformly(counts: list[int]) -> None:
    owners = [kind for kind, count in enumerate(counts) for _ in range(count)]
    for chosen in range(len(owners) + 1):
        sets = list(combinations(owners, chosen))
        expected = Counter(tuple(each.count(kind) for kind in range(len(counts))) for each in sets)
        law = {subset: Fraction(count, len(sets)) for subset, count in expected.items()}
        assert law_of_choice(counts, chosen) == law


def law_of_messages(minimum: int = 1, crowds: int = 3) -> CrowdsLaw:
    parameters = SingleMessageParameters(1.0, 0.01, ("a", "b", "c"))
    messages = calibrate_messages(parameters, 1, minimum, 2)
    return CrowdsLaw(messages, crowds, calibrate(2.0, 0.05, 1))


def check_numbers(
    counts: CrowdCounts, drawn: Callable[[CrowdCounts, NDArray[np.int64], Any], NDArray[np.int64]]
) -> None:
    decay, noise = float(counts.ratio), np.arange(-200, 201)
    masses = (1 - decay) / (1 + decay) * decay ** np.abs(noise)
    assert masses.sum() == pytest.approx(1)
    for size in (60, counts.shift - 1):
        law = np.zeros(size + 1)
        np.add.at(law, np.clip(size + noise - counts.shift, 0, size), masses)
        remaining = drawn(counts, np.full(DRAWS, size), seeded_generator(7))
        shares = np.bincount(remaining, minlength=size + 1) / DRAWS
        distance = np.abs(np.cumsum(shares) - np.cumsum(law)).max()
        # The inequality of Dvoretzky, Kiefer and Wolfowitz.
        assert 2 * np.exp(-2 * DRAWS * distance**2) > FALSE_ALARM


def test_sizes_of_crowds_after_deletion_follow_their_distribution() -> None:
    counts = law_of_messages().counts
    check_numbers(counts, numbers_left)
    half = CrowdCounts((counts.decay[0] ** 2, counts.decay[1] ** 2), counts.shift, counts.delta)
    for mutant in (
        lambda _, sizes, rng: numbers_left(half, sizes, rng),
        lambda _, sizes, rng: sizes,
    ):
        with pytest.raises(AssertionError):
            check_numbers(counts, mutant)


def messages_of(law: CrowdsLaw, sizes: list[int], *, counted: bool) -> Messages:
    generator = seeded_generator(3)
    crowds = np.repeat(np.arange(len(sizes)), sizes)
    messages = generator.integers(0, 4 if counted else 200, (len(crowds), 1)).astype(np.uint8)
    canonical = Messages.canonical(law.messages_of(crowds, messages))
    assert (canonical.counts is not None) == counted
    return canonical


@pytest.mark.parametrize("counted", [False, True])
def test_messages_that_remain_are_a_subset_of_the_input(counted: bool) -> None:
    law = law_of_messages(minimum=20)
    words = messages_of(law, [50, 100, 400, 21], counted=counted)
    left = left_of_crowds(law, words, seeded_generator(1))
    crowds = law.crowds_of(np.repeat(left.values, counts_of(left), axis=0))
    numbers = np.bincount(crowds, minlength=4).tolist()
    expected = numbers_left(law.counts, np.array([100, 400, 21]), seeded_generator(1)).tolist()
    assert expected[2] < 20
    assert numbers == [0, *expected[:2], 0], "messages of no crowd and of small crowds are deleted"
    assert not multiset(left) - multiset(words)


def counts_of(words: Messages) -> NDArray[np.int64]:
    if words.counts is None:
        return np.ones(words.rows, np.int64)
    counts: NDArray[np.int64] = words.counts.astype(np.int64)
    return counts


def multiset(words: Messages) -> Counter[tuple[int, ...]]:
    every = np.repeat(words.values, counts_of(words), axis=0)
    return Counter(map(tuple, every.tolist()))


def check_uniform(choice: Callable[..., NDArray[np.int64]]) -> None:
    law = law_of_messages()
    size, runs = 40, 1500
    words = Messages(
        law.messages_of(np.ones(size, np.int64), np.arange(size, dtype=np.uint8)[:, None])
    )
    often = np.zeros(size, np.int64)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(deletion, "uniform_choice", choice)
        for run in range(runs):
            often[left_of_crowds(law, words, seeded_generator(run)).values[:, -1]] += 1
    deviation = np.abs(often - often.mean()).max() / np.sqrt(runs / 4)
    assert deviation < 8


def test_messages_are_deleted_uniformly() -> None:
    check_uniform(uniform_choice)

    def first(counts: NDArray[np.int64], chosen: int, rng: Any) -> NDArray[np.int64]:
        before = np.cumsum(counts) - counts
        deleted: NDArray[np.int64] = np.clip(chosen - before, 0, counts)
        return deleted

    with pytest.raises(AssertionError):
        check_uniform(first)


def test_encoding_of_a_window_depends_only_on_remaining_messages() -> None:
    law = law_of_messages(minimum=20)
    alone = messages_of(law, [0, 60], counted=False)
    many = law.messages_of(np.full(5000, 3), np.full((5000, 1), 2, np.uint8))
    both = MessageMultiset(law.message_format)
    for words in (alone, Messages(many)):
        both.add(words)
    assert both.sorted().counts is not None
    low = CrowdsLaw(law_of_messages(minimum=20).contents, 3, law.counts)

    def left(words: Messages) -> tuple[tuple[int, ...], bytes]:
        again = MessageMultiset(law.message_format)
        remaining = left_of_crowds(low, words, seeded_generator(5))
        crowds = low.crowds_of(remaining.values)
        rows = crowds == 1
        again.add(
            Messages(
                remaining.values[rows], None if remaining.counts is None else remaining.counts[rows]
            )
        )
        return pack_messages(again.sorted())

    with_others = MessageMultiset(law.message_format)
    with_others.add(alone)
    assert left(both.sorted())[0] == left(with_others.sorted())[0]


def deployed(**shuffle: object) -> DeployedJob:
    parameters = {"epsilon": 2, "delta": 0.05, "domain": ["a", "b"]}
    keys = {"count": 3, "minimum": MINIMUM, **hidden_sizes(CROWDS, 4, 0.5), **shuffle}
    job = world_job("crowds", "single_message", parameters, **keys)
    return job.model_copy(update={"noise_key": KEY.digest})


SIZES = {"north": {"old": 9, "new": 6, "rare": 1}, "south": {"old": 7, "new": 8, "rare": 1}}


def values_of(job: DeployedJob) -> dict[str, dict[int, dict[str, Any]]]:
    return {
        name: {
            epoch: {
                f"{name} {crowd} {user}": f"{crowd}: {'ab'[user % 2]}" if user % 3 else crowd
                for crowd, size in sizes.items()
                for user in range(size)
            }
            for epoch in (1, 2)
        }
        for name, sizes in SIZES.items()
    }


def world_of(job: DeployedJob, folder: Path, accidents: Accidents | None = None) -> World:
    return World(job, folder, values_of(job), accidents or Accidents(), noise_key=KEY)


def writings(world: World) -> dict[int, list[dict[int, Messages]]]:
    chunks_of_attempts: dict[tuple[int, bytes], dict[int, Messages]] = defaultdict(dict)
    whole = set()
    for partition in (0, 1):
        for value in world.log.values(Role.SHUFFLED, partition):
            chunk = decode_chunk(value)
            chunks = chunks_of_attempts[chunk.epoch, chunk.attempt]
            chunks[chunk.index] = chunk.words
            if len(chunks) == chunk.total:
                whole.add((chunk.epoch, chunk.attempt))
    attempts: dict[int, list[dict[int, Messages]]] = defaultdict(list)
    for place, chunks in chunks_of_attempts.items():
        if place in whole:
            attempts[place[0]].append(chunks)
    return attempts


def check_writings(world: World) -> int:
    """Check that all writes of a window have the same messages; return the number of writes."""
    written = 0
    for attempts in writings(world).values():
        multisets = [
            sum((multiset(words) for words in each.values()), Counter()) for each in attempts
        ]
        assert all(each == multisets[0] for each in multisets)
        if world.job.shuffle.order == "sorted":
            packed = [{i: pack_messages(words) for i, words in each.items()} for each in attempts]
            assert all(each == packed[0] for each in packed)
        written += len(attempts)
    return written


@pytest.mark.parametrize("order", ["sorted", "random"])
def test_messages_are_deleted_once_and_small_crowds_are_suppressed(
    folder: Path, order: str
) -> None:
    world = world_of(deployed(order=order), folder).run((1, 2))
    assert check_writings(world) == 2
    law = world.job.crowds_law
    assert law is not None
    sizes = np.array([sum(each[crowd] for each in SIZES.values()) for crowd in CROWDS])
    for epoch, record in world.published().items():
        left = numbers_left(law.counts, sizes, KEY.generator(DEPLOYMENT, epoch))
        manifest = world.manifests()[epoch]
        assert (manifest.contributors, manifest.population) == (32, 32)
        assert (record.contributors, record.population) == (32, 32)
        assert record.estimate is not None
        assert record.estimate.reports == left[left >= MINIMUM].sum()
        assert 1 + 2 * 3 in record.estimate.suppressed, "a crowd of two"
    shown = [record.estimate.to_json() for record in world.published().values() if record.estimate]
    assert shown[0] != shown[1], "each epoch has its own noise"


def test_manifests_and_heartbeats_contain_totals_only(folder: Path) -> None:
    """Crowd membership only changes messages, even if all users are in one crowd."""
    seen = []
    for moved in (False, True):
        world = world_of(deployed(), folder / str(moved))
        if moved:
            world.values = {
                name: {
                    epoch: {user: value.replace("new", "old") for user, value in users.items()}  # type: ignore[attr-defined]
                    for epoch, users in epochs.items()
                }
                for name, epochs in world.values.items()
            }
        for name in ("north", "south"):
            world.close_epoch(name, 1)
            world.settle(["shuffle"])
        heartbeat = world.workers["shuffle"].stage.heartbeat()
        sizes = [len(value) for value in world.log.values(Role.REPORTS, 1)]
        seen.append((world.manifests(), heartbeat, sizes, world.log.end(Role.REPORTS, 1)))
        world.shut()
    assert seen[0] == seen[1]
    assert seen[0][0][1].contributors == 32


@pytest.mark.slow
@pytest.mark.usefixtures("small_records")
@pytest.mark.parametrize("keep", [False, True], ids=["unflushed lost", "unflushed kept"])
def test_stage_recovers_when_killed_between_actions(folder: Path, keep: bool, stride: int) -> None:
    job = deployed()

    def run(place: Path, accidents: Accidents) -> World:
        return world_of(job, place, accidents).run((1, 2))

    check_writings_when_killed(run, folder, check_writings, keep=keep, stride=stride)


def written_twice(folder: Path) -> World:
    """Run a successor after its predecessor has written a window, but not committed."""
    world = world_of(deployed(), folder)
    world.close_all(1)
    owner = Owner(world, "shuffle", 0.0)
    while not writings(world):
        owner.step(1)
    owner.driver.fenced = True
    return world.finish()


def test_successor_of_a_killed_stage_writes_the_same_window(folder: Path) -> None:
    assert check_writings(written_twice(folder)) == 2


def test_fresh_noise_in_a_rewritten_window_is_detected(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NoiseKey, "generator", lambda *window: cryptographic_generator())
    # All 32 messages can be identical by chance, so several windows are checked.
    worlds = [written_twice(folder / str(number)) for number in range(5)]

    def check_all() -> None:
        for world in worlds:
            check_writings(world)

    with pytest.raises(AssertionError):
        check_all()


def test_window_below_the_minimum_is_suppressed_including_all_crowds(folder: Path) -> None:
    world = world_of(deployed(minimum=33), folder).run((1, 2))
    assert [record.window_status for record in world.published().values()] == [
        WindowStatus.SUPPRESSED
    ] * 2
    assert not world.log.values(Role.SHUFFLED, 0) + world.log.values(Role.SHUFFLED, 1)


def test_all_crowds_of_a_released_window_can_be_suppressed(folder: Path) -> None:
    world = world_of(deployed(minimum=30), folder).run((1, 2))
    for record in world.published().values():
        assert record.window_status is WindowStatus.RELEASED
        assert record.estimate is not None
        assert record.headline is None
        assert len(record.estimate.numbers) == 0
        assert record.estimate.suppressed == (1, 4, 7)
    assert all(not payload.strip(b"\0") for payload in world.integers().values())


def test_deletion_with_a_given_key_is_the_same_in_every_version() -> None:
    """A worker of another version must delete the same messages, or noise would be drawn twice."""
    law = law_of_messages(minimum=20)
    words = messages_of(law, [50, 100, 400, 40], counted=False)
    left = left_of_crowds(law, words, KEY.generator(DEPLOYMENT, 1))
    numbers = np.bincount(law.crowds_of(left.values), minlength=4).tolist()
    gone = multiset(words) - multiset(left)
    named = sorted(row for row in gone.elements() if row[0] == 1)
    assert (numbers, named) == PINNED


PINNED = ([0, 95, 396, 38], [(1, 25), (1, 43), (1, 77), (1, 115), (1, 163)])
