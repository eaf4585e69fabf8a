"""Broken mechanisms are convicted by the attack that is to see them, and what is whole is not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from randomgen import AESCounter

from pipeline.actions import Steps
from pipeline.audit import randomness
from pipeline.audit.draws import compare_draws
from pipeline.audit.exact import enumerate_losses
from pipeline.audit.findings import Finding
from pipeline.audit.linkage import Linkage
from pipeline.audit.more_examples import more_examples
from pipeline.audit.plans import FULL, WINDOWS, noise_of_stage
from pipeline.audit.randomness import attack_generators, attack_randomness
from pipeline.audit.sampling import Sample
from pipeline.audit.side_channels import compare_neighbours
from pipeline.audit.subjects import job_of
from pipeline.audit.targets import History, Windows
from pipeline.conformance.cases import Case
from pipeline.conformance.finding import find_cases
from pipeline.devices.producer import Producer
from pipeline.devices.producer_store import ProducerStore
from pipeline.protocols.registry import PROTOCOLS
from pipeline.stages.multisets import WordMultiset
from pipeline.stages.ordered_pieces import Pieces
from pipeline.stages.shuffle_stage import ShuffleStage
from pipeline.stages.stage_noise import StageNoise
from randomizers.count_mean_sketch import CountMeanSketch
from randomizers.counted_words import CountedWords
from randomizers.future_rand import FutureRand
from randomizers.memoized_response import MemoizedResponse
from randomizers.public_matrices import ParityRows
from randomizers.randomness import seeded_generator
from topics.words import Words

ALARM = 1e-11


def case_of(name: str, number: int = 0) -> Case:
    return find_cases(name)[number]


def with_entry(case: Case, **changed: Any) -> Case:
    return replace(case, protocol=replace(case.protocol, **changed))


def draws(case: Case) -> Finding:
    return compare_draws(case, seeded_generator(8), windows=60, together=20_000, false_alarm=ALARM)


def any_convicted(findings: Iterable[Finding]) -> bool:
    return any(finding.convicted for finding in findings)


def test_half_the_noise_is_convicted() -> None:
    """Devices and law have twice the epsilon that is claimed."""
    case = case_of("future_rand")
    entry = case.protocol

    def loud(parameters: Any, last_epoch: int, minimum: int) -> Any:
        return entry.calibrate(replace(parameters, epsilon=2 * parameters.epsilon), last_epoch, 1)

    class Claiming(FutureRand):
        @property
        def guarantee(self) -> Any:
            stated = super().guarantee
            return replace(stated, epsilon=stated.epsilon / 2)

    broken = with_entry(case, calibrate=loud, randomizer=Claiming)
    (finding,) = enumerate_losses(broken)
    assert finding.convicted
    assert finding.observed == pytest.approx(2.0, abs=1e-6)
    assert not any_convicted(enumerate_losses(case))


def test_a_sign_vector_that_is_drawn_anew_at_each_epoch_is_convicted() -> None:
    """Each report alone is as it should be: what gives it away are several of them."""

    class Forgetful(FutureRand):
        def report(
            self,
            epoch: int,
            values: NDArray[Any],
            present: NDArray[np.bool_] | None,
            rng: np.random.Generator,
        ) -> Any:
            kept = self._order.copy()
            drawn = self._draw(self.population, rng)
            self._signs[kept == drawn["order"]] = drawn["signs"][kept == drawn["order"]]
            return super().report(epoch, values, present, rng)

    case = with_entry(case_of("future_rand", 1), randomizer=Forgetful)
    assert "draws signs again at epoch 1, which was drawn at enrolment" in [
        each.reason for each in attack_randomness(case)
    ]


class Biased:
    """Coins that come up low more often."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rng, name)

    def integers(self, *arguments: Any, **named: Any) -> Any:
        drawn = self._rng.integers(*arguments, **named)
        return drawn // 2 if isinstance(drawn, np.ndarray) and drawn.dtype == np.uint64 else drawn


@pytest.mark.parametrize("name", ["split_budget", "value_stream", "future_rand"])
def test_a_biased_coin_is_convicted(name: str) -> None:
    case = case_of(name)
    rng: Any = Biased(seeded_generator(8))
    finding = compare_draws(case, rng, windows=60, together=20_000, false_alarm=ALARM)
    assert finding.convicted
    assert not draws(case).convicted


