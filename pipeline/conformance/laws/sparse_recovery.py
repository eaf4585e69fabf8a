"""What a device can send: its bucket and the tests of its bits, by the public hashes."""

from __future__ import annotations

import numpy as np

from dpstream.pipeline.conformance.laws.noisy_columns import NoisyColumns
from dpstream.randomizers.sparse_recovery import SparseRecoveryLaw


class ExactLaw(NoisyColumns):
    """By enumeration of the noise of every measurement, or of all of them and bits."""

    law: SparseRecoveryLaw

    def column(self, item: int) -> list[int]:
        """The entries of an item, from 1 on."""
        matrix, number = self.law.matrix, np.array([item])
        sign, own = int(matrix.signs_of(number)[0]), int(matrix.buckets_of(number)[0])
        tests = [1] + [-1 if item >> bit & 1 else 1 for bit in range(self.law.items.bit_length())]
        return [
            sign * test if bucket == own else 0
            for bucket in range(self.law.buckets)
            for test in tests
        ]
