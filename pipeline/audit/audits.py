"""How attacks are run, and with which probability they convict a correct program.

The probability that a correct program is convicted is at most `FALSE_ALARM`, by construction. Exact
attacks and comparisons of neighbours convict no correct one. Each attack that draws has the same
share of it: `FALSE_ALARM` divided by their number, which is known before anything is drawn; and
divides that by the number of comparisons that it makes. By the union bound the shares add up,
whether attacks depend on each other or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from pipeline.audit.findings import Finding, any_convicted, false_alarm_of
from randomizers.randomness import cryptographic_generator, seeded_generator

FALSE_ALARM = 1e-9
"""The most probable that a correct program is convicted by a whole audit."""

Coins: TypeAlias = np.random.Generator


@dataclass(frozen=True, slots=True)
class Attack:
    """Something that is to be tried.

    Attributes:
        subject: what is attacked.
        name: of the attack.
        draws: 1 if it rests on draws, and may convict a correct program; otherwise 0.
        run: from coins, and from the most probable that it convicts a correct program.
    """

    subject: str
    name: str
    draws: int
    run: Callable[[Coins, float], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Audit:
    """What all attacks have found.

    Attributes:
        findings: in the order of the attacks.
        drawn: how many attacks rested on draws.
    """

    findings: tuple[Finding, ...]
    drawn: int

    @property
    def convicted(self) -> bool:
        """Whether something speaks against a claim."""
        return any_convicted(self.findings)

    @property
    def false_alarm(self) -> float:
        """The most probable that all this convicts a correct program."""
        return false_alarm_of(self.findings)

    def to_json(self) -> dict[str, Any]:
        """What ``dpstream audit --json`` prints."""
        return {
            "verdict": "CONVICTED" if self.convicted else "consistent",
            "false_alarm": self.false_alarm,
            "drawn": self.drawn,
            "findings": [finding.to_json() for finding in self.findings],
        }


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
