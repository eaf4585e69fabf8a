"""Recompute losses for item sets: all cells in which two sets differ, observed jointly.

The checks cover items with separate cells, and items whose messages overlap. Numbers of messages
that are not enumerated can only reduce the computed loss.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpstream.pipeline.audit.audits import Finding
from dpstream.pipeline.audit.recomputed.small_laws import finding
from dpstream.randomizers.accounting.cell_noise import noise_of_cells
from dpstream.randomizers.accounting.overlapping_cells import (
    epsilon_for_overlapping,
    poisson_for_overlapping,
)
from dpstream.randomizers.cell_noise_law import CellNoiseLaw
from dpstream.randomizers.count_min import CountMinParameters
from dpstream.randomizers.count_min.calibration import calibrate

Message: TypeAlias = tuple[int, ...]
Messages: TypeAlias = frozenset[Message]

# Relative floating-point error allowed in sums of positive numbers.
_CERTAIN = 1e-9
# Probability below which a number of messages is omitted.
_LEAST = 1e-6
# Maximum mean number of dummies per item for which all messages are enumerated.
_FEW = 5.0
_PLANE: Sequence[Messages] = tuple(
    frozenset((*d, (d[0] * x + d[1] * y) % 2) for d in ((1, 0), (1, 1), (0, 1)))
    for x, y in product(range(2), repeat=2)
)
"""Messages of four items; each has three messages and shares one with every other item."""
_STAR: Sequence[Messages] = tuple(
    frozenset({(0,), (10 + each,), (20 + each,)}) for each in range(4)
)
"""Messages of four items; each has three messages, one of which all four share."""


def sets_of_items() -> Iterator[Finding]:
    yield finding("sets of items", "two of four items, each with a separate cell", _own_cells())
    for name, sets in (("a plane", _PLANE), ("a star", _STAR)):
        what = f"two of four items, whose messages overlap like {name}"
        yield finding("sets of items", what, _overlapping(sets))


def _own_cells() -> Iterator[str]:
    """Check separate cells: items in one set lower their cells, items in the other raise theirs."""
    for dummies in ("poisson", "bernoulli", "negative_binomial", "shuffle"):
        parameters = CountMinParameters(
            5.0, 0.2, tuple("abcd"), items=2, rows=1, buckets=4, dummies=dummies
        )
        law = calibrate(parameters, 1, minimum=40)
        if law.code.messages != 1 or law.code.cells != 4:
            yield f"has {law.code.cells} cells and {law.code.messages} messages for four items"
        yield _compared(f"two items with {dummies} dummies", law.noise, 2, law.epsilon, law.delta)
        small = calibrate(CountMinParameters(5.0, 0.2, ("a", "b"), rows=1, buckets=2), 2, 40)
        yield _compared("an item with poisson dummies", small.noise, 1, small.epsilon, small.delta)
        yield _compared("an item at two epochs", small.noise, 2, small.stream_epsilon, small.delta)


def _compared(what: str, noise: CellNoiseLaw, cells: int, epsilon: float, delta: float) -> str:
    """Check 2 * `cells` cells: half of them lose a message in one world, and half in the other."""
    law = noise_of_cells(noise)
    counts = np.arange(int(law.mean + 12 * math.sqrt(law.variance)) + 12)
    weights = _probabilities(noise, counts)
    kept = np.flatnonzero(weights > _LEAST)
    low, high = int(kept.min()), int(kept.max())
    # Use only counts whose weight is known with and without a message; 0 has no count below it.
    seen = np.arange(low + 1 if low else 0, high + 1)
    before = np.where(seen > 0, weights[seen - 1], 0.0)
    return _distinguished(
        what, [(before, weights[seen])] * cells + [(weights[seen], before)] * cells, epsilon, delta
    )


def _probabilities(noise: CellNoiseLaw, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    if noise.dummies == "bernoulli":
        found = stats.binom.pmf(counts, noise.minimum, noise.mean / noise.minimum)
    elif noise.shape is not None:
        found = stats.nbinom.pmf(counts, noise.shape, noise.shape / (noise.shape + noise.mean))
    else:
        found = stats.poisson.pmf(counts, noise.mean)
    return np.asarray(found, np.float64)


def _distinguished(
    what: str,
    cells: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]],
    epsilon: float,
    delta: float,
) -> str:
    one = other = np.ones(1)
    for first, second in cells:
        one, other = (
            np.multiply.outer(before, now).ravel()
            for before, now in ((one, first), (other, second))
        )
    return _less(what, one, other, epsilon, delta)


def _less(
    what: str,
    one: NDArray[np.float64],
    other: NDArray[np.float64],
    epsilon: float,
    delta: float,
) -> str:
    more = one * (1 - _CERTAIN) - math.exp(epsilon) * (1 + _CERTAIN) * other
    least = float(np.maximum(more, 0.0).sum())
    if least <= delta:
        return ""
    return (
        f"states a delta of {delta:.6g} for {what} and epsilon {epsilon:.4g}; the true delta is "
        f"at least {least:.6g}"
    )


def _overlapping(sets: Sequence[Messages]) -> Iterator[str]:
    """Compare a user who has the first two of four items with a user who has the last two."""
    (overlap,) = {len(one & other) / len(one) for one in sets for other in sets if one != other}
    for mean in (3.0, 8.0):
        for delta in (0.45, 0.35, 0.2):
            epsilon = epsilon_for_overlapping(mean, delta, overlap, items=2)
            if math.isfinite(epsilon):
                yield from _either_view(sets, mean, epsilon, delta)
    for epsilon, delta in ((1.5, 0.4), (3.0, 0.3)):
        mean = poisson_for_overlapping(epsilon, delta, overlap, items=2)
        yield from _either_view(sets, mean, epsilon, delta)


def _either_view(
    sets: Sequence[Messages], mean: float, epsilon: float, delta: float
) -> Iterator[str]:
    what = f"{mean:.4g} dummies per item"
    if mean < _FEW:
        yield _less(what, *_views(sets, mean), epsilon, delta)
    absent, present = _labeled(sets, mean)
    cells = [(present, absent)] * 2 + [(absent, present)] * 2
    yield _distinguished(f"{what}, labeled with items", cells, epsilon, delta)


def _labeled(
    sets: Sequence[Messages], mean: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the distributions of an item's cell without and with a message, given item labels.

    The bound is proven against an observer who learns the item of every message. A dummy is labeled
    with any item that has its message. Let W be the sum, over all observed messages, of the number
    of items with that message: a user's message makes an observation W / mean times as likely.
    Observations with the same W are equivalent.
    """
    shared = [sum(message in each for each in sets) for message in sets[0]]
    by_weight = np.ones(1)
    for among in sorted(set(shared)):
        jumps = stats.poisson(mean * shared.count(among) / len(shared) / among)
        counts = np.arange(int(jumps.isf(_LEAST)) + 1)
        spaced = np.zeros((len(counts) - 1) * among + 1)
        spaced[::among] = jumps.pmf(counts)
        by_weight = np.convolve(by_weight, spaced)
    weights = np.arange(len(by_weight))
    seen = by_weight > _LEAST / 10
    return by_weight[seen], (by_weight * weights / mean)[seen]


def _views(
    sets: Sequence[Messages], mean: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return both worlds' distributions of message counts, merging messages of the same items."""
    kinds = Counter(
        tuple(message in each for each in sets) for message in frozenset[Message]().union(*sets)
    )
    laws = [stats.poisson(mean * many / len(sets[0])) for many in kinds.values()]
    ranges = [np.arange(int(law.isf(1e-3)) + 2) for law in laws]
    worlds = []
    for held in ((0, 1), (2, 3)):
        world = np.zeros([len(each) for each in ranges])
        among = [
            [(place, many) for place, (inside, many) in enumerate(kinds.items()) if inside[item]]
            for item in held
        ]
        for chosen in product(*among):
            places = [place for place, _ in chosen]
            likely = np.full((), math.prod(many / len(sets[0]) for _, many in chosen))
            for place, (law, counts) in enumerate(zip(laws, ranges, strict=True)):
                likely = np.multiply.outer(likely, law.pmf(counts - places.count(place)))
            world += likely
        worlds.append(world.ravel())
    return worlds[0], worlds[1]
