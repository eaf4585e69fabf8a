"""How attacks are run, and with which probability they convict a correct program.

The probability that a correct program is convicted is at most `FALSE_ALARM`, by construction. Exact
attacks and comparisons of neighbours convict no correct one. Each finding that rests on draws has
the same share of it: `FALSE_ALARM` divided by their number, which is known before anything is
drawn; what makes several comparisons divides that among them. By the union bound the shares add up,
whether attacks depend on each other or not.
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
    """What follows from an attack."""

    EXACT = "exact"
    CONSISTENT = "consistent"
    CONVICTED = "CONVICTED"


@dataclass(frozen=True, slots=True)
class Finding:
    """An attack on something, and what came of it.

    Attributes:
        subject: a protocol with the number of its example, or a job.
        attack: its name.
        what: what was looked at, in words.
        verdict: `EXACT` where all that can be seen was enumerated and keeps the claim,
            `CONSISTENT` where nothing speaks against it, `CONVICTED` where something does.
        claimed: epsilon; None where the attack is about none, and finds equal or different.
        delta: claimed with it.
        observed: the largest epsilon that was seen with this delta: exactly, or with confidence;
            None where nothing was; infinite where something is seen of one neighbour alone.
        false_alarm: the most probable that a correct mechanism is convicted by this attack; 0
            where it cannot be.
        reason: of a conviction, in a sentence.
    """

    subject: str
    attack: str
    what: str
    verdict: AuditOutcome
    claimed: float | None = None
    delta: float = 0.0
    observed: float | None = None
    false_alarm: float = 0.0
    reason: str = ""

    @property
    def convicted(self) -> bool:
        """Whether something speaks against the claim."""
        return self.verdict is AuditOutcome.CONVICTED


FALSE_ALARM = 1e-9
"""The most probable that a correct program is convicted by a whole audit."""

Coins: TypeAlias = np.random.Generator


@dataclass(frozen=True, slots=True)
class Attack:
    """Something that is to be tried.

    Attributes:
        subject: what is attacked.
        name: of the attack.
        draws: how many of its findings rest on draws, and may convict a correct program.
        run: from coins, and from the most probable that each of these convicts a correct program.
        seconds: that it takes, roughly: attacks beside each other.
    """

    subject: str
    name: str
    draws: int
    run: Callable[[Coins, float], Iterable[Finding]]
    seconds: float = 0.2


@dataclass(frozen=True, slots=True)
class Audit:
    """What all attacks have found.

    Attributes:
        findings: in the order of the attacks.
        drawn: how many of them rest on draws.
    """

    findings: tuple[Finding, ...]
    drawn: int

    JSON_PROPERTIES: ClassVar = ("verdict", "false_alarm")

    @property
    def verdict(self) -> AuditOutcome:
        """Of all of them."""
        return AuditOutcome.CONVICTED if self.convicted else AuditOutcome.CONSISTENT

    @property
    def convicted(self) -> bool:
        """Whether something speaks against a claim."""
        return any(finding.convicted for finding in self.findings)

    @property
    def false_alarm(self) -> float:
        """The most probable that all this convicts a correct program."""
        return math.fsum(finding.false_alarm for finding in self.findings)


def run_attacks(
    attacks: Sequence[Attack],
    *,
    seed: int | None = None,
    on_attack: Callable[[Attack], None] = lambda attack: None,
) -> Audit:
    """Run attacks, one after the other.

    Args:
        attacks: what is tried.
        seed: makes the draws of attacks repeatable; None takes the operating system's coins.
        on_attack: is called before each of them.
    """
    drawn = sum(attack.draws for attack in attacks)
    findings: list[Finding] = []
    for number, attack in enumerate(attacks):
        on_attack(attack)
        coins = cryptographic_generator() if seed is None else seeded_generator(seed, number)
        findings += attack.run(coins, FALSE_ALARM / max(drawn, 1))
    return Audit(tuple(findings), drawn)
