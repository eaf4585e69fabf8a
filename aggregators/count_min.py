"""Count messages by cell and epoch, and derive items, ranges and heavy hitters from the counts.

Every epoch publishes all items if the domain can be listed, otherwise the top items.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.cell_window import CellWindow
from dpstream.aggregators.epoch_tables import EpochTables
from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.heavy_hitters import HeavyHitters
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.law_aggregator import check_format
from dpstream.randomizers.cell_codes.grid import Grid
from dpstream.randomizers.cell_codes.hashed_rows import HashedRows
from dpstream.randomizers.cell_codes.kept_nodes import KeptNodes
from dpstream.randomizers.cell_codes.levels import Levels
from dpstream.randomizers.count_min import CountMinLaw, Estimator, OneSided
from dpstream.randomizers.count_min.one_sided import allowance


class CountMinAggregator:
    """Count messages by cell. `estimator` combines an item's rows; None selects the best."""

    def __init__(self, law: CountMinLaw, estimator: Estimator | OneSided | None = None) -> None:
        self.law = law
        self.estimator = estimator
        self.state = EpochTables(law.code.cells)

    @property
    def ordered(self) -> bool:
        """True if the cells form a tree, which supports ranges and quantiles."""
        return isinstance(self.law.code, Levels | KeptNodes | Grid)

    def check_messages(self, epoch: int, words: NDArray[np.uint32]) -> None:
        check_format(epoch, self.law.last_epoch, words, np.uint32)
        if len(words) and int(words.max()) >= self.law.code.cells:
            raise ValueError(
                f"cell {words.max()} at epoch {epoch} is out of range; expected 0 to "
                f"{self.law.code.cells - 1}"
            )

    def add(
        self, epoch: int, words: NDArray[np.uint32], counts: NDArray[np.unsignedinteger] | None
    ) -> None:
        self.check_messages(epoch, words)
        self.state.add(epoch, words, counts)

    def merge(self, other: Self) -> None:
        if other.law != self.law:
            raise ValueError("aggregators for different mechanisms cannot be merged")
        self.state.merge(other.state)

    def to_bytes(self) -> bytes:
        return self.state.to_bytes()

    @classmethod
    def from_bytes(
        cls, law: CountMinLaw, data: bytes, estimator: Estimator | OneSided | None = None
    ) -> Self:
        aggregator = cls(law, estimator)
        aggregator.state = EpochTables.from_bytes(law.code.cells, law.last_epoch, data)
        return aggregator

    def estimate(
        self, epoch: int, participation: Participation
    ) -> ItemEstimates | HeavyHitters | None:
        window = self.window([epoch], participation)
        return None if window is None else window.published

    def window(self, epochs: Sequence[int], participation: Participation) -> CellWindow | None:
        """Return the sum of several epochs' windows, or None if one of them is suppressed.

        A one-sided sum is too small with a probability of at most `underestimated` per epoch.
        """
        total, variance, added = np.zeros(self.law.code.cells), 0.0, 0.0
        for epoch in epochs:
            contributors = int(participation.contributors[epoch])
            counts = self.state.counts(epoch) if contributors else None
            if counts is None:
                return None
            senders = participation.senders(epoch)
            mean, own_variance = self.law.noise.moments(senders)
            scale = int(participation.population[epoch]) / contributors
            total += scale * (counts - mean)
            variance += scale**2 * own_variance
            added += scale * self._allowance(senders)
        return CellWindow(
            code=self.law.code,
            cells=total,
            noise_variance=variance,
            contributors=int(participation.contributors[list(epochs)].sum()),
            population=int(participation.population[list(epochs)].sum()),
            estimator="min" if isinstance(self.estimator, OneSided) else self.estimator,
            allowance=added,
        )

    def _allowance(self, contributors: int) -> float:
        match self.estimator, self.law.code:
            case OneSided(underestimated), HashedRows() as code:
                return allowance(self.law.noise, contributors, code.rows, underestimated)
            case _:
                return 0.0
