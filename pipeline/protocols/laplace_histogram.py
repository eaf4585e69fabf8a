"""For comparison: Laplace noise in every cell of a user's histogram. Its entry."""

from __future__ import annotations

from dpstream.aggregators.measurements import LaplaceHistogramAggregator
from dpstream.pipeline.protocols.measurements import measurements
from dpstream.pipeline.protocols.protocol import Example
from dpstream.randomizers.laplace_histogram import (
    LaplaceHistogram,
    LaplaceHistogramLaw,
    LaplaceHistogramParameters,
)

PROTOCOL = measurements(
    "laplace_histogram",
    LaplaceHistogramParameters,
    LaplaceHistogramLaw,
    LaplaceHistogram,
    LaplaceHistogramAggregator,
    LaplaceHistogramAggregator.from_bytes,
    (
        Example(LaplaceHistogramParameters(4.0, ("a", "b")), 1),
        Example(LaplaceHistogramParameters(2.0, ("a",), "published"), 2),
    ),
)
