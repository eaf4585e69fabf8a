"""Exact output distribution of a device: a level of the value tree, and messages on the nodes."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

from dpstream.pipeline.conformance.cases import Stream, View
from dpstream.pipeline.conformance.laws.hadamard_values import ExactHadamardValues
from dpstream.randomizers.value_stream.range_values import RangeValuesLaw

SHIFT = 24


class ExactRangeValues:
    devices = 1

    def __init__(self, law: RangeValuesLaw, last_epoch: int) -> None:
        self.law = law
        self.nodes = [ExactHadamardValues(level, last_epoch) for level in law.levels]

    def followed(self, stream: Stream) -> bool:
        """Return whether the value is never 0 and no level has more flips than the bound."""
        return 0 not in stream and all(
            exact.followed(nodes)
            for exact, nodes, weight in zip(
                self.nodes, self._nodes(stream), self.law.level_weights, strict=True
            )
            if weight
        )

    def views(self, stream: Stream) -> dict[View, Fraction]:
        probabilities: defaultdict[View, Fraction] = defaultdict(Fraction)
        for level, (exact, nodes) in enumerate(
            zip(self.nodes, self._nodes(stream), strict=True), start=1
        ):
            weight = Fraction(self.law.level_weights[level - 1], sum(self.law.level_weights))
            if not weight:
                continue
            for view, probability in exact.views(nodes).items():
                seen = tuple(
                    tuple((level << SHIFT | message,) for (message,) in sent) for sent in view
                )
                probabilities[seen] += weight * probability
        return dict(probabilities)

    def _nodes(self, stream: Stream) -> list[Stream]:
        """Return the buckets' nodes at every level; a node's parent is half of it, rounded up."""
        above = [stream]
        while len(above) < len(self.law.levels):
            above.append(tuple(-(-node // 2) for node in above[-1]))
        return above[::-1]


exact_law = ExactRangeValues
