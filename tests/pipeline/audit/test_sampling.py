"""Test sampled views of attackers, and the search for the worst neighbors."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.audit import targets
from dpstream.pipeline.audit.audits import FALSE_ALARM, Attack, AuditOutcome, Finding, run_attacks
from dpstream.pipeline.audit.hockey_stick import Observation, Observations, Reports
from dpstream.pipeline.audit.plans import QUICK, attacks_on_protocol, job_of
from dpstream.pipeline.audit.sampling import Sample, candidate_pairs
from dpstream.pipeline.audit.targets import DeviceHistory, Windows
from dpstream.pipeline.conformance.cases import Stream
from dpstream.pipeline.conformance.finding import find_cases
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.kafka.memory import SimulatedCluster
from dpstream.randomizers.randomness import seeded_generator

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
def test_worst_neighbors_are_found(worst: Stream) -> None:
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


def test_sampling_attacks_divide_the_false_alarm_probability() -> None:
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
