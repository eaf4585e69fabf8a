"""Which protocols are named beside those of the shuffled model, by what users have."""

from __future__ import annotations

import pytest

from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.item_domains import Bits, Numbers, StreamDomain
from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters


@pytest.mark.parametrize(
    ("domain", "others"),
    [
        (None, ["value_stream", "future_rand", "split_budget"]),
        (("walk", "bus"), ["hadamard_values"]),
        (Numbers(0.0, 80.0, 16), ["range_values"]),
        (Bits(4), []),
    ],
)
def test_those_that_count_the_same_are_named(
    domain: StreamDomain | None, others: list[str]
) -> None:
    asked = ShuffledCountsParameters(1.0, 1e-6, domain=domain)
    named = dict(PROTOCOLS["shuffled_counts"].alternatives(asked, 8))
    assert list(named) == ["shuffled_counts", *others]
    for name in others:
        assert isinstance(named[name](), PROTOCOLS[name].parameters)