def test_devices_without_their_dummies_are_convicted() -> None:
    case = case_of("shuffled_counts")
    assert not draws(case).convicted
    without = noise_of_stage(case)
    assert without is not None
    law, randomizer = without.law, case.protocol.randomizer
    silent = with_entry(case, randomizer=lambda _: randomizer(law))
    assert draws(silent).convicted


def test_a_row_that_follows_from_the_item_is_convicted() -> None:
    """What four devices send together is rare, whatever it is: each word by itself is not."""

    class Telling(CountMeanSketch):
        def _messages(
            self, rows: NDArray[np.int64], items: NDArray[np.int64], rng: np.random.Generator
        ) -> CountedWords:
            return super()._messages(items % self.law.rows, items, rng)

    case = case_of("count_mean_sketch")
    assert not draws(case).convicted
    assert "at least 1 times in a window" in draws(with_entry(case, randomizer=Telling)).reason


@pytest.mark.parametrize("name", ["bucket", "jl_hh"])
def test_items_that_are_replaced_and_charged_like_removed_ones_are_convicted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (case,) = more_examples(name)
    assert not any_convicted(enumerate_losses(case))
    monkeypatch.setattr(ParityRows, "moved", lambda self, *, removal: ((self.filled, 1),))
    (case,) = more_examples(name)
    assert any_convicted(enumerate_losses(case))


def released(case: Case, trials: int) -> Finding:
    job = job_of(case, epochs=1, minimum=case.minimum)
    sample = Sample("it", WINDOWS, job, Windows(job), job.guarantee(), trials, searched=False)
    released, _ = sample.run(seeded_generator(9), ALARM)
    return released


@pytest.mark.parametrize(
    "name", [pytest.param("count_min", marks=pytest.mark.verify), "shuffled_counts"]
)
def test_a_stage_without_its_dummies_is_convicted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = noise_of_stage(case_of(name), 0.4)
    assert case is not None
    assert not released(case, 70).convicted
    monkeypatch.setattr(StageNoise, "dummies", lambda noise, epoch, lane=None: None)
    finding = released(case, 70)
    assert finding.convicted
    assert "can be told from" in finding.reason


