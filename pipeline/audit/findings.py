"""What an attack has found: what was claimed, what was seen, and whether the two go together."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
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
    verdict: Verdict
    claimed: float | None = None
    delta: float = 0.0
    observed: float | None = None
    false_alarm: float = 0.0
    reason: str = ""

    @property
    def convicted(self) -> bool:
        """Whether something speaks against the claim."""
        return self.verdict is Verdict.CONVICTED
