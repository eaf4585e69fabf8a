"""Test that enumeration finds the exact loss, and that understated claims fail the audit."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from dpstream.pipeline.audit.audits import AuditOutcome, Finding
from dpstream.pipeline.audit.draw_comparison import compare_draws
from dpstream.pipeline.audit.exact import enumerate_losses, largest_loss
from dpstream.pipeline.audit.plans import (
    FULL,
    WINDOWS,
    attack_law,
    job_of,
    noise_of_stage,
    with_constants_of,
)
from dpstream.pipeline.audit.sampling import Sample
from dpstream.pipeline.audit.targets import DeviceHistory, Windows
from dpstream.pipeline.conformance.cases import Case
from dpstream.pipeline.jobs.descriptions import described
from dpstream.pipeline.json_values import json_fields
from dpstream.pipeline.stages.stage_noise import StageNoise
from dpstream.randomizers.future_rand import FutureRand
from dpstream.randomizers.randomness import seeded_generator
from experiments.protocols.baselines import MemoizedResponse
from tests.attacks.attacked_devices import device_job
from tests.attacks.examples import case_of, with_entry


def claiming(case: Case, **changed: Any) -> Any:
    return replace(case.protocol.randomizer(case.law).guarantee, **changed)


@pytest.mark.parametrize(("name", "claimed"), [("future_rand", 1.0), ("split_budget", 1.0)])
def test_observed_loss_equals_an_exact_guarantee(name: str, claimed: float) -> None:
    (finding,) = enumerate_losses(case_of(name))
    assert finding.outcome is AuditOutcome.EXACT
    assert finding.observed == pytest.approx(claimed, abs=1e-9)
    assert finding.false_alarm == 0


def test_observed_loss_does_not_depend_on_the_claimed_epsilon() -> None:
    case = case_of("shuffled_counts")
    (finding,) = enumerate_losses(case)
    assert (finding.claimed, finding.delta) == (1.5, 0.05)
    # The observed loss is independent of the claim.
    for claimed in (1.5, 3.0):
        observed = largest_loss(case, claiming(case, epsilon=claimed)).observed
        assert observed == pytest.approx(1.5, abs=1e-3)


def test_losses_of_one_epoch_and_of_all_epochs_are_observed() -> None:
    epoch, stream = enumerate_losses(case_of("projective_geometry"))
    assert epoch.observed == pytest.approx(1.0)
    assert stream.observed == pytest.approx(2.0)


@pytest.mark.parametrize("less", [1e-12, 0.1])
def test_audit_detects_an_understated_epsilon(less: float) -> None:
    case = case_of("future_rand")
    finding = largest_loss(case, claiming(case, epsilon=1.0 - less))
    assert finding.failed
    assert "can be distinguished from" in finding.reason


def test_audit_detects_an_understated_delta() -> None:
    case = case_of("shuffled_counts")
    assert largest_loss(case, claiming(case, delta=0.0499)).failed
    assert not largest_loss(case, claiming(case, delta=0.0501)).failed


def test_outcome_possible_for_only_one_neighbor_has_infinite_loss() -> None:
    class Open(Case):
        views = {(0,): {(((0,),),): Fraction(1)}, (1,): {(((1,),),): Fraction(1)}}  # noqa: RUF012

    case = case_of("split_budget")
    opened = Open(case.protocol, 0, case.make_exact)
    finding = largest_loss(opened, claiming(case))
    assert finding.failed
    assert finding.observed == math.inf
    assert json_fields(finding)["observed"] == "infinite"


def why(findings: Iterable[Finding]) -> str:
    return next((finding.reason for finding in findings if finding.failed), "")


def test_audit_detects_altered_constants_in_a_deployed_job() -> None:
    job = device_job()
    signed = described(job, Ed25519PrivateKey.generate())
    assert not why(attack_law(signed, job))
    loud = device_job(parameters={"epsilon": 2, "max_changes": 2})
    tampered = with_constants_of(loud, signed)
    assert "its constants have epsilon 2, delta 0; its parameters guarantee epsilon 1" in why(
        attack_law(tampered, job)
    )
    assert "the constants sent to devices differ" in why(attack_law(tampered, loud))
    description = signed.signed_description
    assert description is not None
    forged = description.model_copy(update={"signature": bytes(64)})
    altered = signed.model_copy(update={"signed_description": forged})
    assert "does not match its stated key" in why(attack_law(altered, job))


ALARM = 1e-11


def draws(case: Case) -> Finding:
    return compare_draws(case, seeded_generator(8), windows=60, together=20_000, false_alarm=ALARM)


def test_audit_detects_half_of_the_required_noise() -> None:
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
    assert finding.failed
    assert finding.observed == pytest.approx(2.0, abs=1e-6)


class Biased:
    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rng, name)

    def integers(self, *arguments: Any, **named: Any) -> Any:
        drawn = self._rng.integers(*arguments, **named)
        return drawn // 2 if isinstance(drawn, np.ndarray) and drawn.dtype == np.uint64 else drawn


@pytest.mark.parametrize("name", ["split_budget", "value_stream", "future_rand"])
def test_audit_detects_a_biased_coin(name: str) -> None:
    case = case_of(name)
    rng: Any = Biased(seeded_generator(8))
    finding = compare_draws(case, rng, windows=60, together=20_000, false_alarm=ALARM)
    assert finding.failed


def test_audit_detects_devices_that_omit_dummies() -> None:
    case = case_of("shuffled_counts")
    without = noise_of_stage(case)
    assert without is not None
    law, randomizer = without.law, case.protocol.randomizer
    absent = with_entry(case, randomizer=lambda _: randomizer(law))
    assert draws(absent).failed


def released(case: Case, trials: int) -> Finding:
    job = job_of(case, epochs=1, minimum=case.minimum)
    sample = Sample("it", WINDOWS, job, Windows(job), job.guarantee, trials, searched=False)
    released, _ = sample.run(seeded_generator(9), ALARM)
    return released


@pytest.mark.parametrize(
    "name", [pytest.param("count_min", marks=pytest.mark.verify), "shuffled_counts"]
)
def test_audit_detects_a_stage_that_omits_dummies(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = noise_of_stage(case_of(name), 0.4)
    assert case is not None
    monkeypatch.setattr(StageNoise, "dummies", lambda noise, epoch: None)
    finding = released(case, 70)
    assert finding.failed
    assert "can be distinguished from" in finding.reason


@pytest.mark.parametrize(
    ("name", "epochs"),
    [
        ("split_budget", 1),
        ("independent_response", 2),
        pytest.param("future_rand", 8, marks=pytest.mark.verify),
        pytest.param("value_stream", 8, marks=pytest.mark.verify),
    ],
)
def test_sampling_detects_a_loss_30_percent_above_the_claimed_loss(name: str, epochs: int) -> None:
    job = job_of(case_of(name), epochs=epochs, minimum=1)
    honest = job.guarantee
    for factor, failed in ((1.3, True), (1.0, False)):
        claimed = replace(honest, epsilon=honest.epsilon / factor)
        sample = Sample("it", ("reports",), job, DeviceHistory(job), claimed, FULL.together // 4)
        (finding,) = sample.run(seeded_generator(10), ALARM)
        assert finding.failed == failed


def test_audit_detects_reports_attributed_to_other_devices() -> None:
    """The first protocol reports only at some epochs; the second one's reports are correlated."""

    class Mistaken(FutureRand):
        def due(self, epoch: int) -> NDArray[np.intp]:
            return np.roll(super().due(epoch), epoch)

    assert draws(with_entry(case_of("future_rand", 1), randomizer=Mistaken)).failed

    class Turned(MemoizedResponse):
        def due(self, epoch: int) -> NDArray[np.intp]:
            return np.roll(super().due(epoch), epoch)

    assert draws(with_entry(case_of("memoized_response"), randomizer=Turned)).failed
