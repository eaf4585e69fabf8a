"""Which attacks there are on what is to be audited, and how they are run.

The probability that a correct program is convicted is at most `FALSE_ALARM`, by construction. Exact
attacks and comparisons of neighbours convict no correct one. Each attack that draws has the same
share of it: `FALSE_ALARM` divided by their number, which is known before anything is drawn; and
divides that by the number of comparisons that it makes. By the union bound the shares add up,
whether attacks depend on each other or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from pipeline.audit.draws import compare_draws
from pipeline.audit.exact import enumerate_losses
from pipeline.audit.findings import Finding, any_convicted, false_alarm_of
from pipeline.audit.side_channels import compare_neighbours
from pipeline.conformance.cases import Case
from pipeline.conformance.finding import find_cases
from randomizers.randomness import cryptographic_generator, seeded_generator

FALSE_ALARM = 1e-9
"""The most probable that a correct program is convicted by a whole audit."""

LONG_TO_ENUMERATE = frozenset(
    {
        "bucket-1",
        "count_min-3",
        "hadamard_values-1",
        "jl_hh-1",
        "laplace_histogram-1",
        "range_stream-2",
        "range_values-1",
        "shuffled_counts-5",
        "shuffled_counts-6",
        "sparse_recovery-1",
        "value_stream-1",
    }
)
"""Larger examples of what smaller ones show too: a quick audit leaves them out."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is drawn.

    Attributes:
        trials: windows that are drawn of each input, and of each neighbour.
        together: devices that report at once.
        quick: one example of each protocol, and none that takes long.
    """

    trials: int
    together: int
    quick: bool


QUICK, FULL = Effort(60, 20_000, quick=True), Effort(4_000, 100_000, quick=False)

Coins: TypeAlias = np.random.Generator


@dataclass(frozen=True, slots=True)
class Attack:
    """Something that is to be tried.

    Attributes:
        subject: what is attacked.
        name: of the attack.
        draws: whether it rests on draws, and may convict a correct program.
        run: from coins, and from the most probable that it convicts a correct program.
    """

    subject: str
    name: str
    draws: bool
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


def attacks_on(name: str, effort: Effort) -> list[Attack]:
    """All attacks on a protocol.

    Raises:
        ProtocolError: there is none of that name, it is broken, or has no examples or exact law.
    """
    cases: Sequence[Case] = find_cases(name)
    if effort.quick:
        cases = [case for case in cases if str(case) not in LONG_TO_ENUMERATE]
    attacks = [attack for case in cases for attack in _on_case(case)]
    for case in cases[:1] if effort.quick else cases:
        attacks += _with_draws(case, effort)
    return attacks


def _on_case(case: Case) -> Iterator[Attack]:
    yield Attack(
        str(case), "likelihood ratios", draws=False, run=lambda coins, share: enumerate_losses(case)
    )


def _with_draws(case: Case, effort: Effort) -> Iterator[Attack]:
    for released in (True,) if effort.quick else (True, False):
        yield Attack(
            str(case),
            "side channels",
            draws=False,
            run=lambda coins, share, released=released: [  # type: ignore[misc]
                compare_neighbours(case, seed=int(coins.integers(2**62)), released=released)
            ],
        )
    if case.protocol.stage_sum(case.law) is None:
        yield Attack(
            str(case),
            "draws against the law",
            draws=True,
            run=lambda coins, share: [
                compare_draws(
                    case,
                    coins,
                    windows=effort.trials,
                    together=effort.together,
                    false_alarm=share,
                )
            ],
        )


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
