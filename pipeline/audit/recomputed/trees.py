"""Trees of counts: every pair of streams of a few epochs, by what they would send.

Messages are those of the definition, an interval with its first and its last value; the noise is
what a job would have, and all cells that two streams differ in are seen together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, pairwise, product
from typing import TypeAlias

from pipeline.audit.findings import Finding
from pipeline.audit.recomputed.small_laws import (
    finding,
    least_delta,
    less_than_it_is,
    shifted,
)
from randomizers.accounting.cell_noise import noise_of_cells
from randomizers.shuffled_tree import ShuffledTreeParameters
from randomizers.shuffled_tree.calibration import calibrate

Cell: TypeAlias = tuple[int, int, int]
"""The order of an interval, its number, and the sign of a message."""

_EPSILON, _DELTA = 3.0, 0.2
_EPOCHS = 2


def trees_of_counts() -> Iterator[Finding]:
    """What is stated of streams that may change once, or at every epoch."""
    for changes in range(1, _EPOCHS + 1):
        what = f"every two streams of {_EPOCHS} epochs with up to {changes} changes"
        yield finding("trees of counts", what, _streams(changes))


def messages_of(values: tuple[int, ...], orders: int) -> Counter[Cell]:
    """The cells that a stream of bits has a message in, with intervals of so many orders."""
    held = (0, *values)
    found: Counter[Cell] = Counter()
    for order in range(orders):
        length = 1 << order
        for number, begin in enumerate(range(0, len(values) - length + 1, length)):
            partial_sum = held[begin + length] - held[begin]
            if partial_sum:
                found[order, number, partial_sum] += 1
    return found


def _streams(changes: int) -> Iterator[str]:
    for dummies in ("poisson", "shuffle"):
        parameters = ShuffledTreeParameters(_EPSILON, _DELTA, changes, dummies=dummies)
        law = calibrate(parameters, _EPOCHS, minimum=1)
        noises = [noise_of_cells(noise, 1) for noise in law.noises]
        streams = [
            stream
            for stream in product((0, 1), repeat=_EPOCHS)
            if sum(one != other for one, other in pairwise((0, *stream))) <= changes
        ]
        for one, other in combinations(streams, 2):
            apart = messages_of(other, len(noises))
            apart.subtract(messages_of(one, len(noises)))
            cells = [
                shifted(noises[order], shift) for (order, _, _), shift in apart.items() if shift
            ]
            what = f"{one} and {other} in a tree for {changes} changes"
            yield less_than_it_is(what, _DELTA, least_delta(cells, _EPSILON))
