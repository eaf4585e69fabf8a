"""What the continual protocols of the shuffled model have in common: dummies of single cells.

A cell's noise is sized on the fewest contributors that a window is released with
(`dpstream.randomizers.cell_noise_law`). Each contributor adds its share; or the shuffle stage adds
all of it, once: it sees these reports unprotected anyway.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from dpstream.randomizers.cell_noise_law import CellNoiseLaw
from dpstream.randomizers.dummies import Dummies, PoissonDummies

DummyKind: TypeAlias = Literal["poisson", "negative_binomial", "shuffle"]
"""Which dummies: of every contributor, Poisson many or in clusters; or of the shuffle stage."""

ItemCells: TypeAlias = Literal["balls_into_bins", "count_min"]
"""What items raise: a word of a hash drawn for every message, or always the same cell."""


def dummies_in_cell(dummies: Dummies | None, contributors: int, rng: np.random.Generator) -> int:
    """How many dummies of one cell so many contributors send together.

    Args:
        dummies: of a contributor; None where the shuffle stage adds them.
        contributors: how many there are.
        rng: cryptographic randomness; seeded in tests only.
    """
    if dummies is None:
        return 0
    if isinstance(dummies, PoissonDummies):
        return dummies.total(contributors, rng)
    return len(dummies.draw(contributors, 1, rng))


def stage_dummies_in_cell(noise: CellNoiseLaw, rng: np.random.Generator) -> int:
    """How many dummies of one cell the shuffle stage adds to a window."""
    return dummies_in_cell(noise.of_stage(1), 1, rng)
