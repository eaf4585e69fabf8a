"""What of delta is set aside because dummies are drawn from tables, which leave out their tails."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from randomizers.accounting.shifted_noise import delta_of_tables
from randomizers.cell_noise_law import CellNoiseLaw
from randomizers.dummies import ClusteredDummies, PoissonDummies
from randomizers.noise_tables import negative_binomial_tables

FOR_TABLES: Final = 1e-6
"""The share of it."""

# Of all contributors, in a cell: far more than there can be.
_MOST_CLUSTERS = 1 << 40


def check_tables(epsilon: float, delta: float, cells: Iterable[tuple[CellNoiseLaw, int]]) -> None:
    """See that what tables leave out is less than what of delta is set aside for it.

    Args:
        epsilon: of the job.
        delta: of the job.
        cells: kinds of them, and how many there are in a stream.

    Raises:
        ValueError: it is more.
    """
    left_out = 0.0
    for noise, count in cells:
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
