"""Test that samplers and privacy accounts match their definitions, and detect deviations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpstream.randomizers.affine_hashes import AffineHashes
from dpstream.randomizers.byte_generator import ByteGenerator
from dpstream.randomizers.composed import ComposedLaw
from dpstream.randomizers.dummies import ClusteredDummies, PoissonDummies
from dpstream.randomizers.noise_tables import NoiseTable
from dpstream.randomizers.normal_noise import NormalNoise
from dpstream.randomizers.randomness import cryptographic_generator, seeded_generator
from dpstream.randomizers.shuffled_counts import ShuffledCounts
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import ShuffledValueStream
from dpstream.randomizers.value_stream import ValueStream
from experiments.protocols.fragments.permanent_bits import PermanentBits
from experiments.protocols.ldp_sgd import LdpSgd
from tests.attacks import books, samplers
from tests.attacks.books import attack_device_accounts
from tests.attacks.samplers import compare, sampled_draws
from tests.attacks.scripts import scripted_draws

ALARM = 1e-11


def test_samplers_map_given_random_bits_to_the_correct_numbers() -> None:
    assert set(scripted_draws().values()) == {""}


def test_sampled_draws_follow_their_distributions() -> None:
    assert set(sampled_draws(cryptographic_generator(), 1e-9).values()) == {""}


def test_budgets_and_sums_stored_by_devices_match_what_they_send() -> None:
    assert set(attack_device_accounts(cryptographic_generator()).values()) == {""}


def failing_scripts() -> list[bool]:
    return list(map(bool, scripted_draws().values()))


def test_noise_table_that_ignores_low_random_bits_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def settled(table: NoiseTable, begins: Any, rng: np.random.Generator) -> Any:
        more = rng.integers(0, 1 << 64, len(begins), dtype=np.uint64)
        leading = begins.astype(np.uint64) << np.uint64(48) | more >> np.uint64(16)
        return np.searchsorted(table._leading[:-1], leading, side="right")

    monkeypatch.setattr(NoiseTable, "_settled", settled)
    assert failing_scripts() == [True, False, False]


@pytest.mark.parametrize("wrong", ["half", "without its last bits"])
def test_wrong_gaussian_noise_is_detected(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = NormalNoise.draw

    class Coarse:
        def __init__(self, rng: Any) -> None:
            self._rng = rng

        def integers(self, *arguments: Any, **named: Any) -> Any:
            return self._rng.integers(*arguments, **named) * np.array([1, 0], np.uint64)

    def half(noise: NormalNoise, rng: Any) -> int:
        return draw(noise, rng) // 2 if wrong == "half" else draw(noise, Coarse(rng))  # type: ignore[arg-type]

    monkeypatch.setattr(NormalNoise, "draw", half)
    assert failing_scripts() == [False, True, False]


def test_integers_drawn_by_modulo_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def modulo(generator: ByteGenerator, values: int, count: int) -> Any:
        width = 1 if values <= 256 else 2
        words = np.frombuffer(generator.bytes(count * width), f"<u{width}")
        return words.astype(np.uint64) % np.uint64(values)

    monkeypatch.setattr(ByteGenerator, "_below", modulo)
    assert failing_scripts() == [False, False, True]


def failing(names: Collection[str], seed: int = 1) -> set[str]:
    randomness = seeded_generator(seed)
    return {name for name in names if compare(*samplers.SAMPLED[name](randomness), ALARM)}


def test_comparison_with_a_distribution_has_the_declared_false_alarm_rate() -> None:
    law: dict[Hashable, float] = {0: 0.25, 1: 0.75}
    assert compare([0] * 30 + [1] * 90, law, 0.1) == ""
    assert compare([0] * 90 + [1] * 30, law, 1e-9)
    # A single draw of an impossible outcome is enough evidence.
    assert compare([2] + [1] * 20, law, 1e-9)
    # At a false alarm rate of a fifth, at most a fifth of the runs fail.
    drawn = seeded_generator(3).binomial(40, 0.75, 300).tolist()
    wrong = sum(bool(compare([1] * ones + [0] * (40 - ones), law, 0.2)) for ones in drawn)
    assert stats.binom.sf(wrong - 1, 300, 0.2) > 1e-9


def no_dummies(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    draw = PoissonDummies.draw
    monkeypatch.setattr(PoissonDummies, "draw", lambda *given: draw(*given)[:0])
    return {"Poisson dummies of three contributors", "clusters of dummies"}


def single_clusters(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    draw = ClusteredDummies.draw
    monkeypatch.setattr(ClusteredDummies, "draw", lambda *given: np.unique(draw(*given)))
    return {"clusters of dummies"}


def unweighted_signs(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    monkeypatch.setattr(ComposedLaw, "masses", property(lambda law: law.weights))
    return {"composed signs"}


def one_hash(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    draw = AffineHashes.draw
    monkeypatch.setattr(
        AffineHashes, "draw", lambda *given: np.full(len(given[1]), draw(*given)[:1])
    )
    return {"the words of an item"}


def labels_by_place(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    monkeypatch.setattr(
        samplers,
        "divide",
        lambda reports, instances, room, rng: (
            [reports[0:1], reports[1:2], reports[2:]]
            if isinstance(reports, np.ndarray)
            else [reports, *[type(reports)(reports.values[:0], reports.counts[:0])] * 2]
        ),
    )
    return {"labels of instances", "labels of counted messages"}


def answers_drawn_again(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    ones, rng = PermanentBits.ones, seeded_generator(5)
    monkeypatch.setattr(
        PermanentBits,
        "ones",
        lambda bits, keys, held: ones(bits, rng.integers(0, 256, keys.shape, np.uint8), held),
    )
    return {"permanent answers"}


@pytest.mark.parametrize(
    "breaking",
    [
        no_dummies,
        single_clusters,
        unweighted_signs,
        one_hash,
        labels_by_place,
        answers_drawn_again,
    ],
)
def test_wrong_samplers_are_detected(
    breaking: Callable[[pytest.MonkeyPatch], set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    named = breaking(monkeypatch)
    assert failing(named) == named


@pytest.mark.parametrize(
    ("devices", "array", "place"),
    [(ValueStream, "_left", 0), (ValueStream, "_sum", 0), (ShuffledValueStream, "_left", 1)],
)
def test_devices_that_do_not_update_budgets_or_sums_are_detected(
    devices: Any, array: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = devices.report

    def forgetting(device: Any, *given: Any) -> Any:
        kept = getattr(device, array).copy()
        sent = report(device, *given)
        getattr(device, array)[:] = kept
        return sent

    monkeypatch.setattr(devices, "report", forgetting)
    found = list(map(bool, attack_device_accounts(seeded_generator(6)).values()))
    assert found == [each == place for each in range(4)]


def test_devices_that_forget_past_changes_or_learning_steps_are_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forgetting(report: Any, array: str) -> Any:
        def sent(device: Any, *given: Any) -> Any:
            getattr(device, array)[:] = 0
            return report(device, *given)

        return sent

    monkeypatch.setattr(ShuffledCounts, "report", forgetting(ShuffledCounts.report, "_changes"))
    monkeypatch.setattr(LdpSgd, "report", forgetting(LdpSgd.report, "_steps"))
    found = list(map(bool, attack_device_accounts(seeded_generator(7)).values()))
    assert found == [False, False, True, True]


def test_too_little_noise_for_message_sums_is_detected() -> None:
    assert books._too_little_noise(10_000, 300, 1.0, 0.1) == ""
    assert "delta is at least" in books._too_little_noise(40_000, 300, 1.0, 0.1)
