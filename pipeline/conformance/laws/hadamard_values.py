"""What a device that tracks an item can send: for every row, the letters of its Boolean.

The matrix is scipy's, and the law of the Boolean is the exact one of value_stream.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numpy as np
from scipy.linalg import hadamard

from dpstream.pipeline.conformance.cases import Stream, View
from dpstream.pipeline.conformance.laws import value_stream
from dpstream.randomizers.value_stream.hadamard_values import HadamardValuesLaw


class ExactHadamardValues:
    """By going through rows, and through all letters."""

    devices = 1

    def __init__(self, law: HadamardValuesLaw, last_epoch: int) -> None:
        self.booleans = value_stream.ExactValueStream(law.booleans, last_epoch)
        self.matrix = hadamard(law.rows)
        # No item is followed as 0 by every row.
        self.matrix[:, 0] = -1
        # Rows see few different streams.
        self._views = cache(self.booleans.views)

    def followed(self, stream: Stream) -> bool:
        """At most as many flips as are boosted, whatever the row."""
        return all(self.booleans.followed(tracked) for tracked in self._tracked(stream))

    def views(self, stream: Stream) -> dict[View, Fraction]:
        """What can be seen, with its probability."""
        return {
            tuple(tuple((row << 8 | word,) for (word,) in sent) for sent in view): probability
            / len(self.matrix)
            for row, tracked in enumerate(self._tracked(stream))
            for view, probability in self._views(tracked).items()
        }

    def _tracked(self, stream: Stream) -> list[Stream]:
        return [tuple(row) for row in ((self.matrix[:, np.array(stream)] + 1) // 2).tolist()]


exact_law = ExactHadamardValues
