"""For comparison: a sign for every partial sum, drawn by itself; forecast as FutureRand."""

from __future__ import annotations

from dpstream.pipeline.protocols.future_rand import dyadic_comparison
from dpstream.pipeline.protocols.protocol import Example
from dpstream.randomizers.comparisons import IndependentResponseParameters

PROTOCOL = dyadic_comparison(
    "independent_response",
    IndependentResponseParameters,
    (
        Example(IndependentResponseParameters(1.0, 1), 2),
        Example(IndependentResponseParameters(3.0, 2, "tree"), 4),
    ),
)
