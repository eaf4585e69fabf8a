"""The items that most users hold, by their estimates."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from aggregators.estimate import NORMAL_95, Estimate, ItemEstimates


@dataclass(frozen=True, slots=True)
class TopItems:
    """The items with the largest estimates.

    Attributes:
        items: their positions in the domain, the one with the largest estimate first.
        estimates: of these items; each interval is the item's own, of 95 %.
        simultaneous_half_width: of intervals that hold the counts of all items of the domain at
            once, with 95 % probability (Bonferroni); so they hold those of the selected ones.
    """

    items: tuple[int, ...]
    estimates: tuple[Estimate, ...]
    simultaneous_half_width: float


def top_items(estimates: ItemEstimates, count: int) -> TopItems:
    """Select the items with the largest estimates.

    Selection biases upwards: an item is more likely to be selected when its noise is positive, so
    among the selected ones the 95 % interval holds the count less often than 19 times in 20. The
    simultaneous intervals are wider and do not depend on the selection.

    Args:
        estimates: of all items of a domain.
        count: how many; all of them if there are fewer.

    >>> found = top_items(ItemEstimates(np.array([5.0, 70.0, 30.0]), 10.0, 19.6, 99, 100), 2)
    >>> found.items, round(found.simultaneous_half_width, 1)
    ((1, 2), 23.9)
    """
    order = np.argsort(-estimates.values, kind="stable")[:count].tolist()
    return TopItems(
        items=tuple(order),
        estimates=tuple(estimates.item(index) for index in order),
        simultaneous_half_width=simultaneous_half_width(estimates),
    )


def simultaneous_half_width(estimates: ItemEstimates) -> float:
    """Half the width of the intervals that hold all counts of a domain at once: Bonferroni."""
    quantile = NormalDist().inv_cdf(1 - 0.025 / len(estimates.values))
    return estimates.half_width * quantile / NORMAL_95
