"""For comparison: the Bucket mechanism. Its entry."""

from __future__ import annotations

from dpstream.aggregators.bucket import BucketAggregator
from dpstream.pipeline.protocols.measurements import measurements
from dpstream.pipeline.protocols.protocol import Example
from dpstream.randomizers.bucket import Bucket, BucketLaw, BucketParameters

PROTOCOL = measurements(
    "bucket",
    BucketParameters,
    BucketLaw,
    Bucket,
    BucketAggregator,
    BucketAggregator.from_bytes,
    (
        Example(BucketParameters(8.0, ("a", "b"), 0.1, hashes=1, trials=2), 1),
        Example(BucketParameters(2.0, ("a", "b"), hashes=2, trials=2, calibration="sampled"), 1),
    ),
)
