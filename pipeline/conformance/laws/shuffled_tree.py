"""What the devices of the smallest window can send: messages of changed intervals, and dummies."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import product

from pipeline.conformance.cases import Stream, View
from pipeline.conformance.laws.shuffled_counts import OfItems, changes, dummies_of_window
from randomizers.shuffled_item_tree import ShuffledItemTreeLaw
from randomizers.shuffled_tree import ShuffledTreeLaw


def ExactLaw(  # noqa: N802 - stands for a class, of either kind of law
    law: ShuffledTreeLaw | ShuffledItemTreeLaw, last_epoch: int
) -> _OfBooleans | OfItems:
    """Of values 0 and 1, or of items of which one is come to and none is left."""
    if isinstance(law, ShuffledItemTreeLaw):
        assert law.kinds == 1
        return OfItems(law.size, law.buckets, law.noise, last_epoch)
    return _OfBooleans(law, last_epoch)


class _OfBooleans:
    """By enumeration of the dummies of all cells."""

    def __init__(self, law: ShuffledTreeLaw, last_epoch: int) -> None:
        self.law = law
        self.devices = law.minimum
        self.dummies = [dummies_of_window(noise) for noise in law.noises]
        # Word by word, epoch by epoch.
        self.cells = [
            (epoch, order, 2 * order + down)
            for epoch in range(1, last_epoch + 1)
            for order in range(len(law.noises))
            if epoch % (1 << order) == 0
            for down in range(1 if law.changes == 1 else 2)
        ]

    def followed(self, stream: Stream) -> bool:
        """No change has to be left out."""
        return sum(map(abs, changes(stream))) <= self.law.changes

    def views(self, stream: Stream) -> dict[View, Fraction]:
        """What can be seen, with its probability."""
        sent = self._sent(stream)
        found: dict[View, Fraction] = {}
        for drawn in product(*(self.dummies[order].items() for _, order, _ in self.cells)):
            probability = Fraction(1)
            epochs: list[list[tuple[int, ...]]] = [[] for _ in stream]
            for (epoch, _, word), (dummies, each) in zip(self.cells, drawn, strict=True):
                probability *= each
                epochs[epoch - 1] += [(word,)] * (dummies + sent[epoch, word])
            found[tuple(map(tuple, epochs))] = probability
        return found

    def _sent(self, stream: Stream) -> Counter[tuple[int, int]]:
        values = (0, *stream)
        sent: Counter[tuple[int, int]] = Counter()
        for order in range(len(self.law.noises)):
            made = 0
            for end in range(1 << order, len(values), 1 << order):
                change = values[end] - values[end - (1 << order)]
                made += abs(change)
                # The second change of whoever may have one is left out, as is what follows.
                if change and made <= self.law.changes:
                    sent[end, 2 * order + (change < 0)] += 1
        return sent
