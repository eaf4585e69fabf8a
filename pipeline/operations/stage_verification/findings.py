"""What a rule has found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """What came of a rule."""

    VERIFIED = "verified"
    VIOLATED = "violated"
    UNKNOWN = "cannot be verified"


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule was broken.

    Attributes:
        epoch: of the window; None where it is about no single one.
        why: a sentence.
    """

    epoch: int | None
    why: str


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one rule.

    Attributes:
        rule: its name.
        promise: what it says, as a sentence.
        checked: over how many `of`.
        of: what was checked, in the plural.
        violations: none: it was kept in all that was checked.
        missing: what cannot be verified of it, and without what; empty: nothing.
        notes: what is good to know.
    """

    rule: str
    promise: str
    checked: int
    of: str = "windows"
    violations: tuple[Violation, ...] = ()
    missing: str = ""
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """In a word."""
        if self.violations:
            return Verdict.VIOLATED
        return Verdict.VERIFIED if self.checked else Verdict.UNKNOWN

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "rule": self.rule,
            "promise": self.promise,
            "verdict": self.verdict.value,
            "checked": self.checked,
            "of": self.of,
            "violations": [{"epoch": each.epoch, "why": each.why} for each in self.violations],
            "missing": self.missing,
            "notes": list(self.notes),
        }


def in_order(violations: Iterable[Violation]) -> tuple[Violation, ...]:
    """Each of them once, by epoch; those of no epoch first."""
    return tuple(sorted(set(violations), key=lambda each: (each.epoch or 0, each.why)))
