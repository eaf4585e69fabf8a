"""What an attack has found: what was claimed, what was seen, and whether the two go together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


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

    def to_json(self) -> dict[str, Any]:
        """The fields, as JSON values: an infinite epsilon is ``"infinite"``."""
        body = asdict(self) | {"verdict": self.verdict.value}
        if self.observed is not None and math.isinf(self.observed):
            body["observed"] = "infinite"
        return body


def judge(
    subject: str, attack: str, promises: Mapping[str, Callable[[], str]]
) -> Iterator[Finding]:
    """A finding for each promise.

    Args:
        subject: that has given them.
        attack: its name.
        promises: in words, with what says why one is broken: an empty text where it is kept.
    """
    for what, broken in promises.items():
        reason = broken()
        verdict = Verdict.CONVICTED if reason else Verdict.CONSISTENT
        yield Finding(subject, attack, what, verdict, reason=reason)


def false_alarm_of(findings: Iterable[Finding]) -> float:
    """The most probable that a correct program is convicted by any of them: their sum."""
    return math.fsum(finding.false_alarm for finding in findings)


def any_convicted(findings: Iterable[Finding]) -> bool:
    """Whether something speaks against a claim."""
    return any(finding.convicted for finding in findings)
