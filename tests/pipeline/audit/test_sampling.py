"""Neighbours are searched on some trials, and judged on others."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from dpstream.pipeline.audit.audits import FALSE_ALARM, Attack, run_attacks
from dpstream.pipeline.audit.findings import Finding, Verdict
from dpstream.pipeline.audit.hockey_stick import Sight, Sights
from dpstream.pipeline.audit.neighbours import candidate_pairs
from dpstream.pipeline.audit.sampling import Sample
from dpstream.pipeline.audit.subjects import job_of
from dpstream.pipeline.conformance.cases import Stream
from dpstream.pipeline.conformance.finding import find_cases
from dpstream.randomizers.randomness import seeded_generator

TRIALS = 80
TRAINING = 20 + TRIALS
"""Trials of a stream in both rounds of the search."""


@dataclass(frozen=True)
class Fake:
    """Tells one stream from all others, in as many sights of each as `telling` says."""

    worst: Stream
    telling: float
    drawn: Counter[Stream] = field(default_factory=Counter)
    epochs: int = 4
    seen: tuple[str, ...] = ("made up",)

    def sights(self, stream: Stream, trials: int, coins: np.random.Generator) -> tuple[Sights, ...]:
        found: list[Sight] = []
        for _ in range(trials):
            self.drawn[stream] += 1
            told = stream == self.worst and self.drawn[stream] <= self.telling
            found.append(((((int(told),), 1),),))
        return (Sights.of(found),)


def attacked(target: Fake) -> Finding:
    case = find_cases("split_budget")[0]
    job = job_of(case, epochs=4, minimum=1)
    guarantee = replace(job.guarantee(), epsilon=0.1)
    sample = Sample("it", ("made up",), job, target, guarantee, TRIALS)
    (finding,) = sample.run(seeded_generator(1), 1e-9)
    return finding


@pytest.mark.parametrize("worst", [(0, 1, 0, 1), (0, 0, 0, 1), (1, 1, 1, 1), (0, 0, 1, 1)])
def test_the_worst_neighbours_are_found(worst: Stream) -> None:
    finding = attacked(Fake(worst, np.inf))
    assert finding.convicted
    assert ", ".join(map(str, worst)) in finding.reason


def test_what_was_seen_while_searching_convicts_nobody() -> None:
    """What tells neighbours apart in the search, and then no more, was chance."""
    finding = attacked(Fake((0, 1, 0, 1), TRAINING))
    assert not finding.convicted
    assert finding.observed == 0.0


def test_candidates_are_neighbours_by_the_guarantee() -> None:
    case = find_cases("projective_geometry")[0]
    job = job_of(case, epochs=4, minimum=1)
    pairs = candidate_pairs(job, job.guarantee(), 4)
    assert pairs
    assert all(sum(a != b for a, b in zip(*pair, strict=True)) == 1 for pair in pairs)
    assert {(other, one) for one, other in pairs} == set(pairs)


def test_attacks_that_draw_share_the_probability_of_a_false_alarm() -> None:
    shares: list[float] = []

    def run(coins: np.random.Generator, share: float) -> list[Finding]:
        shares.append(share)
        return [Finding("it", "one", "", Verdict.CONSISTENT, false_alarm=share)]

    attacks = [Attack("it", "one", 1, run)] * 4
    attacks += [Attack("it", "sure", 0, lambda coins, share: [])]
    done = run_attacks(attacks)
    assert shares == [FALSE_ALARM / 4] * 4
    assert done.false_alarm == pytest.approx(FALSE_ALARM)
    assert not done.convicted
