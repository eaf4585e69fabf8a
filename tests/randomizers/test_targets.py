"""Test properties of all accounting functions: rejected targets and monotonicity.

The tables below list every function with a parameter epsilon or delta. Each function rejects
invalid targets. For a smaller target it never returns less noise, nor a smaller epsilon for a
smaller delta.
"""

from __future__ import annotations

import inspect
import math
import pkgutil
from collections.abc import Callable, Iterator
from importlib import import_module

import pytest

from dpstream.randomizers import accounting
from dpstream.randomizers.accounting import (
    amplification,
    boosted_counts,
    charges,
    connected_dots,
    continual_counts,
    item_streams,
    level_streams,
    overlapping_cells,
    renyi_shift,
    shifted_noise,
    shuffled_oracles,
    whole_streams,
)
from dpstream.randomizers.accounting.amplification import HiddenCoin
from dpstream.randomizers.accounting.boosted_counts import BoostedReports
from dpstream.randomizers.accounting.cell_noise import PoissonNoise
from dpstream.randomizers.accounting.item_streams import ItemReports
from dpstream.randomizers.accounting.shifted_noise import ShiftedCells

COIN = HiddenCoin(1.0, 0.3)
REPORTS = BoostedReports(8, 2, 1)
ITEMS = ItemReports(4, 2, 1, 0.0)
NOISE = PoissonNoise(300.0)


def cells(noise: PoissonNoise) -> list[ShiftedCells]:
    return [ShiftedCells(noise, 1, 4)]


NOISE_FOR: dict[str, Callable[[float, float], float]] = {
    "boosted_counts.poisson_for_boosted": lambda epsilon, delta: (
        boosted_counts.poisson_for_boosted(epsilon, delta, REPORTS).mean
    ),
    "boosted_counts.best_boost": lambda epsilon, delta: (
        boosted_counts.best_boost(epsilon, delta, 8, 2)[1].mean
    ),
    "continual_counts.poisson_for_epochs": lambda epsilon, delta: (
        continual_counts.poisson_for_epochs(epsilon, delta, 4).mean
    ),
    "continual_counts.negative_binomial_for_epochs": lambda epsilon, delta: (
        continual_counts.negative_binomial_for_epochs(epsilon, delta, 4).variance
    ),
    "item_streams.noise_for_items": lambda epsilon, delta: item_streams.noise_for_items(
        epsilon, delta, ITEMS
    )[0],
    "level_streams.poisson_for_levels": lambda epsilon, delta: level_streams.poisson_for_levels(
        epsilon, delta, 4, 2
    ),
    "connected_dots.normal_deviation": connected_dots.normal_deviation,
    "overlapping_cells.poisson_for_overlapping": (
        lambda epsilon, delta: overlapping_cells.poisson_for_overlapping(epsilon, delta, 0.1)
    ),
    "shuffled_oracles.poisson_for_code": lambda epsilon, delta: (
        shuffled_oracles.poisson_for_code(epsilon, delta, 3, 1).mean
    ),
    "shifted_noise.least_mean": lambda epsilon, delta: shifted_noise.least_mean(
        epsilon, delta, lambda mean: cells(PoissonNoise(mean)), 100.0
    ),
    "shuffled_oracles.poisson_for_rows": lambda epsilon, delta: (
        shuffled_oracles.poisson_for_rows(epsilon, delta, 2).mean
    ),
    "shuffled_oracles.binomial_for_rows": (
        lambda epsilon, delta: shuffled_oracles.binomial_for_rows(epsilon, delta, 10**6, 2).mean
    ),
    "shuffled_oracles.negative_binomial_for_rows": (
        lambda epsilon, delta: (
            shuffled_oracles.negative_binomial_for_rows(epsilon, delta, 2).variance
        )
    ),
    "shuffled_oracles.published_mean": lambda epsilon, delta: shuffled_oracles.published_mean(
        epsilon, delta, 2
    ),
    "shuffled_oracles.published_probability": lambda epsilon, delta: (
        shuffled_oracles.published_probability(epsilon, delta, 10**6, 2)
    ),
}

LOSS_FOR: dict[str, Callable[[float, float], float]] = {
    "amplification.most_local_loss": lambda epsilon, delta: amplification.most_local_loss(
        epsilon, delta, 10**4, lambda loss: [amplification.of_any_randomizer(loss)]
    ),
    "whole_streams.local_loss_of_streams": lambda epsilon, delta: (
        whole_streams.local_loss_of_streams(epsilon, delta, 10**4)
    ),
}
"""Functions that return a device's local loss, which is smaller for smaller epsilon or delta."""

