"""For comparison: the mechanism of Erlingsson and others; forecast as FutureRand."""

from __future__ import annotations

from dpstream.pipeline.protocols.future_rand import dyadic_comparison
from dpstream.pipeline.protocols.protocol import Example
from dpstream.randomizers.comparisons import ErlingssonParameters

PROTOCOL = dyadic_comparison(
    "erlingsson",
    ErlingssonParameters,
    (
        Example(ErlingssonParameters(4.0, 2), 4),
        Example(ErlingssonParameters(2.0, 2, calibration="full"), 4),
    ),
)
