"""For comparison: random projections with Laplace noise. Its entry."""

from __future__ import annotations

from dpstream.aggregators.measurements import ParityAggregator
from dpstream.pipeline.protocols.measurements import measurements
from dpstream.pipeline.protocols.protocol import Example
from dpstream.randomizers.jl_hh import JlHh, JlHhLaw, JlHhParameters


def _caveats(law: JlHhLaw, asked: JlHhParameters) -> tuple[str, ...]:
    if law.odds is None:
        return ()
    return (
        "one row of each user by randomized response: hadamard_values has the same rows, follows "
        "items over time, and errs up to 1.3 times as much at one epoch",
    )


PROTOCOL = measurements(
    "jl_hh",
    JlHhParameters,
    JlHhLaw,
    JlHh,
    ParityAggregator[JlHhLaw],
    ParityAggregator[JlHhLaw].from_bytes,
    (
        Example(JlHhParameters(8.0, ("a",), 0.1, calibration="published"), 1),
        Example(JlHhParameters(8.0, ("a", "b"), 0.1, 2), 1),
        Example(JlHhParameters(1.0, ("a", "b", "c"), calibration="sampled"), 1),
    ),
    caveats=_caveats,
)
