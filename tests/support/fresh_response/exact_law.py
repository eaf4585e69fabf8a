"""Exact probabilities of all device outputs, for the conformance suite."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import prod

from dpstream.pipeline.conformance.cases import Stream, View

from . import WHOLE, FreshResponseLaw


class ExactLaw:
    """Distribution enumerated over all reports."""

    devices = 1

    def __init__(self, law: FreshResponseLaw, last_epoch: int) -> None:
        self.kept = Fraction(law.kept, WHOLE)

    def followed(self, stream: Stream) -> bool:
        """Return True: estimates are unbiased for any stream."""
        return True

    def views(self, stream: Stream) -> dict[View, Fraction]:
        return {
            tuple(((bit,),) for bit in sent): prod(
                (
                    self.kept if bit == value else 1 - self.kept
                    for bit, value in zip(sent, stream, strict=True)
                ),
                start=Fraction(1),
            )
            for sent in product((0, 1), repeat=len(stream))
        }
