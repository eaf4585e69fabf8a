"""Exact output distribution for the smallest window, if the model is 0: seeds and signs."""

from __future__ import annotations

import math
from collections import defaultdict
from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np

from dpstream.pipeline.conformance.cases import Report, Stream, View, independent
from experiments.protocols.ldp_sgd import LdpSgdLaw
from experiments.protocols.ldp_sgd.gradient_directions import directions


class ExactLdpSgd:
    """Enumerate the seeds and signs of all devices; examples use short seeds, so there are few."""

    def __init__(self, law: LdpSgdLaw, last_epoch: int) -> None:
        self.law = law
        self.devices = law.minimum
        kept, reversed_ = law.odds.weights
        self.kept = Fraction(kept, kept + reversed_)
        self.likely = cache(self._report)

    def followed(self, stream: Stream) -> bool:
        return True

    def views(self, stream: Stream) -> dict[View, Fraction]:
        nothing = (0,) * (1 + self.law.features)
        return independent(self._epoch([held, *[nothing] * (self.devices - 1)]) for held in stream)

    def _epoch(self, examples: list[tuple[int, ...]]) -> dict[tuple[Report, ...], Fraction]:
        found: defaultdict[tuple[Report, ...], Fraction] = defaultdict(Fraction)
        one_each = [
            self.likely(example).items() for example in examples for _ in range(self.law.reports)
        ]
        for drawn in product(*one_each):
            seen = tuple(sorted(report for report, _ in drawn))
            found[seen] += math.prod((likely for _, likely in drawn), start=Fraction(1))
        return dict(found)

    def _report(self, example: tuple[int, ...]) -> dict[Report, Fraction]:
        law = self.law
        class_, *features = example
        # At the model 0 all classes are equally likely.
        errors = [
            round(4096 * (Fraction(1, law.classes) - (number == class_))) if class_ else 0
            for number in range(1, law.classes + 1)
        ]
        gradient = [error * feature for error in errors for feature in features]
        length = math.sqrt(sum(number**2 for number in gradient)) / 4096**2
        along = Fraction(math.floor(2**31 * (1 + min(length / law.clip, 1.0))), 2**32)
        likely: dict[Report, Fraction] = {}
        for seed in range(1 << law.seed_bits):
            (vector,) = directions(np.array([[seed]], np.uint8), law.dimensions).tolist()
            positive = sum(a * b for a, b in zip(gradient, vector, strict=True)) >= 0
            true_one = along if positive else 1 - along
            one = true_one * self.kept + (1 - true_one) * (1 - self.kept)
            for sign, share in ((0, 1 - one), (1, one)):
                likely[seed, sign] = share / (1 << law.seed_bits)
        return likely


exact_law = ExactLdpSgd
