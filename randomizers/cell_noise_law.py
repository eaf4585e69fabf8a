"""Noise that a job declares for its cells: the distribution, and each contributor's share.

The noise is sized for the minimum number of contributors to a released window. More contributors
add more noise, which estimators take into account. Protocols that track values over time in the
shuffle model draw the dummies of one cell at a time. Either each contributor adds its share of the
dummies, or the shuffler adds all of them. In both cases the shuffler sees unprotected reports.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from dpstream.randomizers.dummies import BernoulliDummies, ClusteredDummies, Dummies, PoissonDummies
from dpstream.randomizers.guarantee import UNPROTECTED
from dpstream.randomizers.laws import Constants

DummyLaw: TypeAlias = Literal["poisson", "bernoulli", "negative_binomial", "shuffle"]
"""Source of dummies: contributors, who use one of three distributions, or the shuffler, which adds
a Poisson number ("shuffle")."""


@dataclass(frozen=True, slots=True)
class CellNoiseLaw(Constants):
    """Distribution of the dummies in each cell.

    `mean` (lambda) is the mean number of dummies in a cell, for a window with `minimum`
    contributors. `shape` is the shape of negative-binomial noise, otherwise None.

    >>> noise = CellNoiseLaw("poisson", mean=43.0, minimum=1000)
    >>> noise.moments(2000)
    (86.0, 86.0)
    """

    dummies: DummyLaw
    mean: float
    minimum: int
    shape: float | None = None

    def __post_init__(self) -> None:
        if self.dummies not in get_args(DummyLaw):
            raise ValueError(f"'dummies' is {self.dummies!r}; expected one of {get_args(DummyLaw)}")
        if not 0 < self.mean < math.inf:
            raise ValueError(f"'mean' is {self.mean!r}; expected a positive finite number")
        if type(self.minimum) is not int or self.minimum < 1:
            raise ValueError(f"'minimum' is {self.minimum!r}; expected an integer of at least 1")
        if (self.shape is not None) != (self.dummies == "negative_binomial"):
            raise ValueError(
                f"'shape' is {self.shape!r} with {self.dummies} dummies; it is required with "
                "negative_binomial dummies and not allowed with others"
            )
        if self.dummies == "bernoulli" and not self.mean < self.minimum:
            raise ValueError(
                f"'mean' is {self.mean}; expected less than 'minimum', {self.minimum}, with "
                "bernoulli dummies"
            )

    @property
    def contributors(self) -> int | None:
        """Minimum number of contributors; None if the shuffler adds the noise."""
        return None if self.dummies == "shuffle" else self.minimum

    def of_contributors(self, cells: int) -> Dummies | None:
        """Return a contributor's dummies in `cells` cells; None if the shuffler adds them."""
        share = _rounded_up(self.mean / self.minimum)
        if self.dummies == "shuffle":
            return None
        if self.dummies == "bernoulli":
            return BernoulliDummies(cells, share)
        if self.shape is not None:
            return ClusteredDummies(cells, self.shape / self.minimum, share)
        return PoissonDummies(_rounded_up(share * cells))

    def of_stage(self, cells: int) -> PoissonDummies | None:
        """Return the shuffler's dummies in `cells` cells; None if contributors add them."""
        return PoissonDummies(_rounded_up(self.mean * cells)) if self.dummies == "shuffle" else None

    def moments(self, contributors: int) -> tuple[float, float]:
        """Return the mean and variance of a cell's dummies, given the number of contributors."""
        if self.dummies == "shuffle":
            return self.mean, self.mean
        mean = self.mean * contributors / self.minimum
        if self.dummies == "bernoulli":
            return mean, mean * (1 - self.mean / self.minimum)
        if self.shape is not None:
            return mean, mean * (1 + self.mean / self.shape)
        return mean, mean

    def per_contributor(self, cells: int) -> float:
        dummies = self.of_contributors(cells)
        return 0.0 if dummies is None else dummies.mean

    def most(self, cells: int, contributors: int) -> int:
        """Return the capacity for the dummies of all contributors, in `cells` cells."""
        dummies = self.of_contributors(cells)
        return 0 if dummies is None else dummies.most(contributors)


def _rounded_up(value: float) -> float:
    return math.nextafter(value, math.inf)


def trusted(noise: CellNoiseLaw) -> str:
    if noise.dummies == "shuffle":
        return (
            "the shuffler, to add its dummies, to shuffle, and to keep its noise key secret; it "
            "sees every message as it was sent"
        )
    return (
        f"the shuffler to shuffle, and {noise.minimum:,} honest users in each window to send dummy "
        f"messages; {UNPROTECTED}"
    )


def too_many(messages: float, allowed: float | None, noise: CellNoiseLaw, last_epoch: int) -> str:
    reason = (
        f"up to {messages:,.1f} messages per user over {last_epoch:,} epochs exceed "
        f"messages_per_user, {allowed:g}. Raise messages_per_user"
    )
    if noise.dummies == "shuffle":
        return reason
    return (
        f"{reason}, raise shuffle.minimum, or let the shuffler add the dummies with `dummies: "
        "shuffle`"
    )


DummyKind: TypeAlias = Literal["poisson", "negative_binomial", "shuffle"]
"""Source of dummies: contributors, who draw a Poisson number ("poisson") or clusters
("negative_binomial"), or the shuffler ("shuffle")."""

ItemCells: TypeAlias = Literal["balls_into_bins", "count_min"]
"""Cell of an item: chosen by a new hash for every message ("balls_into_bins"), or always the same
("count_min")."""


def dummies_in_cell(dummies: Dummies | None, contributors: int, rng: np.random.Generator) -> int:
    """Draw the total number of contributors' dummies in a cell; 0 if the shuffler adds them."""
    if dummies is None:
        return 0
    if isinstance(dummies, PoissonDummies):
        return dummies.total(contributors, rng)
    return len(dummies.draw(contributors, 1, rng))


def stage_dummies_in_cell(noise: CellNoiseLaw, rng: np.random.Generator) -> int:
    return dummies_in_cell(noise.of_stage(1), 1, rng)
