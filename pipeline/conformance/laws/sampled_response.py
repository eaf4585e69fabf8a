"""Exact output distribution of a sampled_response device, by enumeration of phases and flips."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import product

from dpstream.pipeline.conformance.cases import Stream, View
from dpstream.randomizers.sampled_response import SampledResponseLaw


class ExactSampledResponse:
    devices = 1

    def __init__(self, law: SampledResponseLaw, last_epoch: int) -> None:
        self.law, self.last_epoch = law, last_epoch

    def followed(self, stream: Stream) -> bool:
        return True

    def views(self, stream: Stream) -> dict[View, Fraction]:
        probabilities: defaultdict[View, Fraction] = defaultdict(Fraction)
        horizon, answers = self.law.last_epoch, self.law.reports
        for phase in range(horizon):
            asked = sorted((phase + i * horizon // answers) % horizon for i in range(answers))
            for flips in product((0, 1), repeat=answers):
                view: list[tuple[tuple[int, ...], ...]] = [()] * self.last_epoch
                for epoch, flip in zip(asked, flips, strict=True):
                    if epoch < self.last_epoch:
                        view[epoch] = ((stream[epoch] ^ flip,),)
                probability = self.law.flips.probability(sum(flips)) / horizon
                probabilities[tuple(view)] += probability
        return dict(probabilities)


exact_law = ExactSampledResponse
