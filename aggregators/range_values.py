"""Numeric values over time, server side: letters on items over time for every level.

What all levels together say of the buckets is in `dpstream.aggregators.level_sums`.
"""

from __future__ import annotations

from typing import Self

from dpstream.aggregators.hadamard_values import HadamardValuesAggregator
from dpstream.aggregators.level_sums import LevelSums
from dpstream.randomizers.range_values import LEVEL_SHIFT, RangeValuesLaw


class RangeValuesAggregator(LevelSums[HadamardValuesAggregator]):
    """Sums of letters; equal whatever the order, and however they were split and merged.

    >>> import numpy as np
    >>> from dpstream.randomizers.range_values.calibration import calibrate
    >>> from dpstream.randomizers.range_values import RangeValuesParameters
    >>> law = calibrate(RangeValuesParameters(1.0, 2, low=0, high=80, buckets=2), last_epoch=2)
    >>> aggregator = RangeValuesAggregator(law)
    >>> aggregator.add(1, np.array([[(1 << LEVEL_SHIFT) + 3 * 256 + 88]], np.uint32), None)
    >>> aggregator.levels[0].sums(1)
    array([1, 0, 0, 0, 8])

    Args:
        law: the constants of the job.
    """

    def __init__(self, law: RangeValuesLaw) -> None:
        levels = [HadamardValuesAggregator(level) for level in law.levels]
        super().__init__(law, levels, law.last_epoch, LEVEL_SHIFT)

    @classmethod
    def from_bytes(cls, law: RangeValuesLaw, data: bytes) -> Self:
        """Read `to_bytes`.

        Raises:
            ValueError: the bytes are no sums of this horizon and these levels.
        """
        aggregator = cls(law)
        aggregator.levels = aggregator.levels_from_bytes(
            data,
            lambda index, state: HadamardValuesAggregator.from_bytes(law.levels[index], state),
        )
        return aggregator
