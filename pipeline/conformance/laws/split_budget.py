"""What a device with a split budget can send: every bit is the value or not, on its own."""

from __future__ import annotations

from fractions import Fraction

from dpstream.pipeline.conformance.cases import Stream, View
from dpstream.pipeline.conformance.laws.independent import independent
from dpstream.randomizers.split_budget import SplitBudgetLaw


class ExactLaw:
    """By enumeration of all bits."""

    devices = 1

    def __init__(self, law: SplitBudgetLaw, last_epoch: int) -> None:
        kept, reversed_ = law.response.weights
        self.kept = Fraction(kept, kept + reversed_)

    def followed(self, stream: Stream) -> bool:
        """Any stream is."""
        return True

    def views(self, stream: Stream) -> dict[View, Fraction]:
        """What can be seen, with its probability."""
        return independent(
            {((bit,),): self.kept if bit == value else 1 - self.kept for bit in (0, 1)}
            for value in stream
        )
