"""Exact view of the smallest window with one panel: number of messages, and their noisy sum."""

from __future__ import annotations

from fractions import Fraction

from dpstream.pipeline.conformance.cases import Stream, View
from dpstream.pipeline.conformance.laws.shuffled_counts import OfSums
from dpstream.randomizers.panels import PanelsLaw
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import ShuffledValueStreamLaw


class ExactShuffledPanels:
    """Enumerate the noise in the sum of one epoch, of Booleans or of numbers."""

    def __init__(self, law: PanelsLaw, last_epoch: int) -> None:
        assert law.panels == 1
        (question,) = law.questions
        assert isinstance(question.law, ShuffledValueStreamLaw)
        self.largest = question.largest
        self.sums = OfSums(question.law, last_epoch)
        self.devices = self.sums.devices

    def followed(self, stream: Stream) -> bool:
        return self.sums.followed(stream)

    def views(self, stream: Stream) -> dict[View, Fraction]:
        ((value,),) = stream
        # Numbers in steps of 1/256 are not rounded.
        number = Fraction(value, self.largest)
        assert 256 % number.denominator == 0
        return {
            (((self.devices, int(total)),),): probability
            for (((total,),),), probability in self.sums.views((number,)).items()
        }


exact_law = ExactShuffledPanels
