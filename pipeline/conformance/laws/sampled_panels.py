"""Exact output distribution of a device: question, phase and threshold, and at most r answers."""

from __future__ import annotations

from fractions import Fraction

from dpstream.pipeline.conformance.cases import Stream, View
from dpstream.pipeline.conformance.laws.panels import ExactPanels
from dpstream.pipeline.conformance.laws.sampled_response import ExactSampledResponse
from dpstream.randomizers.panels import AnswerLaw, PanelsLaw
from dpstream.randomizers.sampled_response import SampledResponseLaw


class ExactAnswers(ExactSampledResponse):
    """Enumerate phases and answers; a device that is not asked sends the number of points."""

    def views(self, stream: Stream) -> dict[View, Fraction]:
        views = super().views(stream)
        silent = ((len(self.points),),)
        return {tuple(sent or silent for sent in view): likely for view, likely in views.items()}


class ExactSampledPanels(ExactPanels):
    def __init__(self, law: PanelsLaw, last_epoch: int) -> None:
        super().__init__(law, last_epoch)
        self.shift = 8

    def exact(self, law: AnswerLaw, last_epoch: int) -> ExactAnswers:
        assert isinstance(law, SampledResponseLaw)
        return ExactAnswers(law, last_epoch)


exact_law = ExactSampledPanels
