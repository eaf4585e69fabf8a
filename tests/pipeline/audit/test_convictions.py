"""Broken mechanisms are convicted by the attack that is to see them.

That what is installed is acquitted is in `test_quick_audit`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.pipeline.audit.draws import compare_draws
from dpstream.pipeline.audit.exact import enumerate_losses
from dpstream.pipeline.audit.findings import Finding
from dpstream.pipeline.audit.more_examples import more_examples
from dpstream.pipeline.audit.plans import FULL, WINDOWS, noise_of_stage
from dpstream.pipeline.audit.sampling import Sample
from dpstream.pipeline.audit.subjects import job_of
from dpstream.pipeline.audit.targets import History, Windows
from dpstream.pipeline.conformance.cases import Case
from dpstream.pipeline.stages.stage_noise import StageNoise
from dpstream.randomizers.count_mean_sketch import CountMeanSketch
from dpstream.randomizers.counted_words import CountedWords
from dpstream.randomizers.future_rand import FutureRand
from dpstream.randomizers.memoized_response import MemoizedResponse
from dpstream.randomizers.public_matrices import ParityRows
from dpstream.randomizers.randomness import seeded_generator
from tests.attacks.examples import case_of, with_entry

ALARM = 1e-11


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


def test_devices_without_their_dummies_are_convicted() -> None:
    case = case_of("shuffled_counts")
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
    assert "at least 1 times in a window" in draws(with_entry(case, randomizer=Telling)).reason


@pytest.mark.parametrize("name", ["bucket", "jl_hh"])
def test_items_that_are_replaced_and_charged_like_removed_ones_are_convicted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    monkeypatch.setattr(StageNoise, "dummies", lambda noise, epoch: None)
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
