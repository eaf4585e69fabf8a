"""Estimate counts from messages that lie in hyperplanes of a projective space.

A message lies in the set of an item with probability a if its user has the item, and with
probability b otherwise, whatever other items the user has. So if m of n messages lie in the set,
(m - b n) / (a - b) is an unbiased estimate of f, the number of users with the item. Its variance is
(f a (1 - a) + (n - f) b (1 - b)) / (a - b)^2.

For a domain too large to list, each level of prefixes is counted this way. The messages of a level
come from the users who drew it, a random sample of all users. `PrefixCounts` evaluates the counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.cell_window import FOUND, CellWindow
from dpstream.aggregators.counts import CountedWindow, added_up
from dpstream.aggregators.epoch_tables import WordAggregator
from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.heavy_hitters import HeavyHitters
from dpstream.aggregators.hyperplane_sums import hyperplane_sums
from dpstream.aggregators.item_counts import item_estimates, scaled_levels, spoken_for_variance
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.randomizers.cell_codes.prefixes import PrefixCells
from dpstream.randomizers.item_domains import MOST_PUBLISHED
from dpstream.randomizers.projective_geometry import ProjectiveGeometryLaw


class ProjectiveGeometryAggregator(WordAggregator[ProjectiveGeometryLaw]):
    """Count the multiplicity of each message, for every epoch.

    >>> from dpstream.aggregators.estimate import Participation
    >>> from dpstream.randomizers.composed import ComposedLaw
    >>> law = ProjectiveGeometryLaw(2, 1, 2, 2, 1, 1, ComposedLaw((2, 1)), 1.0, 1.0, 1e-6)
    >>> aggregator = ProjectiveGeometryAggregator(law)
    >>> aggregator.add(1, np.array([[1], [1], [0], [1]], np.uint8), None)
    >>> aggregator.estimate(1, Participation.constant(1, 4)).values.tolist()  # 3 and 0, of 4
    [8.0, -4.0]
    """

    def estimate(
        self, epoch: int, participation: Participation
    ) -> ItemEstimates | HeavyHitters | None:
        found = self._of(epoch, participation)
        if isinstance(found, CellWindow):
            return found.published
        return None if found is None else found.listed(MOST_PUBLISHED) or found.top(FOUND)

    def window(self, epochs: Sequence[int], participation: Participation) -> CountedWindow | None:
        return added_up(self._of(epoch, participation) for epoch in epochs)

    def _of(self, epoch: int, participation: Participation) -> ItemEstimates | CellWindow | None:
        received, prefixes = self._tables.counts(epoch), self.law.prefixes
        if received is None or participation.contributors[epoch] < 1:
            return None
        if prefixes is None:
            return self._items(received, epoch, participation)
        return self._prefixes(prefixes, received, epoch, participation)

    def _items(
        self, received: NDArray[np.int64], epoch: int, participation: Participation
    ) -> ItemEstimates:
        counts, noise, reports = self._counts(received, self.law.items)
        return item_estimates(counts, noise, np.max, reports, epoch, participation)

    def _prefixes(
        self,
        code: PrefixCells,
        received: NDArray[np.int64],
        epoch: int,
        participation: Participation,
    ) -> CellWindow:
        population, law = int(participation.population[epoch]), self.law
        levels = received.reshape(len(code.levels), -1)
        cells, noise, held = scaled_levels(
            (
                (self._inside(words, level.buckets), int(words.sum()), law.probabilities)
                for level, words in zip(code.levels, levels, strict=True)
            ),
            population,
        )
        return CellWindow(
            code=code,
            cells=cells,
            noise_variance=noise,
            contributors=int(participation.contributors[epoch]),
            population=population,
            held_variance=held,
        )

    def _inside(self, received: NDArray[np.int64], items: int) -> NDArray[np.int64]:
        """Return the number of messages in the set of each item; the first point is not an item."""
        return hyperplane_sums(self.law.space, received, 1 + items)[1:]

    def _counts(
        self, received: NDArray[np.int64], items: int
    ) -> tuple[NDArray[np.float64], float, int]:
        """Return the reporting users per item, the largest variance, and the number of reports."""
        law, reports = self.law, int(received.sum())
        inside = self._inside(received, items)
        held, other = map(float, law.probabilities)
        counts = (inside.astype(np.float64) - other * reports) / (held - other)
        most = min(max(float(counts.max()), 0.0), reports)
        noise = max(
            spoken_for_variance(law.probabilities, reports, holders) for holders in (0.0, most)
        )
        return counts, noise, reports
