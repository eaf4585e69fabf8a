"""Compare smoothing and prefixes with weighted least squares on matrices."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.increments import Increment
from dpstream.aggregators.prefix_combiner import PrefixCombiner
from dpstream.aggregators.tree_smoothing import TreeEstimates, smoothed
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


@pytest.mark.parametrize("epochs", EPOCHS)
def test_online_prefix_sums_are_least_squares_estimates_from_complete_intervals(
    epochs: int,
) -> None:
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
    """Return increments of a tree without missing intervals; variances are four times the prior."""
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
