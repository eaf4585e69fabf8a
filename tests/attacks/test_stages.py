"""Test that attacks on stages find broken guarantees, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_files import NoiseKey
from dpstream.pipeline.stages import crowd_deletion, window_writer
from dpstream.pipeline.stages.decision_log import DecisionLog
from dpstream.pipeline.stages.device_windows import DeviceWindow
from dpstream.pipeline.stages.shuffle_stage import ShuffleStage
from dpstream.pipeline.stages.stage_noise import StageNoise
from dpstream.pipeline.stages.window_decision import WindowDecision
from dpstream.pipeline.stages.window_writer import ProducerWindows
from dpstream.pipeline.stages.windows import Drawing, Window
from dpstream.randomizers.randomness import (
    cryptographic_generator,
    keyed_generator,
    seeded_generator,
)
from dpstream.topics import sealed_messages
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.shares import ShareSum
from tests.attacks.ciphertexts_and_shares import attack_ciphertexts_and_shares
from tests.attacks.crowds_left import MINIMUM, attack_crowds
from tests.attacks.device_windows import attack_device_windows
from tests.attacks.membership import attack_membership
from tests.attacks.noise_of_stages import attack_dummies, attack_sums
from tests.attacks.written_again import attack_written_again
from tests.support.thinned import thinned

Patch = pytest.MonkeyPatch
Attacking = Callable[[], Iterator[str]]

ATTACKS: Mapping[str, Attacking] = {
    "membership": attack_membership,
    "rewritten windows": attack_written_again,
    "dummies of the stage": attack_dummies,
    "sums of the stage": attack_sums,
    "windows of devices": attack_device_windows,
    "ciphertexts and shares": attack_ciphertexts_and_shares,
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_finds_no_violation(name: str) -> None:
    assert list(ATTACKS[name]()) == []


@pytest.mark.parametrize("windows", [400, pytest.param(10_000, marks=pytest.mark.verify)])
def test_crowd_sizes_after_deletion_follow_their_distribution(windows: int) -> None:
    assert attack_crowds(windows, cryptographic_generator(), 1e-9) == ""


def minimum_less_one(patch: Patch) -> None:
    def window_status(decision: Any, contributors: int) -> WindowStatus:
        minimum = decision._job.shuffle.minimum - 1
        return WindowStatus.RELEASED if contributors >= minimum else WindowStatus.SUPPRESSED

    patch.setattr(WindowDecision, "_window_status", window_status)


def batches_counted_twice(patch: Patch) -> None:
    add = Window._add_batch

    def again(window: Window, batch: Any) -> bool:
        drawing = window._drawing(window._contribution(batch.enrollment), batch.batch[:8])
        if batch.batch in drawing.batches:
            drawing.words.add(batch.words)
        return add(window, batch)

    patch.setattr(Window, "_add_batch", again)


def ended_by_punctuation(patch: Patch) -> None:
    patch.setattr(Drawing, "whole", property(lambda sent: sent.punctuation is not None))


def unknown_users_accepted(patch: Patch) -> None:
    patch.setattr(ShuffleStage, "_unexpected", lambda *record: None)


def all_producers_written(patch: Patch) -> None:
    """Include late reports of all producers when a window is read again."""
    read = ProducerWindows.read
    patch.setattr(
        ProducerWindows,
        "read",
        lambda windows, manifest: read(windows, replace(manifest, cut_offset=1 << 40)),
    )
    patch.setattr(
        window_writer,
        "drawings_in",
        lambda manifest, registry: {each.enrollment: None for each in registry},
    )


def later_manifests_count(patch: Patch) -> None:
    apply = DecisionLog.apply

    def again(log: DecisionLog, record: Any) -> None:
        log.decided = type(log.decided)()
        apply(log, record)

    patch.setattr(DecisionLog, "apply", again)


def noise_drawn_again(patch: Patch) -> None:
    patch.setattr(NoiseKey, "generator", lambda *window: cryptographic_generator())


def noise_of_one_epoch(patch: Patch) -> None:
    generator = NoiseKey.generator
    patch.setattr(NoiseKey, "generator", lambda key, where, epoch: generator(key, where, 1))


def noise_of_one_deployment(patch: Patch) -> None:
    generator = NoiseKey.generator
    patch.setattr(NoiseKey, "generator", lambda key, where, epoch: generator(key, bytes(16), epoch))


def noise_without_key(patch: Patch) -> None:
    def known(key: NoiseKey, where: bytes, epoch: int) -> np.random.Generator:
        return keyed_generator(where + bytes(8) + epoch.to_bytes(8))

    patch.setattr(NoiseKey, "generator", known)


def no_dummies(patch: Patch) -> None:
    patch.setattr(StageNoise, "dummies", lambda noise, epoch: None)


def any_key(patch: Patch) -> None:
    def careless(noise: Any, job: DeployedJob, key: NoiseKey | None) -> None:
        noise._job, noise._key = job, key

    patch.setattr(StageNoise, "__init__", careless)


def messages_instead_of_sums(patch: Patch) -> None:
    patch.setattr(StageNoise, "sum", lambda noise, epoch, words: words)


def copies_are_devices(patch: Patch) -> None:
    patch.setattr(DeviceWindow, "devices", property(lambda window: window.messages))


def copies_of_ciphertexts(patch: Patch) -> None:
    def all_of_them(window: Any) -> Iterator[Any]:
        for rows in window._contents.first_of_each():
            yield rows[:, 8 * window._sealed :]

    patch.setattr(DeviceWindow, "_one_of_each", all_of_them)


def ciphertexts_as_they_came(patch: Patch) -> None:
    patch.setattr(sealed_messages, "sorted", list, raising=False)


def equal_seeds(patch: Patch) -> None:
    patch.setattr("tests.attacks.ciphertexts_and_shares.secrets.token_bytes", bytes)


def sums_of_one(patch: Patch) -> None:
    patch.setattr(ShareSum, "of_fewer_than", lambda total, devices: min(total.contributors) < 1)


@pytest.mark.parametrize(
    ("attacking", "broken", "reason"),
    thinned(
        [
            (attack_membership, minimum_less_one, "a window of 3 devices is released"),
            (attack_membership, batches_counted_twice, "contains reports other"),
            (attack_membership, ended_by_punctuation, "reports other than those"),
            (attack_membership, unknown_users_accepted, "contains reports other"),
            (attack_written_again, all_producers_written, "two versions"),
            (attack_written_again, noise_drawn_again, "two versions"),
            (attack_written_again, later_manifests_count, "two versions"),
            (attack_dummies, no_dummies, "the same noise or none"),
            (attack_dummies, noise_of_one_epoch, "all windows have the same noise"),
            (attack_dummies, noise_drawn_again, "changes when it is drawn again"),
            (attack_dummies, any_key, "a worker with another noise key"),
            (attack_sums, noise_of_one_epoch, "all windows have the same noise"),
            (attack_sums, noise_of_one_deployment, "two deployments have the same noise"),
            (attack_sums, noise_without_key, "does not depend on the key"),
            (attack_sums, messages_instead_of_sums, "releases 6 messages"),
            (attack_device_windows, copies_are_devices, "a manifest declares 21 devices"),
            (
                attack_device_windows,
                copies_of_ciphertexts,
                "a manifest declares 24 devices",
            ),
            (
                attack_ciphertexts_and_shares,
                ciphertexts_as_they_came,
                "keep the order of their reports",
            ),
            (attack_ciphertexts_and_shares, equal_seeds, "two tables have the same share"),
            (attack_ciphertexts_and_shares, sums_of_one, "forwards the sum of 1 devices"),
        ],
        2,
    ),
)
def test_broken_guarantee_is_detected(
    attacking: Attacking, broken: Callable[[Patch], None], reason: str, monkeypatch: Patch
) -> None:
    broken(monkeypatch)
    assert reason in next(attacking(), "")


def half_the_noise(patch: Patch) -> None:
    numbers = crowd_deletion.numbers_left

    def quiet(counts: Any, sizes: Any, generator: Any) -> Any:
        half = replace(counts, decay=(counts.decay[0] ** 2, counts.decay[1] ** 2))
        return numbers(half, sizes, generator)

    patch.setattr(crowd_deletion, "numbers_left", quiet)


def small_ones_released(patch: Patch) -> None:
    numbers = crowd_deletion.numbers_left
    patch.setattr(
        crowd_deletion,
        "numbers_left",
        lambda counts, sizes, generator: np.maximum(numbers(counts, sizes, generator), MINIMUM),
    )


def first_ones_deleted(patch: Patch) -> None:
    def first(counts: Any, chosen: int, generator: Any) -> Any:
        return np.clip(chosen - (np.cumsum(counts) - counts), 0, counts)

    patch.setattr(crowd_deletion, "uniform_choice", first)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (half_the_noise, "differs by"),
        (small_ones_released, "differs by"),
        (first_ones_deleted, "depends on their position"),
    ],
)
def test_incorrect_deletion_of_messages_from_crowds_is_detected(
    broken: Callable[[Patch], None], reason: str, monkeypatch: Patch
) -> None:
    broken(monkeypatch)
    assert reason in attack_crowds(300, seeded_generator(3), 1e-11)
