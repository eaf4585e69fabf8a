"""Run attacks, with a bound on the probability that a correct program fails.

* The probability that a correct program fails is at most `FALSE_ALARM`, by construction.
* Exact attacks and comparisons of neighbors never fail a correct program.
* `FALSE_ALARM` is divided equally among the findings that are based on draws. The number of these
  findings is known before anything is drawn. Comparisons within a finding share its part equally.
* By the union bound, the parts sum to at most `FALSE_ALARM`, even if attacks are dependent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, TypeAlias

import numpy as np

from dpstream.randomizers.randomness import cryptographic_generator, seeded_generator


class AuditOutcome(StrEnum):
    EXACT = "exact"
    CONSISTENT = "consistent"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """An attack and its result.

    Attributes:
        subject: Protocol with the number of its example, or a job.
        what: Description of the examined property.
        outcome: `EXACT` if everything visible was enumerated and satisfies the claim, `CONSISTENT`
            if nothing observed contradicts the claim, `FAILED` if something contradicts it.
        claimed: Claimed epsilon, with `delta`; None if the attack only tests equality.
        observed: Largest epsilon observed at this delta: exact, or a lower confidence bound.
            Infinite if only one of two neighbors can cause some view; None if nothing was measured.
        false_alarm: Maximum probability of failing a correct mechanism; 0 if impossible.
    """

    subject: str
    attack: str
    what: str
    outcome: AuditOutcome
    claimed: float | None = None
    delta: float = 0.0
    observed: float | None = None
    false_alarm: float = 0.0
    reason: str = ""

    @property
    def failed(self) -> bool:
        return self.outcome is AuditOutcome.FAILED


FALSE_ALARM = 1e-9
"""Maximum probability that a whole audit fails a correct program."""

Randomness: TypeAlias = np.random.Generator


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack to run, which takes `seconds` relative to other attacks.

    `draws` counts the findings based on draws, which might therefore fail a correct program. `run`
    gets the generator and the maximum false-alarm probability of each such finding.
    """

    subject: str
    name: str
    draws: int
    run: Callable[[Randomness, float], Iterable[Finding]]
    seconds: float = 0.2


@dataclass(frozen=True, slots=True)
class Audit:
    findings: tuple[Finding, ...]
    drawn: int

    JSON_PROPERTIES: ClassVar = ("outcome", "false_alarm")

    @property
    def outcome(self) -> AuditOutcome:
        return AuditOutcome.FAILED if self.failed else AuditOutcome.CONSISTENT

    @property
    def failed(self) -> bool:
        return any(finding.failed for finding in self.findings)

    @property
    def false_alarm(self) -> float:
        """Maximum probability that the whole audit fails a correct program."""
        return math.fsum(finding.false_alarm for finding in self.findings)


def run_attacks(
    attacks: Sequence[Attack],
    *,
    seed: int | None = None,
    on_attack: Callable[[Attack], None] = lambda attack: None,
) -> Audit:
    """Run attacks one after the other; a `seed` makes the draws repeatable."""
    drawn = sum(attack.draws for attack in attacks)
    findings: list[Finding] = []
    for number, attack in enumerate(attacks):
        on_attack(attack)
        randomness = cryptographic_generator() if seed is None else seeded_generator(seed, number)
        findings += attack.run(randomness, FALSE_ALARM / max(drawn, 1))
    return Audit(tuple(findings), drawn)
