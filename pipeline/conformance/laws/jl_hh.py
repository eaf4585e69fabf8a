"""What a device can send: rows of scipy's Hadamard matrix, as the law has chosen them."""

from __future__ import annotations

from scipy.linalg import hadamard

from dpstream.pipeline.conformance.laws.noisy_columns import NoisyColumns
from dpstream.randomizers.jl_hh import JlHhLaw


class ExactLaw(NoisyColumns):
    """By enumeration of the noise of every entry, or of all rows and bits."""

    law: JlHhLaw

    def column(self, item: int) -> list[int]:
        """The entries of an item, from 1 on."""
        matrix = hadamard(1 << self.law.items.bit_length())
        return [int(matrix[row, item]) for row in self.law.matrix.rows]
