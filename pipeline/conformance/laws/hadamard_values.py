"""Exact output distribution of a device that tracks an item: a row, and the row's symbols."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numpy as np
from scipy.linalg import hadamard

from dpstream.pipeline.conformance.cases import Stream, View
from dpstream.pipeline.conformance.laws import value_stream
from dpstream.randomizers.value_stream.hadamard_values import HadamardValuesLaw


class ExactHadamardValues:
    devices = 1

    def __init__(self, law: HadamardValuesLaw, last_epoch: int) -> None:
        self.booleans = value_stream.ExactValueStream(law.booleans, last_epoch)
        self.matrix = hadamard(law.rows)
        # The Boolean is 0 in every row if there is no item.
        self.matrix[:, 0] = -1
        # Few distinct Boolean streams occur over all rows.
        self._views = cache(self.booleans.views)

    def followed(self, stream: Stream) -> bool:
        """Return whether the number of flips in each row is at most the number of boosted flips."""
        return all(self.booleans.followed(tracked) for tracked in self._tracked(stream))

    def views(self, stream: Stream) -> dict[View, Fraction]:
        return {
            tuple(tuple((row << 8 | message,) for (message,) in sent) for sent in view): probability
            / len(self.matrix)
            for row, tracked in enumerate(self._tracked(stream))
            for view, probability in self._views(tracked).items()
        }

    def _tracked(self, stream: Stream) -> list[Stream]:
        return [tuple(row) for row in ((self.matrix[:, np.array(stream)] + 1) // 2).tolist()]


exact_law = ExactHadamardValues
