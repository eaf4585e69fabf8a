"""Test that enumeration finds the exact loss, and that understated claims fail the audit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from dpstream.pipeline.audit import targets
from dpstream.pipeline.audit.audits import FALSE_ALARM, Attack, AuditOutcome, Finding, run_attacks
from dpstream.pipeline.audit.draw_comparison import compare_draws
from dpstream.pipeline.audit.exact import enumerate_losses, largest_loss
from dpstream.pipeline.audit.hockey_stick import Observation, Observations, Reports
from dpstream.pipeline.audit.plans import (
    FULL,
    QUICK,
    WINDOWS,
    attack_law,
    attacks_on_protocol,
    job_of,
    noise_of_stage,
    with_constants_of,
)
from dpstream.pipeline.audit.sampling import Sample, candidate_pairs
from dpstream.pipeline.audit.targets import DeviceHistory, Windows
from dpstream.pipeline.conformance.cases import Case, Stream
from dpstream.pipeline.conformance.finding import find_cases
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.descriptions import described
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.json_values import json_fields
from dpstream.pipeline.kafka.memory import SimulatedCluster
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


def test_audit_detects_that_only_half_of_the_required_noise_is_added() -> None:
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


TRIALS = 80
TRAINING = 20 + TRIALS


@dataclass(frozen=True)
class Fake:
    """Target that distinguishes one stream from all others in its first `telling` views."""

    worst: Stream
    telling: float
    drawn: Counter[Stream] = field(default_factory=Counter)
    epochs: int = 4
    seen: tuple[str, ...] = ("made up",)

    def observations(
        self, stream: Stream, trials: int, randomness: np.random.Generator
    ) -> tuple[Observations, ...]:
        found: list[Observation] = []
        for _ in range(trials):
            self.drawn[stream] += 1
            distinct = stream == self.worst and self.drawn[stream] <= self.telling
            found.append(((((int(distinct),), 1),),))
        return (Observations.of(found),)


def attacked(target: Fake) -> Finding:
    case = find_cases("split_budget")[0]
    job = job_of(case, epochs=4, minimum=1)
    guarantee = replace(job.guarantee, epsilon=0.1)
    sample = Sample("it", ("made up",), job, target, guarantee, TRIALS)
    (finding,) = sample.run(seeded_generator(1), 1e-9)
    return finding


@pytest.mark.parametrize("worst", [(0, 1, 0, 1), (0, 0, 0, 1), (1, 1, 1, 1), (0, 0, 1, 1)])
def test_worst_pair_of_neighbors_is_found(worst: Stream) -> None:
    finding = attacked(Fake(worst, np.inf))
    assert finding.failed
    assert ", ".join(map(str, worst)) in finding.reason


def test_differences_seen_only_during_the_search_do_not_fail_the_audit() -> None:
    """A difference that appears only during the search is ignored."""
    finding = attacked(Fake((0, 1, 0, 1), TRAINING))
    assert not finding.failed
    assert finding.observed == 0.0


def test_candidate_pairs_are_neighbors_under_the_guarantee() -> None:
    case = find_cases("projective_geometry")[0]
    job = job_of(case, epochs=4, minimum=1)
    pairs = candidate_pairs(job, job.guarantee, 4)
    assert pairs
    assert all(sum(a != b for a, b in zip(*pair, strict=True)) == 1 for pair in pairs)
    assert {(other, one) for one, other in pairs} == set(pairs)


def test_sampling_attacks_share_one_false_alarm_probability() -> None:
    shares: list[float] = []

    def run(randomness: np.random.Generator, share: float) -> list[Finding]:
        shares.append(share)
        return [Finding("it", "one", "", AuditOutcome.CONSISTENT, false_alarm=share)]

    attacks = [Attack("it", "one", 1, run)] * 4
    attacks += [Attack("it", "sure", 0, lambda randomness, share: [])]
    done = run_attacks(attacks)
    assert shares == [FALSE_ALARM / 4] * 4
    assert done.false_alarm == pytest.approx(FALSE_ALARM)
    assert not done.failed


RUNS = 100


@pytest.mark.verify
def test_correct_protocols_pass_a_hundred_runs_of_sampling_attacks() -> None:
    """Only sampling attacks are run, since exact ones cannot fail by chance."""
    job = job_of(find_cases("split_budget")[0], epochs=1, minimum=1)
    sample = Sample("it", ("local reports",), job, DeviceHistory(job), job.guarantee, 1_000)
    attacks = [
        attack
        for name in ("split_budget", "single_message")
        for attack in attacks_on_protocol(name, QUICK)
        if attack.draws
    ]
    attacks.append(Attack("it", "local reports", 1, sample.run))
    passing = sum(not run_attacks(attacks).failed for _ in range(RUNS))
    print(f"{passing} of {RUNS} clean runs passed")
    assert passing == RUNS


FEW_TRIALS = 5


def loud_job(epochs: int, **values: Any) -> DeployedJob:
    """Return a job whose devices almost always report their true value."""
    job = {
        "name": "loud",
        "protocol": "split_budget",
        "parameters": {"epsilon": min(15 * epochs, 64)},
    }
    values = {**job, "epochs": {"count": epochs}, "shuffle": {"minimum": 1}, **values}
    return deploy_job(make_job(values), deployed_at=0)


def reports_of_trial(observations: Observations, trial: int) -> list[Reports]:
    return [
        table[code]
        for table, code in zip(observations.tables, observations.codes[trial], strict=True)
    ]


@pytest.mark.parametrize(
    ("epochs", "stream", "runs"),
    [(3, (0, 1, 1), 1), (10, (0, 1, 1, 0, 1, 0, 0, 0), FEW_TRIALS)],
    ids=["consecutive horizons", "the start of a longer horizon"],
)
def test_every_trial_uses_its_own_horizon(
    epochs: int, stream: tuple[int, ...], runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[DeployedJob] = []

    def cluster(job: DeployedJob, generators: Any) -> SimulatedCluster:
        begun.append(job)
        return SimulatedCluster(job, generators)

    monkeypatch.setattr(targets, "SimulatedCluster", cluster)
    windows = Windows(loud_job(epochs))
    assert windows.epochs == len(stream)
    released, published = windows.observations(stream, FEW_TRIALS, seeded_generator(1))
    assert released.trials == published.trials == FEW_TRIALS
    # Draws for a horizon belong to one user.
    assert [job.epochs.renew for job in begun] == [runs == 1] * runs
    for trial in range(FEW_TRIALS):
        assert reports_of_trial(released, trial) == [(((value,), 1),) for value in stream]
        estimates = [seen[0][0][0] / 1000 for seen in reports_of_trial(published, trial)]
        assert estimates == pytest.approx(stream, abs=0.01)


def test_vectorized_devices_are_observed_separately() -> None:
    stream = (1, 0, 0, 1)
    (observations,) = DeviceHistory(loud_job(4)).observations(stream, 40_500, seeded_generator(3))
    assert observations.trials == 40_500
    # A few of hundreds of thousands of bits are reversed.
    wrong = sum(
        often
        for epoch, value in enumerate(stream)
        for seen, often in observations.times(epoch)
        if seen != (((value,), 1),)
    )
    assert wrong < 10
