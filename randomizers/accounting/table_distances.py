"""What of delta is set aside for drawing dummies by a law that is not quite the stated one.

They are drawn from tables, which leave out their tails; and drawn again where they do not fit the
room that contributors have for them (`dpstream.randomizers.dummies.MISFIT`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dpstream.randomizers.accounting.shifted_noise import delta_of_tables
from dpstream.randomizers.cell_noise_law import CellNoiseLaw
from dpstream.randomizers.dummies import MISFIT, BernoulliDummies, ClusteredDummies, PoissonDummies
from dpstream.randomizers.noise_tables import negative_binomial_tables

FOR_TABLES: Final = 1e-6
"""The share of it."""

# Of all contributors, in a cell: far more than there can be.
_MOST_CLUSTERS = 1 << 40


def check_tables(
    epsilon: float,
    delta: float,
    cells: Iterable[tuple[CellNoiseLaw, int]],
    draws: int | None = None,
) -> None:
    """See that what is left out is less than what of delta is set aside for it.

    Where each contributor has a producer of its own, there is one draw of each: as many as that are
    charged for; of the stage it is one. Of more contributors than the fewest, noise is not needed.

    Args:
        epsilon: of the job.
        delta: of the job.
        cells: kinds of them, and how many there are in a stream.
        draws: how often a contributor draws how many dummies it sends, in a stream; None: as often
            as there are cells.

    Raises:
        ValueError: it is more.
    """
    left_out = 0.0
    for noise, count in cells:
        distance, misfits = _of_a_draw(noise)
        left_out += delta_of_tables(epsilon, misfits * MISFIT, count if draws is None else draws)
        left_out += delta_of_tables(epsilon, distance, count)
    if left_out > FOR_TABLES * delta:
        raise ValueError(
            f"epsilon {epsilon:g} with delta {delta:g} asks for dummies that are drawn more finely "
            "than they are: take a smaller epsilon or a larger delta"
        )


def _of_a_draw(noise: CellNoiseLaw) -> tuple[float, int]:
    """How far the noise of a cell is from its law, and how many times it may not fit its room."""
    dummies, each = noise.of_contributors(1), noise.minimum
    if dummies is None:
        dummies, each = noise.of_stage(1), 1
    if isinstance(dummies, BernoulliDummies):
        return each * dummies.table.distance, each
    if isinstance(dummies, ClusteredDummies):
        # Clusters are drawn anew by themselves, and again where all their dummies do not fit.
        tables = negative_binomial_tables(dummies.shape, dummies.cell_mean)
        return tables.distance(each, _MOST_CLUSTERS), 2 * each
    assert isinstance(dummies, PoissonDummies)
    # Those of all contributors are drawn at once, or by each on its own.
    return max(dummies.distance(each), each * dummies.distance(1)), each
