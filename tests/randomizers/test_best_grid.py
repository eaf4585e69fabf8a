"""Test the choice of trees: the least predicted error within the message limit."""

from __future__ import annotations

import numpy as np
import pytest

from dpstream.randomizers.accounting.best_grid import (
    best_grid,
    best_levels,
    best_shapes,
    mean_deviation,
)
from dpstream.randomizers.accounting.prefix_levels import PrefixPlan, Skew, plan_prefixes, predict
from dpstream.randomizers.accounting.shuffled_oracles import poisson_for_code, poisson_for_rows
from dpstream.randomizers.cell_codes.grid import Grid
from tests.support.box_error import box_error


def noise_mean(messages: int, shared: int) -> float:
    return poisson_for_code(1.0, 1e-6, messages, shared).mean


@pytest.mark.parametrize("size", [2, 3, 7, 65, 1000, 1025])
def test_best_tree_shapes_cover_all_values_with_few_empty_leaves(size: int) -> None:
    shapes = best_shapes(size)
    assert [levels.messages for levels, _ in shapes] == list(
        range(shapes[0][0].messages, shapes[0][0].messages + len(shapes))
    )
    for levels, deviation in shapes:
        assert levels.size == size <= levels.leaves < size + levels.widths[1]
        assert deviation == mean_deviation(levels)


@pytest.mark.verify
def test_best_grid_has_the_least_error_among_affordable_grids() -> None:
    def affordable(grid: Grid, mean: float) -> bool:
        return grid.messages + grid.cells * mean / 100_000 <= 10

    best = best_grid([12, 12], noise_mean, affordable)
    assert affordable(best, noise_mean(best.messages, best.shared))
    error = box_error(best, noise_mean(best.messages, best.shared))
    better = 0
    for one, _ in best_shapes(12):
        for other, _ in best_shapes(12):
            grid = Grid((one, other))
            mean = noise_mean(grid.messages, grid.shared)
            if box_error(grid, mean) < error * (1 - 1e-9):
                assert not affordable(grid, mean)
                better += 1
    assert better


def test_best_grid_is_rejected_when_no_grid_is_affordable() -> None:
    with pytest.raises(ValueError, match="no tree over 4 x 4 values fits the message limit"):
        best_grid([4, 4], lambda messages, shared: 1.0, lambda grid, mean: False)


def test_search_for_best_levels_rejects_a_domain_of_one_value() -> None:
    with pytest.raises(ValueError, match="1 values; expected at least 2"):
        best_levels(1, noise_mean)


def plan(bits: int = 24, contributors: int = 1_000_000, messages: float = 6.5) -> PrefixPlan:
    return plan_prefixes(bits, contributors, 1.0, 1e-6, messages)


def test_plan_states_the_noise_and_messages_that_its_levels_require() -> None:
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
