"""For comparison: the mechanism of Erlingsson and others; forecast as FutureRand."""

from __future__ import annotations

from pipeline.protocols.future_rand import dyadic_comparison
from pipeline.protocols.protocol import Example
from randomizers.comparisons import ErlingssonParameters

PROTOCOL = dyadic_comparison(
    "erlingsson",
    ErlingssonParameters,
    (
        Example(ErlingssonParameters(4.0, 2), 4),
        Example(ErlingssonParameters(2.0, 2, calibration="full"), 4),
    ),
)
