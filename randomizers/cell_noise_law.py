"""Noise of cells as declared by a job: its distribution, and each contributor's share.

The noise is sized for the minimum number of contributors of a released window. More contributors
add more noise, which estimators know. The continual protocols of the shuffle model share the
dummies of single cells. Each contributor adds its share of the dummies, or the shuffler adds all of
them, once. The shuffler sees these reports unprotected in either case.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from dpstream.randomizers.dummies import BernoulliDummies, ClusteredDummies, Dummies, PoissonDummies
from dpstream.randomizers.laws import Constants

DummyLaw: TypeAlias = Literal["poisson", "bernoulli", "negative_binomial", "shuffle"]
"""Source of dummies: contributors, by one of three distributions, or the shuffler, which adds a
Poisson number ("shuffle")."""


@dataclass(frozen=True, slots=True)
class CellNoiseLaw(Constants):
    """The dummies of each cell.

    `mean` lambda, and `shape` of negative-binomial noise (otherwise None), are those of a cell in a
    window with `minimum` contributors, the fewest allowed.

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
            raise ValueError(f"dummies is {self.dummies!r}; expected one of {get_args(DummyLaw)}")
        if not 0 < self.mean < math.inf:
            raise ValueError(f"mean is {self.mean!r}; expected a positive finite number")
        if type(self.minimum) is not int or self.minimum < 1:
            raise ValueError(f"minimum is {self.minimum!r}; expected a whole number, at least 1")
        if (self.shape is not None) != (self.dummies == "negative_binomial"):
            raise ValueError(
                f"shape is {self.shape!r} with {self.dummies} dummies; shape is required with "
                "negative_binomial dummies and not allowed with others"
            )
        if self.dummies == "bernoulli" and not self.mean < self.minimum:
            raise ValueError(
                f"a mean of {self.mean} requires dummies with a probability of "
                f"{self.mean / self.minimum:.3g}; expected at most 1"
            )

    @property
    def contributors(self) -> int | None:
        """Minimum number of noise contributors, for sizing; None if the shuffler adds the noise."""
        return None if self.dummies == "shuffle" else self.minimum

    def of_contributors(self, cells: int) -> Dummies | None:
        """Return each contributor's dummies over `cells` cells; None if the shuffler adds them."""
        share = _rounded_up(self.mean / self.minimum)
        if self.dummies == "shuffle":
            return None
        if self.dummies == "bernoulli":
            return BernoulliDummies(cells, share)
        if self.shape is not None:
            return ClusteredDummies(cells, self.shape / self.minimum, share)
        return PoissonDummies(_rounded_up(share * cells))

    def of_stage(self, cells: int) -> PoissonDummies | None:
        """Return the shuffler's dummies over `cells` cells; None if contributors add them."""
        return PoissonDummies(_rounded_up(self.mean * cells)) if self.dummies == "shuffle" else None

    def moments(self, contributors: int) -> tuple[float, float]:
        """Return mean and variance of a cell's dummies, given the number of contributors."""
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
        """Return the dummy capacity of `contributors` contributors over `cells` cells."""
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
        f"the shuffler to shuffle, and {noise.minimum:,} honest users in each window to add their "
        "dummies; the messages alone do not protect against a shuffler that keeps them apart"
    )


def too_many(messages: float, allowed: float | None, noise: CellNoiseLaw, last_epoch: int) -> str:
    reason = (
        f"up to {messages:,.1f} messages per user over {last_epoch:,} epochs exceed "
        f"messages_per_user, {allowed:g}. Raise it"
    )
    if noise.dummies == "shuffle":
        return reason
    return (
        f"{reason}, raise shuffle.minimum, or let the shuffler add the dummies with `dummies: "
        "shuffle`"
    )


DummyKind: TypeAlias = Literal["poisson", "negative_binomial", "shuffle"]
"""Source of dummies: contributors, each a Poisson number or clusters ("negative_binomial"), or the
shuffler."""

ItemCells: TypeAlias = Literal["balls_into_bins", "count_min"]
"""Cells of an item: a word of a hash drawn for every message ("balls_into_bins"), or always the
same cell ("count_min")."""


def dummies_in_cell(dummies: Dummies | None, contributors: int, rng: np.random.Generator) -> int:
    """Draw the number of all contributors' dummies in a cell; 0 if the shuffler adds them."""
    if dummies is None:
        return 0
    if isinstance(dummies, PoissonDummies):
        return dummies.total(contributors, rng)
    return len(dummies.draw(contributors, 1, rng))


def stage_dummies_in_cell(noise: CellNoiseLaw, rng: np.random.Generator) -> int:
    return dummies_in_cell(noise.of_stage(1), 1, rng)
