"""Exact output distribution of a device: a question, for a mean a threshold, and messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from typing import TypeAlias

from dpstream.pipeline.conformance.cases import Stream, View
from dpstream.pipeline.conformance.laws.hadamard_values import ExactHadamardValues
from dpstream.pipeline.conformance.laws.sampled_response import ExactPhases
from dpstream.pipeline.conformance.laws.value_stream import ExactValueStream
from dpstream.randomizers.panels import AnswerLaw, PanelsLaw
from dpstream.randomizers.value_stream import ValueStreamLaw
from dpstream.randomizers.value_stream.hadamard_values import HadamardValuesLaw

ONE = 2**32
ExactMechanism: TypeAlias = ExactHadamardValues | ExactValueStream | ExactPhases


class ExactPanels:
    """Enumerate questions and thresholds, and for each the messages; there is one group."""

    devices = 1

    def __init__(self, law: PanelsLaw, last_epoch: int) -> None:
        self.law = law
        self.mechanisms = [self.exact(question.law, last_epoch) for question in law.questions]
        self.shift = 24 if any(question.answer == "labels" for question in law.questions) else 8

    def exact(self, law: AnswerLaw, last_epoch: int) -> ExactMechanism:
        if isinstance(law, HadamardValuesLaw):
            return ExactHadamardValues(law, last_epoch)
        assert isinstance(law, ValueStreamLaw)
        return ExactValueStream(law, last_epoch)

    def followed(self, stream: Stream) -> bool:
        """Return whether every question's answers are tracked without delay, for any threshold."""
        return all(
            self.mechanisms[number].followed(answers)
            for number in range(len(self.mechanisms))
            for answers, _ in self._tracked(number, stream)
        )

    def views(self, stream: Stream) -> dict[View, Fraction]:
        probabilities: defaultdict[View, Fraction] = defaultdict(Fraction)
        total = sum(question.share for question in self.law.questions)
        for number, question in enumerate(self.law.questions):
            above = (1 + number) << self.shift if len(self.mechanisms) > 1 else 0
            for answers, likely in self._tracked(number, stream):
                for view, probability in self.mechanisms[number].views(answers).items():
                    seen = tuple(tuple((above | sent,) for (sent,) in each) for each in view)
                    probabilities[seen] += Fraction(question.share, total) * likely * probability
        return dict(probabilities)

    def _tracked(self, number: int, stream: Stream) -> Iterator[tuple[Stream, Fraction]]:
        """Yield what a device tracks, and the probability of the thresholds with which it does."""
        answers = tuple(values[number] for values in stream)
        if self.law.questions[number].answer != "mean":
            yield answers, Fraction(1)
            return
        for low, high in pairwise(sorted({0, *answers, ONE})):
            # Thresholds from `low` to `high` - 1.
            yield tuple(int(answer >= high) for answer in answers), Fraction(high - low, ONE)


exact_law = ExactPanels
