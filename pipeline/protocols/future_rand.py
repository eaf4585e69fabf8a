"""Registry entry for FutureRand: the number of users with value 1 at every epoch."""

from __future__ import annotations

from dpstream.pipeline.protocols.dyadic_variants import dyadic_protocol
from dpstream.pipeline.protocols.late_calibration import late_calibration
from dpstream.pipeline.protocols.protocol import Example
from dpstream.randomizers.future_rand import FutureRandParameters

PROTOCOL = dyadic_protocol(
    "future_rand",
    FutureRandParameters,
    late_calibration("future_rand"),
    (
        Example(FutureRandParameters(1.0, 1), 2),
        Example(FutureRandParameters(2.0, 2), 4),
        Example(FutureRandParameters(1.5, 2), 3),
        Example(FutureRandParameters(4.0, 1, "published"), 2),
        Example(FutureRandParameters(8.0, 2, "published"), 4),
    ),
)
