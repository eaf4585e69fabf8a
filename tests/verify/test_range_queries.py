"""Accuracy of ranges, boxes and quantiles at epsilon 1 and delta 10^-6, for one epoch.

The counts of drawn values in cells get Poisson noise. Errors depend neither on the values nor on
their number.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.grid_counts import GridCounts
from dpstream.aggregators.quantiles import quantile
from dpstream.randomizers.accounting.best_grid import best_grid, best_levels
from dpstream.randomizers.accounting.shuffled_oracles import poisson_for_code, poisson_for_rows
from dpstream.randomizers.cell_codes.grid import AxisCode, Grid
from dpstream.randomizers.cell_codes.kept_nodes import KeptNodes
from dpstream.randomizers.cell_codes.levels import Levels
from tests.support.box_error import box_error
from tests.verify.tables import print_table

EPSILON, DELTA = 1.0, 1e-6
SIZE, SIDE = 1024, 64
PEOPLE = 100_000
MOST_MESSAGES = 30
CHOSEN = Levels(SIZE, (8, 4, 4, 4, 2))
QUERIES = 2_000
# Errors of ranges within a run are highly dependent; this is six measured standard errors.
TOLERANCE = 0.07


def noise_mean(messages: int, shared: int) -> float:
    return poisson_for_code(EPSILON, DELTA, messages, shared).mean


def messages_per_user(code: AxisCode | Grid, mean: float) -> float:
    return code.messages + code.cells * mean / PEOPLE


def drawn(sizes: tuple[int, ...], people: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return skewed coordinates, shape (people, axes), in which every value occurs."""
    shares = rng.beta(1.5, 4.0, (people, len(sizes)))
    shares[::10] = rng.random(shares[::10].shape)
    return (shares * sizes).astype(np.int64)


def windows(
    code: AxisCode | Grid, points: NDArray[np.int64], mean: float, runs: int, seed: int
) -> list[GridCounts]:
    """Return estimates from `runs` windows with the same users."""
    items = code.items(points) if isinstance(code, Grid) else points[:, 0] + 1
    cells = code.encode(items)
    exact = np.bincount(cells[cells >= 0], minlength=code.cells)
    rng = np.random.default_rng(seed)
    return [
        GridCounts.from_cells(code, exact + rng.poisson(mean, code.cells), mean, mean, len(points))
        for _ in range(runs)
    ]


def mean_absolute_error(
    code: AxisCode | Grid, people: int, mean: float, runs: int, seed: int
) -> float:
    rng = np.random.default_rng(seed + 1)
    grid = code if isinstance(code, Grid) else Grid((code,))
    points = drawn(grid.sizes, people, rng)
    ground_truth = np.zeros(grid.sizes)
    np.add.at(ground_truth, tuple(points.T), 1)
    ends = [np.triu_indices(size + 1, 1) for size in grid.sizes]
    chosen = [rng.integers(len(starts), size=QUERIES) for starts, _ in ends]
    corners = [(starts[at], stops[at]) for (starts, stops), at in zip(ends, chosen, strict=True)]
    errors = []
    for counts in windows(code, points, mean, runs, seed):
        sums = np.pad(counts.values - ground_truth, [(1, 0)] * ground_truth.ndim)
        for axis in range(ground_truth.ndim):
            sums = np.cumsum(sums, axis=axis)
        boxes = np.zeros(QUERIES)
        for sides in product((0, 1), repeat=ground_truth.ndim):
            sign = (-1) ** (ground_truth.ndim - sum(sides))
            boxes += (
                sign * sums[tuple(pair[side] for pair, side in zip(corners, sides, strict=True))]
            )
        errors.append(np.abs(boxes).mean())
    return float(np.mean(errors))


