"""What a device that tracks an item can send: for every row, what FutureRand sends for its Boolean.

The matrix is scipy's, and the law of the Boolean is the exact one of FutureRand.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

import numpy as np
from scipy.linalg import hadamard

from pipeline.conformance.cases import Stream, View
from pipeline.conformance.laws import future_rand
from randomizers.hadamard_stream import HadamardStreamLaw


class ExactLaw:
    """By enumeration of rows, and of what FutureRand can draw."""

    devices = 1

    def __init__(self, law: HadamardStreamLaw, last_epoch: int) -> None:
        self.booleans = future_rand.ExactLaw(law.future_rand, last_epoch)
        self.matrix = hadamard(law.rows)
        # No item is followed as 0 by every row.
        self.matrix[:, 0] = -1

    def followed(self, stream: Stream) -> bool:
        """At most as many flips as can be followed, whatever the row."""
        return all(self.booleans.followed(tracked) for tracked in self._tracked(stream))

    def views(self, stream: Stream) -> dict[View, Fraction]:
        """What can be seen, with its probability."""
        probabilities: defaultdict[View, Fraction] = defaultdict(Fraction)
        for row, tracked in enumerate(self._tracked(stream)):
            for view, probability in self.booleans.views(tracked).items():
                seen = tuple(tuple((row << 6 | word,) for (word,) in sent) for sent in view)
                probabilities[seen] += probability / len(self.matrix)
        return dict(probabilities)

    def _tracked(self, stream: Stream) -> list[Stream]:
        """What is tracked by each row."""
        return [tuple(row) for row in ((self.matrix[:, np.array(stream)] + 1) // 2).tolist()]
