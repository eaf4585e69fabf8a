"""Numeric values over time, server side: items over time for every level.

What all levels together say of the buckets is in `aggregators.level_sums`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from aggregators.attendance import Attendance
from aggregators.dyadic_aggregator import Estimator
from aggregators.hadamard_stream import HadamardStreamAggregator
from aggregators.level_sums import LevelSums
from aggregators.range_estimates import RangeEstimates
from randomizers.range_stream import LEVEL_SHIFT, RangeStreamLaw


class RangeStreamAggregator(LevelSums[HadamardStreamAggregator]):
    """Counts of reports; equal whatever the order, and however they were split and merged.

    >>> import numpy as np
    >>> from randomizers.range_stream.calibration import calibrate
    >>> from randomizers.range_stream import RangeStreamParameters
    >>> law = calibrate(RangeStreamParameters(1.0, 2, low=0, high=80, buckets=2), last_epoch=2)
    >>> aggregator = RangeStreamAggregator(law)
    >>> aggregator.add(1, np.array([[(1 << LEVEL_SHIFT) + 3 * 64 + 1]], np.uint32), None)
    >>> aggregator.levels[0].tree.node(order=0, index=1)
    array([1, 0, 0, 0, 1])

    Args:
        law: the constants of the job.
        estimator: "tree" combines all complete intervals, "prefix" adds up the fewest.
    """

    def __init__(self, law: RangeStreamLaw, estimator: Estimator = "tree") -> None:
        levels = [
            HadamardStreamAggregator(level, estimator, share)
            for level, share in zip(law.levels, law.level_probabilities, strict=True)
        ]
        super().__init__(law, levels, law.horizon, LEVEL_SHIFT)

    def estimate(self, epoch: int, attendance: Attendance) -> RangeEstimates:
        """See `LevelSums.estimate`; where nothing is known, estimates are 0 and flagged."""
        found = super().estimate(epoch, attendance)
        assert found is not None
        return found

    def state_after(self, epoch: int, attendance: Attendance) -> dict[str, Any]:
        """See `IntervalAggregator.state_after`: that of every level."""
        return {"levels": [level.state_after(epoch, attendance) for level in self.levels]}

    def resume(self, state: Mapping[str, Any], attendance: Attendance) -> None:
        """See `IntervalAggregator.resume`."""
        levels = state.get("levels")
        if not isinstance(levels, list) or len(levels) != len(self.levels):
            raise ValueError(f"this is no state of {len(self.levels)} levels")
        for level, of_level in zip(self.levels, levels, strict=True):
            level.resume(of_level, attendance)

    @classmethod
    def from_bytes(cls, law: RangeStreamLaw, data: bytes, estimator: Estimator = "tree") -> Self:
        """Read `to_bytes`.

        Raises:
            ValueError: the bytes are no counts of this horizon and these levels.
        """
        aggregator = cls(law, estimator)
        shares = law.level_probabilities
        aggregator.levels = aggregator.levels_from_bytes(
            data,
            lambda index, state: HadamardStreamAggregator.from_bytes(
                law.levels[index], state, estimator, shares[index]
            ),
        )
        return aggregator