@pytest.mark.verify
def test_range_error_is_at_most_22_for_any_number_of_users() -> None:
    best = best_levels(SIZE, noise_mean)
    codes: list[AxisCode] = [
        best,
        CHOSEN,
        *(Levels(SIZE, branching) for branching in ((4,) * 5, (8, 8, 4, 4), (32, 32), (2,) * 10)),
        KeptNodes(SIZE),
    ]
    rows, measured = [], {}
    for number, code in enumerate(codes):
        mean = noise_mean(code.messages, code.shared)
        predicted = box_error(Grid((code,)), mean)
        found = [mean_absolute_error(code, n, mean, 300, number) for n in (PEOPLE, 10 * PEOPLE)]
        plain = box_error(Grid((code,)), poisson_for_rows(EPSILON, DELTA, code.messages).mean)
        name = " x ".join(map(str, code.branching)) if isinstance(code, Levels) else "kept nodes"
        measured[code] = found
        rows.append(
            [
                name,
                f"{mean:.1f}",
                f"{messages_per_user(code, mean):.1f}",
                f"{predicted:.1f}",
                *(f"{error:.1f}" for error in found),
                f"{plain:.1f}",
            ]
        )
        assert found == pytest.approx([predicted] * 2, rel=TOLERANCE)
    print_table(
        f"Mean absolute error of random ranges of {SIZE:,} values, epsilon {EPSILON:g}, 300 runs",
        [
            "tree",
            "lambda",
            "messages, n = 1e5",
            "predicted",
            "n = 1e5",
            "n = 1e6",
            "with noise for all messages",
        ],
        rows,
    )
    for code in (best, CHOSEN):
        assert max(measured[code]) <= 22
    assert min(measured[KeptNodes(SIZE)]) > 2 * 20


@pytest.mark.verify
def test_box_errors_match_predictions() -> None:
    sides = (SIDE, SIDE)
    affordable = best_grid(
        sides, noise_mean, lambda grid, mean: messages_per_user(grid, mean) <= MOST_MESSAGES
    )
    grids = [
        best_grid(sides, noise_mean),
        affordable,
        Grid((Levels(SIDE, (8, 8)),) * 2),
        Grid((Levels(SIDE, (SIDE,)),) * 2),
        Grid((KeptNodes(SIDE),) * 2),
    ]
    rows, measured = [], []
    for number, grid in enumerate(grids):
        mean = noise_mean(grid.messages, grid.shared)
        predicted = box_error(grid, mean)
        found = mean_absolute_error(grid, PEOPLE, mean, 100, number)
        axis = grid.axes[0]
        name = " x ".join(map(str, axis.branching)) if isinstance(axis, Levels) else "kept nodes"
        rows.append(
            [
                name,
                f"{mean:.1f}",
                f"{messages_per_user(grid, mean):.1f}",
                f"{predicted:.1f}",
                f"{found:.1f}",
            ]
        )
        measured.append(found)
        assert found == pytest.approx(predicted, rel=TOLERANCE)
    print_table(
        f"Mean absolute error of random boxes on {SIDE} x {SIDE}, epsilon {EPSILON:g}, 100 runs",
        ["tree of each axis", "lambda", "messages, n = 1e5", "predicted", "n = 1e5"],
        rows,
    )
    assert measured[0] < 39
    assert measured[1] < 46


@pytest.mark.verify
def test_quantile_rank_error_is_at_most_one_thousandth() -> None:
    shares, rows = np.arange(1, 10) / 10, []
    codes: list[AxisCode] = [CHOSEN, Levels(SIZE, (32, 32)), KeptNodes(SIZE)]
    for (number, code), people in product(enumerate(codes), (PEOPLE, 10 * PEOPLE)):
        mean = noise_mean(code.messages, code.shared)
        points = drawn((SIZE,), people, np.random.default_rng(number))
        below = np.cumsum(np.bincount(points[:, 0] + 1, minlength=SIZE + 1)) / people
        errors = []
        for counts in windows(code, points, mean, 20, number):
            for share in shares:
                value = quantile(counts, share).value
                errors.append(max(0.0, below[value] - share, share - below[value + 1]))
        name = " x ".join(map(str, code.branching)) if isinstance(code, Levels) else "kept nodes"
        rows.append([name, f"{people:,}", f"{np.mean(errors):.6f}", f"{max(errors):.6f}"])
        assert np.mean(errors) <= 0.001
        assert math.isclose(below[-1], 1)
    print_table(
        f"Rank error of quantiles .1 to .9 of {SIZE:,} values, epsilon {EPSILON:g}, 20 runs",
        ["tree", "n", "mean", "largest"],
        rows,
    )
