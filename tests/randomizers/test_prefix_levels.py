from __future__ import annotations

import numpy as np
import pytest

from dpstream.randomizers.accounting.prefix_levels import PrefixPlan, Skew, plan_prefixes, predict
from dpstream.randomizers.accounting.shuffled_oracles import poisson_for_rows


def plan(bits: int = 24, contributors: int = 1_000_000, messages: float = 6.5) -> PrefixPlan:
    return plan_prefixes(bits, contributors, 1.0, 1e-6, messages)


def test_plan_has_the_noise_and_messages_of_its_levels() -> None:
    planned = plan()
    rows = len(planned.levels)
    cells = sum(level.buckets for level in planned.levels)
    assert planned.noise_mean == poisson_for_rows(1.0, 1e-6, rows=rows).mean
    assert planned.messages_per_user == pytest.approx(rows + planned.noise_mean * cells / 1e6)
    assert planned.levels[-1].length == 24
    found = predict(planned.levels, 1_000_000, planned.noise_mean)
    assert found == (planned.smallest_found, planned.standard_error)


def test_merged_zipf_ranks_preserve_total_frequencies() -> None:
    ranks = np.arange(1, (1 << 18) + 1.0)
    shares = ranks**-1.1 / (ranks**-1.1).sum()
    skew = Skew.zipf(1.1, 1 << 18)
    assert float(skew.items.sum()) == len(ranks)
    assert float(skew.items @ skew.shares) == pytest.approx(1.0)
    for share in (1e-2, 1e-4, 3e-6):
        above = float(skew.above(np.array([share]))[0])
        assert above == pytest.approx((shares > share).sum(), rel=0.01)
        squares = float(skew.squares_below(np.array([share]))[0])
        assert squares == pytest.approx((shares[shares <= share] ** 2).sum(), rel=0.01)


@pytest.mark.parametrize(
    ("minimum", "messages", "message"),
    [(0, 6.5, "minimum"), (2000, 6.5, "minimum"), (None, 1.0, "messages"), (None, 3, "messages")],
)
def test_invalid_minimum_and_message_limits_are_rejected(
    minimum: int | None, messages: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        plan_prefixes(24, 1000, 1.0, 1e-6, messages, minimum=minimum)
