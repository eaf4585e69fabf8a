"""Random division of messages among parallel shufflers.

Each message goes to a shuffler chosen uniformly and independently of everything else. So all
shufflers together see the shuffled union, with a random label on every message. Labels are
post-processing, so the guarantee for the union holds. An observer of only one of K shufflers sees
each message of a device with probability 1/K.

If the number of messages is secret, each shuffler has a capacity that depends only on the maximum
number of messages. In the rare case that a shuffler's messages exceed its capacity, all labels are
redrawn (`REDRAW_PROBABILITY`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.counted_messages import CountedMessages, Reports

MOST_INSTANCES: Final = 4

REDRAW_PROBABILITY: Final = 2.0**-200
"""Maximum probability that a division exceeds the capacity of any shuffler. It bounds the total
variation distance of the labels from independent labels; delta includes its cost."""

_BLOCK = 1 << 20


def room_of_part(most: int, instances: int) -> int:
    """Return the message capacity of a shuffler, for at most `most` messages in total.

    The probability that any shuffler's messages exceed this capacity is at most
    `REDRAW_PROBABILITY`, by Bernstein's inequality:
    P(Bin(n, q) >= n q + t) <= exp(-t^2 / (2 n q (1 - q) + 2 t / 3)).

    >>> room_of_part(100, 2), room_of_part(1_000_000, 2), room_of_part(1_000_000, 4)
    (100, 508393, 257293)
    """
    # A margin above what is needed: the bound is computed with rounding errors.
    rarity = math.log(instances) - math.log(REDRAW_PROBABILITY) + 1e-3
    mean = most / instances
    variance = mean * (1 - 1 / instances)
    beyond = rarity / 3 + math.sqrt((rarity / 3) ** 2 + 2 * rarity * variance)
    return min(most, math.ceil(mean + beyond))


def divide(
    reports: Reports, instances: int, room: int | None, rng: np.random.Generator
) -> list[Reports]:
    """Divide reports among shufflers, keeping each shuffler's reports in order.

    `room` is the message capacity of a shuffler, see `room_of_part`; None if it is unlimited. `rng`
    is cryptographic randomness; seeded in tests only.
    """
    while True:
        parts = _divided(reports, instances, rng)
        if room is None or all(_messages(part) <= room for part in parts):
            return parts


def chances_of_one_instance(reports: int, instances: int) -> Sequence[Fraction]:
    """Return the probability that one shuffler sees t of a device's reports, for each t from 0.

    >>> [str(chance) for chance in chances_of_one_instance(2, 3)]
    ['4/9', '4/9', '1/9']
    """
    return [
        Fraction(math.comb(reports, seen) * (instances - 1) ** (reports - seen), instances**reports)
        for seen in range(reports + 1)
    ]


def _divided(reports: Reports, instances: int, rng: np.random.Generator) -> list[Reports]:
    if isinstance(reports, CountedMessages):
        return _divided_counts(reports, instances, rng)
    labels = rng.integers(0, instances, len(reports), np.uint8)
    return [reports[labels == label] for label in range(instances)]


def _divided_counts(
    reports: CountedMessages, instances: int, rng: np.random.Generator
) -> list[Reports]:
    """Draw a label for every single message; count labels per message value."""
    rows = len(reports.counts)
    tables = np.zeros((rows, instances), np.int64)
    ends = np.cumsum(reports.counts, dtype=np.int64)
    total = int(ends[-1]) if rows else 0
    for start in range(0, total, _BLOCK):
        stop = min(start + _BLOCK, total)
        labels = rng.integers(0, instances, stop - start, np.uint8)
        first, last = np.searchsorted(ends, [start, stop - 1], side="right").tolist()
        bounds = np.clip(ends[first : last + 1], start, stop)
        lengths = np.diff(bounds, prepend=start)
        places = np.repeat(np.arange(last + 1 - first), lengths) * instances + labels
        counted = np.bincount(places, minlength=(last + 1 - first) * instances)
        tables[first : last + 1] += counted.reshape(-1, instances)
    return [_counted(reports, tables[:, label]) for label in range(instances)]


def _counted(reports: CountedMessages, counts: NDArray[np.int64]) -> CountedMessages:
    there = counts > 0
    return CountedMessages(reports.values[there], counts[there].astype(reports.counts.dtype))


def _messages(reports: Reports) -> int:
    return reports.messages if isinstance(reports, CountedMessages) else len(reports)
