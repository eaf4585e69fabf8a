from __future__ import annotations

import numpy as np
import pytest

from dpstream.randomizers.accounting.prefix_levels import PrefixPlan, Skew, plan_prefixes, predict
from dpstream.randomizers.accounting.shuffled_oracles import poisson_for_rows


def plan(bits: int = 24, contributors: int = 1_000_000, messages: float = 6.5) -> PrefixPlan:
    return plan_prefixes(bits, contributors, 1.0, 1e-6, messages)


def test_noise_and_messages_are_those_of_the_levels() -> None:
    planned = plan()
    rows = len(planned.levels)
    cells = sum(level.buckets for level in planned.levels)
    assert planned.noise_mean == poisson_for_rows(1.0, 1e-6, rows=rows).mean
    assert planned.messages_per_user == pytest.approx(rows + planned.noise_mean * cells / 1e6)
    assert planned.levels[-1].length == 24
    found = predict(planned.levels, 1_000_000, planned.noise_mean)
    assert found == (planned.smallest_found, planned.standard_deviation)


@pytest.mark.slow
@pytest.mark.parametrize("messages", [4.0, 6.5])
def test_messages_are_within_the_limit_and_more_of_them_find_smaller_counts(
    messages: float,
) -> None:
    fewer, more = plan(messages=messages), plan(messages=messages * 1.5)
    assert fewer.messages_per_user <= messages
    assert more.smallest_found < fewer.smallest_found


def test_a_small_domain_needs_no_search() -> None:
    planned = plan(bits=10)
    assert [(level.length, level.buckets) for level in planned.levels] == [(10, 1024)]
    assert planned.standard_deviation == pytest.approx(planned.noise_mean**0.5)


@pytest.mark.verify
def test_short_strings_are_planned_too() -> None:
    planned = plan_prefixes(56, 1_000_000, 1.0, 1e-6, messages_per_user=20.0)
    assert planned.levels[-1].length == 56
    assert planned.smallest_found < 2_000


@pytest.mark.slow
def test_noise_of_a_minimum_is_larger_with_everybody() -> None:
    half = plan_prefixes(24, 1_000_000, 1.0, 1e-6, 6.5, minimum=500_000)
    assert half.messages_per_user <= 6.5
    assert half.smallest_found > plan().smallest_found


def test_zipf_is_summarised_without_loss() -> None:
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
def test_what_cannot_be_is_refused(minimum: int | None, messages: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_prefixes(24, 1000, 1.0, 1e-6, messages, minimum=minimum)
