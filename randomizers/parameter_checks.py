"""Checks and limits of the parameters that several protocols share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, get_args

if TYPE_CHECKING:
    from dpstream.randomizers.item_domains import Bits, ItemDomain, Numbers, StreamDomain

MIN_EPSILON, MAX_EPSILON = 1e-6, 64.0
LEAST_DELTA = 1e-11
MAX_HORIZON = 2**63
MOST_ITEMS = 1 << 20
MOST_NUMBERS = 1 << 12
MOST_CROWDS = 1 << 12


def check_epsilon(epsilon: float) -> None:
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float):
        raise ValueError(f"epsilon is {epsilon!r}; expected a number")
    if not MIN_EPSILON <= epsilon <= MAX_EPSILON:
        raise ValueError(f"epsilon is {epsilon}; expected {MIN_EPSILON:g} to {MAX_EPSILON:g}")


def check_domain(items: int) -> None:
    """Raise `ValueError` if a domain is empty, or too large to count item by item."""
    if not 1 <= items <= MOST_ITEMS:
        raise ValueError(f"domain has {items:,} items; expected 1 to {MOST_ITEMS:,}")


def check_approximate(epsilon: float, delta: float) -> None:
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon is {epsilon!r}; expected a positive finite number")
    if not LEAST_DELTA <= delta < 1:
        raise ValueError(f"delta is {delta!r}; expected at least {LEAST_DELTA:g} and below 1")


def check_items_held(items: int, domain: ItemDomain) -> None:
    """Raise `ValueError` unless a user can have `items` distinct items of a domain."""
    from dpstream.randomizers.item_domains import domain_size

    size = domain_size(domain)
    if isinstance(domain, tuple):
        _check_labels(domain)
    if type(items) is not int or not 1 <= items <= min(size, 1024):
        raise ValueError(f"'items' is {items!r}; expected 1 to {min(size, 1024)}")


def check_messages(messages_per_user: float | None) -> None:
    if messages_per_user is not None and not messages_per_user > 0:
        raise ValueError(f"messages_per_user is {messages_per_user!r}; expected a number above 0")


def check_shuffled_parameters(
    epsilon: float, delta: float, dummies: str, messages_per_user: float | None
) -> None:
    from dpstream.randomizers.cell_noise_law import DummyKind

    check_epsilon(epsilon)
    for name, value in (("delta", delta), ("messages_per_user", messages_per_user)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"'{name}' is {value!r}; expected a number")
    if not LEAST_DELTA <= delta < 1:
        raise ValueError(f"delta is {delta!r}; expected at least {LEAST_DELTA:g} and below 1")
    if dummies not in get_args(DummyKind):
        raise ValueError(f"'dummies' is {dummies!r}; expected one of {get_args(DummyKind)}")
    check_messages(messages_per_user)


def check_item_cells(
    domain: StreamDomain | None, cells: str | None, buckets: int | None, dummies: str
) -> None:
    if domain is None:
        if cells is not None or buckets is not None:
            raise ValueError(
                "'domain' is missing, but 'cells' and 'buckets' require it. Set 'domain', or "
                "remove 'cells' and 'buckets'"
            )
        return
    from dpstream.randomizers.affine_hashes import is_prime
    from dpstream.randomizers.cell_noise_law import ItemCells
    from dpstream.randomizers.item_domains import Bits, Numbers

    if cells not in (None, *get_args(ItemCells)):
        raise ValueError(f"'cells' is {cells!r}; expected one of {get_args(ItemCells)}")
    if isinstance(domain, Numbers | Bits):
        _check_numbers(domain, cells)
    else:
        _check_labels(domain)
        if len(domain) > MOST_ITEMS:
            raise ValueError(f"domain has {len(domain):,} items; expected at most {MOST_ITEMS:,}")
    if buckets is not None and (isinstance(domain, Numbers | Bits) or cells == "count_min"):
        raise ValueError("'buckets' requires item labels with 'cells: balls_into_bins'. Remove it")
    if buckets is not None and not is_prime(buckets):
        raise ValueError(f"'buckets' is {buckets!r}; expected a prime number")
    if dummies == "negative_binomial":
        raise ValueError(
            "dummies is 'negative_binomial', but clusters of dummies with the same hash are "
            "recognizable. For counts over time, set 'dummies: poisson' or 'dummies: shuffle'"
        )


def _check_numbers(domain: Numbers | Bits, cells: str | None) -> None:
    from dpstream.randomizers.item_domains import domain_size

    size = domain_size(domain)
    if size > MOST_NUMBERS:
        raise ValueError(
            f"domain has {size:,} numbers; expected at most {MOST_NUMBERS:,} for counts over time. "
            "Use wider buckets or fewer bits"
        )
    if cells not in (None, "count_min"):
        raise ValueError(
            f"'cells' is {cells!r}; a domain of numbers supports only 'count_min'. Remove 'cells'"
        )


def _check_labels(labels: tuple[str, ...]) -> None:
    if not labels or len(set(labels)) < len(labels) or "" in labels:
        raise ValueError(
            "'domain' must list at least one label; all labels must be distinct and non-empty"
        )