@pytest.mark.parametrize(
    ("name", "epochs"),
    [
        ("split_budget", 1),
        ("independent_response", 2),
        pytest.param("future_rand", 8, marks=pytest.mark.verify),
        pytest.param("value_stream", 8, marks=pytest.mark.verify),
    ],
)
def test_a_loss_1_3_times_as_large_as_claimed_is_convicted_by_samples(
    name: str, epochs: int
) -> None:
    """At fewer trials than an audit draws unless it is told otherwise."""
    job = job_of(case_of(name), epochs=epochs, minimum=1)
    honest = job.guarantee()
    for factor, convicted in ((1.3, True), (1.0, False)):
        claimed = replace(honest, epsilon=honest.epsilon / factor)
        sample = Sample("it", ("reports",), job, History(job), claimed, FULL.together // 4)
        (finding,) = sample.run(seeded_generator(10), ALARM)
        assert finding.convicted == convicted


@pytest.mark.parametrize("name", PROTOCOLS)
def test_devices_that_are_run_as_one_send_what_each_sends_alone(name: str) -> None:
    """Their histories, by whose reports are said to be whose, have the exact law of one device."""
    case = case_of(name)
    if case.protocol.needs_shuffle:
        return
    finding = compare_draws(
        case, seeded_generator(12), windows=2, together=5_000, false_alarm=ALARM
    )
    assert not finding.convicted, finding.reason
    devices = case.protocol.randomizer(case.law)
    devices.enrol(1, seeded_generator(1))
    said = case.last_epoch == 1 or devices.due(1) is not None
    assert ("whole histories" in finding.what) == said


def test_reports_that_are_said_to_be_of_others_are_convicted() -> None:
    """Of devices that report at some epochs only, and of others whose reports go together."""

    class Mistaken(FutureRand):
        def due(self, epoch: int) -> NDArray[np.intp]:
            return np.roll(super().due(epoch), epoch)

    assert draws(with_entry(case_of("future_rand", 1), randomizer=Mistaken)).convicted

    class Turned(MemoizedResponse):
        def due(self, epoch: int) -> NDArray[np.intp]:
            return np.roll(super().due(epoch), epoch)

    assert draws(with_entry(case_of("memoized_response"), randomizer=Turned)).convicted


def test_a_shuffle_that_keeps_the_order_is_convicted(monkeypatch: pytest.MonkeyPatch) -> None:
    for order in ("sorted", "random"):
        assert not Linkage(order, 40).run(seeded_generator(11), ALARM).convicted

    def as_they_came(multiset: Any, *generator: Any) -> Words:
        return Words(np.concatenate(multiset._plain))

    def pieces_as_they_came(multiset: Any, generator: Any) -> Steps[Pieces]:
        yield from ()
        return Pieces.of([as_they_came(multiset)])

    monkeypatch.setattr(WordMultiset, "permuted", pieces_as_they_came)
    monkeypatch.setattr(WordMultiset, "sorted", as_they_came)
    for order in ("sorted", "random"):
        finding = Linkage(order, 40).run(seeded_generator(11), ALARM)
        assert finding.convicted
        assert "order in which reports arrived" in finding.reason


def test_a_stage_that_releases_too_small_windows_is_convicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = case_of("split_budget")
    assert not compare_neighbours(case, seed=4, released=False).convicted
    job = job_of(case, epochs=4, minimum=120)
    shuffle = job.shuffle.model_copy(update={"minimum": 1})
    init = ShuffleStage.__init__

    def careless(stage: Any, job: Any, **named: Any) -> None:
        init(stage, job.model_copy(update={"shuffle": shuffle}), **named)

    monkeypatch.setattr(ShuffleStage, "__init__", careless)
    finding = compare_neighbours(case, seed=4, released=False)
    assert finding.convicted
    assert "below the minimum" in finding.reason


class TestRandomness:
    def test_what_is_whole_is_acquitted(self) -> None:
        assert not any_convicted(attack_generators())
        assert not any_convicted(attack_randomness(case_of("future_rand")))

    def test_a_seed_that_forks_share_is_convicted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shared = np.random.Generator(AESCounter())
        monkeypatch.setattr(randomness, "cryptographic_generator", lambda: shared)
        assert any_convicted(attack_generators())

    def test_another_generator_is_convicted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(randomness, "cryptographic_generator", np.random.default_rng)
        assert any_convicted(attack_generators())

    def test_an_epoch_that_is_drawn_again_after_a_crash_is_convicted(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        set_fact = ProducerStore.set_fact

        def forgetting(store: ProducerStore, name: str, value: Any) -> None:
            if name != "closed_epoch":
                set_fact(store, name, value)

        monkeypatch.setattr(ProducerStore, "set_fact", forgetting)
        found = [each.reason for each in attack_randomness(case_of("split_budget"))]
        assert "draws an epoch again that was drawn before a crash" in found

    def test_an_epoch_that_is_not_sent_as_it_was_drawn_is_convicted(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        send, calls = Producer._send, [0]

        def once(producer: Producer) -> Any:
            calls[0] += 1
            # The first producer registers and draws; the one after the crash sends nothing.
            return send(producer) if calls[0] <= 2 else iter(())

        monkeypatch.setattr(Producer, "_send", once)
        found = [each.reason for each in attack_randomness(case_of("split_budget"))]
        assert "sends other bytes after a crash than were drawn before it" in found

    def test_a_secret_in_a_heartbeat_is_convicted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        case = case_of("fragments", 6)
        told: list[str] = []
        report = Producer.close

        def telling(producer: Producer, epoch: int) -> None:
            told.extend(row.tobytes().hex() for row in producer.store.arrays()["key"])
            report(producer, epoch)

        heartbeat = ShuffleStage.heartbeat
        assert not any_convicted(attack_randomness(case))
        monkeypatch.setattr(Producer, "close", telling)
        monkeypatch.setattr(
            ShuffleStage, "heartbeat", lambda stage: {**heartbeat(stage), "told": told}
        )
        assert any("stands in a topic" in each.reason for each in attack_randomness(case))
