"""What the continual protocols of the shuffled model have in common: dummies of single cells.

A cell's noise is sized on the fewest contributors that a window is released with
(`randomizers.cell_noise_law`). Each contributor adds its share; or the shuffle stage adds all of
it, once: it sees these reports unprotected anyway.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np

from randomizers.affine_hashes import is_prime
from randomizers.cell_noise_law import CellNoiseLaw
from randomizers.dummies import Dummies, PoissonDummies
from randomizers.future_rand import check_epsilon
from randomizers.item_domains import Bits, Numbers, StreamDomain, domain_size

DummyKind: TypeAlias = Literal["poisson", "negative_binomial", "shuffle"]
"""Which dummies: of every contributor, Poisson many or in clusters; or of the shuffle stage."""

ItemCells: TypeAlias = Literal["balls_into_bins", "count_min"]
"""What items raise: a word of a hash drawn for every message, or always the same cell."""

LEAST_DELTA = 1e-11
MOST_ITEMS = 1 << 20
MOST_NUMBERS = 1 << 12


def check_shuffled_parameters(
    epsilon: float, delta: float, dummies: str, messages_per_user: float | None
) -> None:
    """Raise `ValueError` unless these, which the protocols have in common, are allowed."""
    check_epsilon(epsilon)
    for name, value in (("delta", delta), ("messages_per_user", messages_per_user)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"{name} is {value!r}, must be a number")
    if not LEAST_DELTA <= delta < 1:
        raise ValueError(f"delta is {delta!r}, must be from {LEAST_DELTA:g} to below 1")
    if dummies not in get_args(DummyKind):
        raise ValueError(f"dummies is {dummies!r}, must be one of {get_args(DummyKind)}")
    if messages_per_user is not None and not messages_per_user > 0:
        raise ValueError(f"messages_per_user is {messages_per_user!r}, must be above 0")


def check_item_cells(
    domain: StreamDomain | None, cells: str | None, buckets: int | None, dummies: str
) -> None:
    """Raise `ValueError` unless these are allowed together."""
    if domain is None:
        if cells is not None or buckets is not None:
            raise ValueError("cells and buckets are for items: give a domain, or leave them out")
        return
    if cells not in (None, *get_args(ItemCells)):
        raise ValueError(f"cells is {cells!r}, must be one of {get_args(ItemCells)}")
    if isinstance(domain, Numbers | Bits):
        _check_numbers(domain, cells)
    elif not domain or len(set(domain)) < len(domain) or "" in domain:
        raise ValueError("the labels of a domain must be distinct, not empty, and at least one")
    elif len(domain) > MOST_ITEMS:
        raise ValueError(f"a domain of {len(domain):,} items, must be at most {MOST_ITEMS:,}")
    if buckets is not None and (
        isinstance(domain, Numbers | Bits) or cells == "count_min" or not is_prime(buckets)
    ):
        raise ValueError(
            f"buckets is {buckets!r}, must be a prime number, and is for balls into bins only"
        )
    if dummies == "negative_binomial":
        raise ValueError(
            "dummies is 'negative_binomial', but clusters of dummies with the same hash would show "
            "as such: items over time take poisson dummies, or those of the shuffle stage"
        )


def _check_numbers(domain: Numbers | Bits, cells: str | None) -> None:
    size = domain_size(domain)
    if size > MOST_NUMBERS:
        raise ValueError(
            f"domain has {size:,} numbers, must have at most {MOST_NUMBERS:,} over time: take "
            "wider buckets or fewer bits"
        )
    if cells not in (None, "count_min"):
        raise ValueError(
            f"cells is {cells!r}, but numbers always raise the same cells: leave it out"
        )


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
