"""What of delta is set aside for drawing dummies by a law that is not quite the stated one.

They are drawn from tables, which leave out their tails; and drawn again where they do not fit the
room that contributors have for them (`randomizers.dummies.MISFIT`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from randomizers.accounting.shifted_noise import delta_of_tables
from randomizers.cell_noise_law import CellNoiseLaw
from randomizers.dummies import MISFIT, ClusteredDummies, PoissonDummies
from randomizers.noise_tables import negative_binomial_tables

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
    charged for. Of more contributors than the fewest, noise is not needed.

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
        if noise.dummies != "shuffle":
            misfit = noise.minimum * MISFIT
            left_out += delta_of_tables(epsilon, misfit, count if draws is None else draws)
        if noise.dummies == "bernoulli":
            continue
        dummies = noise.of_contributors(1) or noise.of_stage(1)
        if isinstance(dummies, ClusteredDummies):
            tables = negative_binomial_tables(dummies.shape, dummies.cell_mean)
            distance = tables.distance(noise.minimum, _MOST_CLUSTERS)
        else:
            assert isinstance(dummies, PoissonDummies)
            distance = dummies.distance(noise.minimum)
        left_out += delta_of_tables(epsilon, distance, count)
    if left_out > FOR_TABLES * delta:
        raise ValueError(
            f"epsilon {epsilon:g} with delta {delta:g} asks for dummies that are drawn more finely "
            "than they are: take a smaller epsilon or a larger delta"
        )
