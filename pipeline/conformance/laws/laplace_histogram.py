"""What a device can send: noise in every cell, of which one has the item."""

from __future__ import annotations

from dpstream.pipeline.conformance.laws.noisy_columns import NoisyColumns


class ExactLaw(NoisyColumns):
    """By enumeration of the noise of every cell."""

    def column(self, item: int) -> list[int]:
        """The entries of an item, from 1 on."""
        return [int(cell == item) for cell in range(1, self.law.items + 1)]
