"""What is promised to a user, in the terms in which it can be checked."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Guarantee:
    """A differential privacy guarantee.

    For any two neighbours, and whatever set of things an observer may see, the probabilities of
    seeing it are within a factor exp(epsilon) of each other, apart from a probability of delta.

    Attributes:
        epsilon: the privacy loss, rounded up.
        delta: rounded up; 0 for a pure guarantee.
        unit: what the epsilon is spent on: a user's whole "stream" or a single "epoch" of it.
        neighbours: which two inputs cannot be told apart.
        trust: who has to be trusted, and who need not be.
        basis: "exact" computed from the whole probability law, "bound" proven to be no larger,
            "conditional" resting on an assumption that `neighbours` or `trust` names.
    """

    epsilon: float
    delta: float
    unit: Literal["stream", "epoch"]
    neighbours: str
    trust: str
    basis: Literal["exact", "bound", "conditional"]

    def to_json(self) -> dict[str, Any]:
        """The fields, as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        delta = f", delta {self.delta:g}" if self.delta else ""
        return (
            f"epsilon {self.epsilon:.6g}{delta} for a user's {_UNITS[self.unit]} ({self.basis}); "
            f"cannot be told apart: {self.neighbours}; trusted: {self.trust}"
        )


_UNITS = {"stream": "whole stream", "epoch": "value of one epoch"}