EPSILON_FOR: dict[str, Callable[[float], float]] = {
    "amplification.amplified_epsilon": lambda delta: amplification.amplified_epsilon(
        COIN, 10**4, delta
    ),
    "charges.step_to_epsilon": lambda delta: charges.step_to_epsilon(8.0, delta),
    "charges.composed_epsilon": lambda delta: charges.composed_epsilon(
        [charges.MechanismCost(0.1, 0.0)] * 20, delta
    ),
    "continual_counts.epsilon_for_epochs": lambda delta: continual_counts.epsilon_for_epochs(
        NOISE, delta, 4
    ),
    "item_streams.epsilon_for_items": lambda delta: item_streams.epsilon_for_items(
        300.0, 300.0, delta, ITEMS
    ),
    "level_streams.epsilon_for_levels": lambda delta: level_streams.epsilon_for_levels(
        300.0, delta, 4, 2
    ),
    "overlapping_cells.epsilon_for_overlapping": (
        lambda delta: overlapping_cells.epsilon_for_overlapping(300.0, delta, 0.1)
    ),
    "renyi_shift.renyi_epsilon": lambda delta: renyi_shift.renyi_epsilon(NOISE, {1: 4}, delta)[0],
    "shifted_noise.epsilon_spent": lambda delta: shifted_noise.epsilon_spent(cells(NOISE), delta),
    "whole_streams.epsilon_of_streams": lambda delta: whole_streams.epsilon_of_streams(
        1.0, 1000, delta
    ),
    "whole_streams.charged_once": (
        lambda delta: whole_streams.charged_once(1.0, 1000, delta).epsilon
    ),
}

OF_NO_DELTA = {"charges.composed_epsilon": 2.0}
"""Results for a delta of 0, which other functions reject."""

ELSEWHERE = {
    # It predicts the accuracy of calibrations that are tested here.
    "prefix_levels.plan_prefixes",
    # Functions that are tested here use these searches.
    "shifted_noise.fewest_dummies",
    "directions.least_mean_either_way",
    # These functions only check targets and tables.
    "shifted_noise.check_target",
    "table_distances.check_tables",
}

NO_DELTA = (0.0, -1e-6, math.nan)
NO_EPSILON = (0.0, -1.0, math.nan)


def told_a_delta() -> Iterator[str]:
    for found in pkgutil.iter_modules(accounting.__path__):
        module = import_module(f"{accounting.__name__}.{found.name}")
        for name, value in vars(module).items():
            public = inspect.isroutine(value) and not name.startswith("_")
            own = public and value.__module__ == module.__name__
            if own and "delta" in inspect.signature(value).parameters:
                yield f"{found.name}.{name}"


def test_every_function_that_takes_a_delta_is_tested() -> None:
    assert set(told_a_delta()) == {*NOISE_FOR, *LOSS_FOR, *EPSILON_FOR, *ELSEWHERE}


@pytest.mark.parametrize("name", [*NOISE_FOR, *LOSS_FOR])
def test_invalid_targets_are_rejected(name: str) -> None:
    answer = {**NOISE_FOR, **LOSS_FOR}[name]
    for delta in (*NO_DELTA, 1.0):
        with pytest.raises(ValueError, match="delta"):
            answer(1.0, delta)
    for epsilon in NO_EPSILON:
        with pytest.raises(ValueError, match="epsilon"):
            answer(epsilon, 1e-6)


@pytest.mark.parametrize("name", EPSILON_FOR)
def test_invalid_deltas_are_rejected(name: str) -> None:
    for delta in (*NO_DELTA, 1.0):
        if delta == 0 and name in OF_NO_DELTA:
            assert EPSILON_FOR[name](0.0) == pytest.approx(OF_NO_DELTA[name], rel=1e-9)
        else:
            with pytest.raises(ValueError, match="delta"):
                EPSILON_FOR[name](delta)


@pytest.mark.parametrize("name", [*NOISE_FOR, *LOSS_FOR])
def test_noise_grows_as_epsilon_or_delta_shrinks(name: str) -> None:
    sign = 1 if name in NOISE_FOR else -1
    answer = {**NOISE_FOR, **LOSS_FOR}[name]
    requested = sign * answer(2.0, 1e-3)
    assert sign * answer(1.0, 1e-3) > requested
    assert sign * answer(2.0, 1e-6) > requested


@pytest.mark.parametrize("name", EPSILON_FOR)
def test_epsilon_grows_as_delta_shrinks(name: str) -> None:
    answer = EPSILON_FOR[name]
    assert 0 < answer(1e-6) < answer(1e-9)
