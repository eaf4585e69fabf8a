"""Fraction of delta reserved for dummies drawn from slightly inexact distributions.

Tables omit the tails of distributions. Dummies that exceed the contributors' capacity are redrawn
(`dpstream.randomizers.dummies.REDRAW_PROBABILITY`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dpstream.randomizers.accounting.shifted_noise import delta_of_tables
from dpstream.randomizers.cell_noise_law import CellNoiseLaw
from dpstream.randomizers.dummies import (
    REDRAW_PROBABILITY,
    BernoulliDummies,
    ClusteredDummies,
    PoissonDummies,
)
from dpstream.randomizers.noise_tables import negative_binomial_tables

FOR_TABLES: Final = 1e-6
"""Fraction of delta reserved for inexact distributions."""
# Bound on the clusters that all contributors add to a cell, far above any practical number.
_MOST_CLUSTERS = 1 << 40


def check_tables(
    epsilon: float,
    delta: float,
    cells: Iterable[tuple[CellNoiseLaw, int]],
    draws: int | None = None,
) -> None:
    """Raise `ValueError` if the omitted mass exceeds the fraction of delta reserved for it.

    If every contributor is its own producer, each makes a draw, and all these draws are charged. If
    the shuffler adds the dummies, it makes one draw. Contributors beyond the minimum need no noise.

    `cells` are pairs of a cell noise and the number of such cells in a stream. `draws` is the
    number of times that a contributor draws dummies for a stream, by default once per cell.
    """
    left_out = 0.0
    for noise, count in cells:
        distance, redraws = _of_a_draw(noise)
        left_out += delta_of_tables(
            epsilon, redraws * REDRAW_PROBABILITY, count if draws is None else draws
        )
        left_out += delta_of_tables(epsilon, distance, count)
    if left_out > FOR_TABLES * delta:
        raise ValueError(
            f"epsilon {epsilon:g} with delta {delta:g} requires a more precise distribution of "
            "dummies than is available. Use a smaller epsilon or a larger delta"
        )


def _of_a_draw(noise: CellNoiseLaw) -> tuple[float, int]:
    """Return a cell noise's distance from its distribution and its maximum number of redraws."""
    dummies, each = noise.of_contributors(1), noise.minimum
    if dummies is None:
        dummies, each = noise.of_stage(1), 1
    if isinstance(dummies, BernoulliDummies):
        return each * dummies.table.distance, each
    if isinstance(dummies, ClusteredDummies):
        # Clusters are redrawn on their own, and again if their dummies exceed the capacity.
        tables = negative_binomial_tables(dummies.shape, dummies.cell_mean)
        return tables.distance(each, _MOST_CLUSTERS), 2 * each
    assert isinstance(dummies, PoissonDummies)
    # One draw covers all contributors, or each contributor makes its own draw.
    return max(dummies.distance(each), each * dummies.distance(1)), each
