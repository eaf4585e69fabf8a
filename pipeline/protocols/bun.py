"""For comparison: the composed randomizer of Bun, Nelson and Stemmer; forecast as FutureRand."""

from __future__ import annotations

from dpstream.pipeline.protocols.future_rand import dyadic_comparison
from dpstream.pipeline.protocols.protocol import Example
from dpstream.randomizers.comparisons import BunParameters

PROTOCOL = dyadic_comparison(
    "bun",
    BunParameters,
    (
        Example(BunParameters(8.0, 1), 2),
        Example(BunParameters(12.0, 2), 4),
    ),
)
