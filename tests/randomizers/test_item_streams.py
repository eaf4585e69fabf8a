"""Test that messages about items never lose more than is charged, by enumeration."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.randomizers.accounting.item_streams import ItemReports, noise_for_items, raised_losses
from dpstream.randomizers.accounting.loss_distributions import composed
from dpstream.randomizers.accounting.overlapping_cells import poisson_for_overlapping
from dpstream.randomizers.accounting.shifted_noise import (
    GRID_FINENESS,
)

MOST = 70


def view(mean: float, messages: int) -> NDArray[np.float64]:
    dummies = stats.poisson.pmf(np.arange(MOST), mean)
    raised = np.concatenate([np.zeros(messages), dummies])[:MOST]
    law: NDArray[np.float64] = np.multiply.outer(raised, dummies)
    return law


@pytest.mark.slow
@pytest.mark.parametrize(("mean", "messages"), list(product((6.0, 15.0), (1, 2, 3))))
def test_loss_between_any_two_items_is_at_most_the_charged_loss(mean: float, messages: int) -> None:
    one = view(mean, messages)
    other = one.T
    removed, added = raised_losses(mean, messages)
    width = GRID_FINENESS * messages / math.sqrt(mean)
    charged = composed([(removed, 1), (added, 1)], width)
    for epsilon in (0.1, 0.5, 1.0, 2.0, 4.0):
        spent = float(np.maximum(one - math.exp(epsilon) * other, 0).sum())
        delta = charged.delta(epsilon)
        assert spent <= delta + 1e-12
        assert delta <= 1.01 * spent + 1e-12


def test_items_without_a_boost_need_the_same_noise_as_overlapping_cells() -> None:
    overlap = 0.05
    reports = ItemReports(16, 0, 0, overlap)
    needed, none = noise_for_items(1.0, 1e-6, reports)
    assert none is None
    assert needed == poisson_for_overlapping(1.0, 1e-6, overlap, epochs=16)


def test_boost_is_rejected_if_items_share_messages() -> None:
    with pytest.raises(
        ValueError,
        match=r"boost is 2 and overlap is .*; expected one of them to be 0",
    ):
        ItemReports(64, 2, 2, 0.01)


@pytest.mark.parametrize(
    ("epochs", "boost", "reference"),
    [
        (64, 2, (4_090, 1_233)),
        pytest.param(256, 5, (17_685, 6_582), marks=pytest.mark.verify),
    ],
)
def test_noise_is_at_most_the_noise_of_the_reference(
    epochs: int, boost: int, reference: tuple[int, int]
) -> None:
    """The reference also charges for leaving an item at the first change, when no user has one."""
    plus, minus = noise_for_items(1.0, 1e-6, ItemReports(epochs, 2, boost, 0.0))
    assert minus is not None
    assert 0.75 * sum(reference) < plus + minus < sum(reference)
