"""Smoothing and prefixes against weighted least squares with matrices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.attendance import Attendance
from dpstream.aggregators.increments import Increment
from dpstream.aggregators.prefix_combiner import PrefixCombiner, Prefixes
from dpstream.aggregators.tree_smoothing import TreeEstimates, smoothed, smoothed_increments
from dpstream.randomizers.dyadic import orders_due

Array = NDArray[np.float64]
COUNTS = 2
EPOCHS = (1, 2, 3, 5, 8, 11, 16, 23, 32)


@pytest.mark.parametrize("epochs", EPOCHS)
@pytest.mark.parametrize("missing", [0.0, 0.25])
def test_smoothing_is_weighted_least_squares(epochs: int, missing: float) -> None:
    for seed in range(8):
        tree = random_tree(seed, epochs, missing)
        found = smoothed(tree)
        design, precisions, values = system(tree)
        information = design.T @ (precisions[:, None] * design)
        if np.linalg.matrix_rank(information) < epochs:
            assert found.unknown.any()
            continue
        prefixes = np.tril(np.ones((epochs, epochs)))
        solution = np.linalg.solve(information, design.T @ (precisions[:, None] * values))
        covariance = prefixes @ np.linalg.inv(information) @ prefixes.T
        assert np.abs(found.values - prefixes @ solution).max() < 1e-4
        assert np.abs(found.variances - np.diag(covariance)).max() < 1e-4
        assert not found.unknown.any()


def test_children_add_up_to_parents() -> None:
    """Estimates of longer intervals that are known exactly are reproduced by the shorter ones."""
    tree = random_tree(1, 16, 0.0)
    exact = [
        TreeEstimates(order.values, np.full_like(order.variances, 1e-12 if level == 2 else 1.0))
        for level, order in enumerate(tree)
    ]
    increments = smoothed_increments(exact)
    sums = increments.reshape(4, 4, COUNTS).sum(axis=1)
    assert sums == pytest.approx(exact[2].values, abs=1e-9)


def test_what_no_report_tells_apart_is_counted() -> None:
    """Epochs 3 and 4 are known together only, epoch 5 not at all."""
    tree = random_tree(2, 5, 0.0)
    tree[0].variances[[2, 3, 4]] = np.inf
    found = smoothed(tree)
    assert found.unknown == pytest.approx([0, 0, 0.5, 0, 1], abs=1e-3)
    assert np.isfinite(found.variances).all()
    assert found.variances.max() < 5


@pytest.mark.parametrize("epochs", EPOCHS)
def test_online_prefixes_are_weighted_least_squares_of_what_is_complete(epochs: int) -> None:
    tree = random_tree(3, epochs, 0.0)
    combiner = PrefixCombiner(COUNTS)
    for epoch in range(1, epochs + 1):
        combiner.add_epoch(own(tree, epoch))
        offline = smoothed(
            [
                TreeEstimates(o.values[: epoch >> h], o.variances[: epoch >> h])
                for h, o in enumerate(tree)
                if epoch >> h
            ]
        )
        total = combiner.total()
        assert total.value == pytest.approx(offline.values[-1])
        assert total.prior_variance == pytest.approx(offline.variances[-1])
        assert total.variance == pytest.approx(4 * offline.variances[-1])


@pytest.mark.parametrize("epochs", EPOCHS)
def test_without_combining_a_prefix_is_the_fewest_intervals(epochs: int) -> None:
    tree = random_tree(4, epochs, 0.0)
    combiner = PrefixCombiner(COUNTS, combine=False)
    for epoch in range(1, epochs + 1):
        combiner.add_epoch(own(tree, epoch))
        pieces = [h for h in range(epoch.bit_length()) if epoch >> h & 1]
        expected = sum(tree[h].values[(epoch >> h) - 1] for h in pieces)
        assert combiner.total().value == pytest.approx(expected)
        assert combiner.total().reports == len(pieces)


def test_an_interval_counts_as_one_gap_however_long() -> None:
    combiner = PrefixCombiner(1)
    known = Increment(np.array([3.0]), 1.0, 1.0, 40)
    for epoch in range(1, 9):
        combiner.add_epoch(
            [known if epoch == 6 and h == 0 else None for h in range(orders_due(epoch))]
        )
        if epoch == 4:
            assert combiner.total().gaps == (2,)
    assert sorted(combiner.total().gaps) == [0, 1, 2]
    assert combiner.total().value.tolist() == [3.0]


def test_reports_of_an_interval_are_preferred_to_halves_with_a_gap() -> None:
    combiner = PrefixCombiner(1)
    combiner.add_epoch([Increment(np.array([3.0]), 1.0, 1.0, 40)])
    combiner.add_epoch([None, Increment(np.array([5.0]), 1.0, 1.0, 40)])
    assert combiner.total().value.tolist() == [5.0]
    assert combiner.total().gaps == ()


def test_a_later_epoch_asks_for_the_new_increments_alone() -> None:
    asked: list[int] = []

    def increments(epochs: range, attendance: Attendance) -> Iterator[list[Increment | None]]:
        for epoch in epochs:
            asked.append(epoch)
            yield [Increment(np.ones(1), 1.0, 1.0, 1)] * orders_due(epoch)

    prefixes, attendance = Prefixes(increments, 1), Attendance.empty(8)
    for epoch in (1, 2, 3, 3):
        assert prefixes.at(epoch, attendance).epoch == epoch
    assert asked == [1, 2, 3]
    prefixes.changed(4)
    prefixes.at(4, attendance)
    assert asked == [1, 2, 3, 4]
    prefixes.changed(2)
    prefixes.at(2, attendance)
    assert asked == [1, 2, 3, 4, 1, 2]


def random_tree(seed: int, epochs: int, missing: float) -> list[TreeEstimates]:
    rng = np.random.default_rng(seed)
    tree = []
    for order in range(epochs.bit_length()):
        intervals = epochs >> order
        variances = rng.uniform(0.5, 2, intervals)
        variances[rng.random(intervals) < missing] = np.inf
        tree.append(TreeEstimates(rng.normal(size=(intervals, COUNTS)), variances))
    return tree


def own(tree: list[TreeEstimates], epoch: int) -> list[Increment | None]:
    """Own increments of a tree without missing intervals; variances four times the prior ones."""
    return [
        Increment(
            tree[h].values[(epoch >> h) - 1],
            float(tree[h].variances[(epoch >> h) - 1]),
            4 * float(tree[h].variances[(epoch >> h) - 1]),
            1,
        )
        for h in range(orders_due(epoch))
    ]


def system(tree: list[TreeEstimates]) -> tuple[Array, Array, Array]:
    """Rows of intervals that are known, their precisions and their values."""
    epochs = len(tree[0].variances)
    rows, precisions, values = [], [], []
    for order, estimates in enumerate(tree):
        for index, variance in enumerate(estimates.variances.tolist()):
            if np.isfinite(variance):
                row = np.zeros(epochs)
                row[index << order : (index + 1) << order] = 1
                rows.append(row)
                precisions.append(1 / variance)
                values.append(estimates.values[index])
    return (
        np.array(rows).reshape(-1, epochs),
        np.array(precisions),
        np.array(values).reshape(-1, COUNTS),
    )
