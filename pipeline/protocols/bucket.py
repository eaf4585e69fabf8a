"""For comparison: the Bucket mechanism. Its entry."""

from __future__ import annotations

from dataclasses import replace

from dpstream.aggregators.bucket import BucketAggregator
from dpstream.pipeline.protocols.measurements import measurements
from dpstream.pipeline.protocols.protocol import Example
from dpstream.pipeline.values.sets import SetDomain
from dpstream.randomizers.bucket import Bucket, BucketLaw, BucketParameters


def _labelled(aggregator: BucketAggregator, asked: BucketParameters) -> BucketAggregator:
    aggregator.label = SetDomain(asked.domain, 1).label
    return aggregator


_UNLABELLED = measurements(
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

PROTOCOL = replace(
    _UNLABELLED,
    aggregator=lambda law, asked: _labelled(BucketAggregator(law), asked),
    aggregator_from_bytes=lambda law, asked, data: _labelled(
        BucketAggregator.from_bytes(law, data), asked
    ),
)
