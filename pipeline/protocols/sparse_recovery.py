"""For comparison: a count-sketch with bit tests and Laplace noise. Its entry."""

from __future__ import annotations

from dpstream.aggregators.sparse_recovery import SparseRecoveryAggregator
from dpstream.pipeline.protocols.measurements import measurements
from dpstream.pipeline.protocols.protocol import Example
from dpstream.randomizers.sparse_recovery import (
    SparseRecovery,
    SparseRecoveryLaw,
    SparseRecoveryParameters,
)

PROTOCOL = measurements(
    "sparse_recovery",
    SparseRecoveryParameters,
    SparseRecoveryLaw,
    SparseRecovery,
    SparseRecoveryAggregator,
    SparseRecoveryAggregator.from_bytes,
    (
        Example(SparseRecoveryParameters(8.0, ("a",), 0.1, sparsity=1, calibration="published"), 1),
        Example(SparseRecoveryParameters(2.0, ("a",), sparsity=1, calibration="sampled"), 1),
    ),
    sized=True,
)
