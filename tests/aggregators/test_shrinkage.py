"""Test shrinkage: factors computed by hand, and smaller errors if counts change little."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.increments import Increment
from dpstream.aggregators.prefix_combiner import PrefixCombiner
from dpstream.aggregators.shrinkage import offline_shrunk, online_shrunk
from dpstream.aggregators.tree_smoothing import TreeEstimates, smoothed
from dpstream.randomizers.dyadic import orders_due

Array = NDArray[np.float64]


def test_online_shrunk_estimates_match_hand_computed_values() -> None:
    tree = [
        TreeEstimates(np.array([[3.0], [1.0]]), np.array([2.0, 2.0])),
        TreeEstimates(np.array([[6.0]]), np.array([2.0])),
    ]
    piece = 2 / 3 * 6 + 1 / 3 * 4
    variance = (2 / 3) ** 2 * 2 + (1 / 3) ** 2 * 4
    expected = [3 * (1 - 2 / 9), piece * (1 - variance / piece**2)]
    assert online_shrunk(tree)[:, 0] == pytest.approx(expected)


def test_offline_shrunk_estimates_match_hand_computed_values() -> None:
    tree = [
        TreeEstimates(np.array([[9.0], [1.0]]), np.array([2.0, 2.0])),
        TreeEstimates(np.array([[6.0]]), np.array([2.0])),
    ]
    total = 2 / 3 * 6 + 1 / 3 * 10
    total *= 1 - (4 / 3) / total**2
    departure = 4 * (1 - 1 / 16)
    assert offline_shrunk(tree)[:, 0] == pytest.approx([total / 2 + departure, total])


def test_online_estimates_use_no_later_reports() -> None:
    tree = random_tree(7, 23, noise=1.0, missing=0.2)
    whole = online_shrunk(tree)
    for epochs in range(1, 23):
        part = [
            TreeEstimates(order.values[: epochs >> h], order.variances[: epochs >> h])
            for h, order in enumerate(tree)
            if epochs >> h
        ]
        assert online_shrunk(part)[-1] == pytest.approx(whole[epochs - 1])


@pytest.mark.parametrize("steps", ["none", "smooth", "sudden"])
def test_shrinkage_reduces_the_error_if_counts_change_little(steps: str) -> None:
    """Averaged over the noise, errors shrink by at least a third, unless a change is sudden."""
    epochs = 128
    increments = np.zeros(epochs)
    if steps == "smooth":
        increments[:] = 0.5 * np.sin(np.arange(epochs) / 20)
    if steps == "sudden":
        increments[40] = 60.0
    errors: dict[str, list[float]] = {"smoothed": [], "shrunk": []}
    for seed in range(40):
        tree = random_tree(seed, epochs, noise=9.0, signal=0.0)
        for h, order in enumerate(tree):
            order.values[:] += increments.reshape(-1, 1 << h).sum(axis=1)[:, None]
        ground_truth = np.cumsum(increments)[:, None]
        errors["smoothed"].append(float(np.square(smoothed(tree).values - ground_truth).mean()))
        errors["shrunk"].append(float(np.square(offline_shrunk(tree) - ground_truth).mean()))
    ratio = math.sqrt(np.mean(errors["shrunk"]) / np.mean(errors["smoothed"]))
    assert ratio < {"none": 0.6, "smooth": 0.8, "sudden": 1.1}[steps]


def random_tree(
    seed: int, epochs: int, noise: float, signal: float = 3.0, missing: float = 0.0
) -> list[TreeEstimates]:
    rng = np.random.default_rng(seed)
    prefixes = np.vstack([np.zeros(2), np.cumsum(signal * rng.normal(size=(epochs, 2)), axis=0)])
    tree = []
    for order in range(epochs.bit_length()):
        values = np.diff(prefixes[:: 1 << order], axis=0)[: epochs >> order]
        variances = noise * rng.uniform(0.5, 2, len(values))
        values = values + np.sqrt(variances)[:, None] * rng.normal(size=values.shape)
        variances[rng.random(len(values)) < missing] = np.inf
        tree.append(TreeEstimates(values, variances))
    return tree


def prefixes(tree: list[TreeEstimates], *, combine: bool) -> Array:
    combiner, found = PrefixCombiner(2, combine=combine), []
    for epoch in range(1, len(tree[0].values) + 1):
        combiner.add_epoch(own(tree, epoch))
        found.append(combiner.total().value)
    return np.array(found)


def own(tree: list[TreeEstimates], epoch: int) -> list[Increment | None]:
    found: list[Increment | None] = []
    for order in range(orders_due(epoch)):
        variance = float(tree[order].variances[(epoch >> order) - 1])
        value = tree[order].values[(epoch >> order) - 1]
        found.append(Increment(value, variance, variance, 1) if np.isfinite(variance) else None)
    return found
