"""Exact view of the smallest window: messages with any number of dummies, or a noisy sum."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import combinations_with_replacement, pairwise, product
from math import factorial, prod

from dpstream.pipeline.conformance.cases import Stream, View
from dpstream.randomizers.cell_noise_law import CellNoiseLaw
from dpstream.randomizers.dummies import PoissonDummies
from dpstream.randomizers.shuffled_counts import ShuffledCountsLaw
from dpstream.randomizers.shuffled_counts.shuffled_item_counts import ShuffledItemCountsLaw
from dpstream.randomizers.shuffled_counts.shuffled_level_counts import ShuffledLevelCountsLaw
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import ShuffledValueStreamLaw


def exact_law(
    law: ShuffledCountsLaw
    | ShuffledItemCountsLaw
    | ShuffledLevelCountsLaw
    | ShuffledValueStreamLaw,
    last_epoch: int,
) -> _OfBooleans | OfItems | OfSums:
    if isinstance(law, ShuffledValueStreamLaw):
        return OfSums(law, last_epoch)
    if isinstance(law, ShuffledLevelCountsLaw):
        return _OfNumbers(law, last_epoch)
    if isinstance(law, ShuffledItemCountsLaw):
        return OfItems(law.size, law.buckets, law.held, last_epoch)
    return _OfBooleans(law, last_epoch)


class _OfBooleans:
    def __init__(self, law: ShuffledCountsLaw, last_epoch: int) -> None:
        self.law = law
        self.devices = law.noise.minimum
        self.dummies = dummies_of_window(law.noise)

    def followed(self, stream: Stream) -> bool:
        return not self.law.boost or sum(map(abs, changes(stream))) <= self.law.max_changes

    def views(self, stream: Stream) -> dict[View, Fraction]:
        sent, made = [], 0
        for value, change in zip(stream, changes(stream), strict=True):
            made += abs(change)
            boosted = change if made <= self.law.max_changes else 0
            sent.append(self.law.boost * (self.devices + boosted) + value)
        found: dict[View, Fraction] = {}
        for drawn in product(self.dummies.items(), repeat=len(stream)):
            view = tuple(
                ((0,),) * (real + dummies) for real, (dummies, _) in zip(sent, drawn, strict=True)
            )
            probability = Fraction(1)
            for _, each in drawn:
                probability *= each
            found[view] = probability
        return found


class OfSums:
    """Enumerate the noise in sums with one epoch, two devices and no boost."""

    devices = 2

    def __init__(self, law: ShuffledValueStreamLaw, last_epoch: int) -> None:
        assert last_epoch == 1
        assert law.boost == 0
        noise = law.noise
        bounds = [noise.bound(number) for number in range(-noise.most - 1, noise.most + 1)]
        self.noise = {
            number: Fraction(above - below, 1 << 128)
            for number, (below, above) in enumerate(pairwise(bounds), start=-noise.most)
            if above > below
        }

    def followed(self, stream: Stream) -> bool:
        return True

    def views(self, stream: Stream) -> dict[View, Fraction]:
        # In steps of 1/256. Each device sends its value minus 1/2; the other device's value is 0.
        (value,) = stream
        total = 2**62 + 256 * value - 128 * self.devices
        return {(((total + number,),),): likely for number, likely in self.noise.items()}


class OfItems:
    """Enumerate all multisets of dummies in a single epoch with a bucket for every item."""

    def __init__(self, size: int, buckets: int, noise: CellNoiseLaw, last_epoch: int) -> None:
        assert last_epoch == 1
        assert size <= buckets
        self.devices = noise.minimum
        self.dummies: dict[tuple[int, ...], Fraction] = {}
        for number, likely in dummies_of_window(noise, buckets).items():
            for drawn in combinations_with_replacement(range(buckets), number):
                orders = factorial(number) // prod(map(factorial, Counter(drawn).values()))
                self.dummies[drawn] = likely * Fraction(orders, buckets**number)

    def followed(self, stream: Stream) -> bool:
        return True

    def sent(self, item: int) -> list[int]:
        return [item - 1]

    def views(self, stream: Stream) -> dict[View, Fraction]:
        real = [message for item in stream if item for message in self.sent(item)]
        return {
            (tuple((message,) for message in sorted((*drawn, *real))),): likely
            for drawn, likely in self.dummies.items()
        }


class _OfNumbers(OfItems):
    def __init__(self, law: ShuffledLevelCountsLaw, last_epoch: int) -> None:
        assert law.levels.branching == (2,)
        super().__init__(2, 3, law.held, last_epoch)

    def sent(self, item: int) -> list[int]:
        return [0, item]


def changes(stream: Stream) -> list[int]:
    """Return the change at each epoch: 1, 0 or -1; before the first epoch, the value is 0."""
    return [after - before for before, after in pairwise((0, *stream))]


def dummies_of_window(noise: CellNoiseLaw, cells: int = 1) -> dict[int, Fraction]:
    """Return the probability of every number of dummies, at the minimum number of contributors."""
    dummies = noise.of_contributors(cells)
    assert isinstance(dummies, PoissonDummies)
    total = {0: Fraction(1)}
    for table, times in dummies.tables(noise.minimum):
        law = {
            table.first + index: Fraction(above - below, 1 << 128)
            for index, (below, above) in enumerate(pairwise((0, *table.bounds)))
            if above > below
        }
        for _ in range(times):
            added: dict[int, Fraction] = {}
            for (one, p), (other, q) in product(total.items(), law.items()):
                added[one + other] = added.get(one + other, Fraction()) + p * q
            total = added
    return total
