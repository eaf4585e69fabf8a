"""Test the split budget: epsilon of the stream, divided equally among the epochs."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest

from experiments.protocols.baselines import SplitBudget, SplitBudgetParameters
from experiments.protocols.baselines.calibration import calibrate


@pytest.mark.parametrize("epsilon", [1e-6, 0.3, 1.0, 64.0])
@pytest.mark.parametrize("last_epoch", [1, 3, 7, 256, 1000])
def test_losses_of_all_epochs_sum_to_at_most_epsilon(
    epsilon: float, last_epoch: int, exponential_below: Callable[[float], Fraction]
) -> None:
    law = calibrate(SplitBudgetParameters(epsilon), last_epoch)
    kept, reversed_ = law.response.weights
    # exponential_below is within 2^-400 of the true value.
    assert Fraction(kept, reversed_) ** last_epoch <= exponential_below(epsilon)
    assert law.loss == SplitBudget(law).guarantee.epsilon == epsilon
    assert law.c_gap == pytest.approx(math.tanh(epsilon / last_epoch / 2), rel=1e-12)
