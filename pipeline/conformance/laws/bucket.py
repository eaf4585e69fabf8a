"""What a device can send: for every string of bits the parity of those that the item has, too."""

from __future__ import annotations

from dpstream.pipeline.conformance.laws.noisy_columns import NoisyColumns
from dpstream.randomizers.bucket import BucketLaw


class ExactLaw(NoisyColumns):
    """By enumeration of the noise of every bucket, or of all hashes and bits."""

    law: BucketLaw

    def column(self, item: int) -> list[int]:
        """The entries of an item, from 1 on."""
        rows = self.law.matrix.rows.tolist()
        assert len(rows) == self.law.hashes * self.law.trials
        return [1 if bin(row & item).count("1") % 2 == 0 else -1 for row in rows]
