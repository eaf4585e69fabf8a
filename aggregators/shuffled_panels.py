"""Estimate panels from the releases of the shuffler: numbers of messages, and noisy sums."""

from __future__ import annotations

from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.law_aggregator import check_format
from dpstream.aggregators.panels import PanelsAggregator
from dpstream.randomizers.panels import AskedPanels, PanelsLaw

MOST_HEADS: Final = 1 << 40
"""Maximum number of messages of a panel in one window."""


class ShuffledPanelsAggregator(PanelsAggregator):
    """Sum the numbers of messages and the noisy sums of every panel, epoch by epoch."""

    def __init__(self, law: PanelsLaw, parameters: AskedPanels) -> None:
        super().__init__(law, parameters)
        self._heads: dict[int, NDArray[np.int64]] = {}

    def check_messages(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        panels = self.law.panels
        check_format(epoch, self.law.last_epoch, words, np.uint64, 2 * panels)
        heads = words[:, :panels]
        if (heads > MOST_HEADS).any():
            raise ValueError(
                f"a panel has {heads.max():,} messages at epoch {epoch}; expected at most "
                f"{MOST_HEADS:,}"
            )
        for index, panel in enumerate(self.parts):
            panel.check_messages(epoch, words[:, [panels + index]])

    def _count(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        panels = self.law.panels
        for index, panel in enumerate(self.parts):
            panel.add(epoch, words[:, [panels + index]], counts)
        times = np.ones(len(words), np.int64) if counts is None else counts.astype(np.int64)
        self._heads[epoch] = self.heads(epoch) + times @ words[:, :panels].astype(np.int64)
        self._changed(epoch)

    def _merge(self, other: Self) -> None:
        super()._merge(other)
        for epoch, heads in other._heads.items():
            self._heads[epoch] = self.heads(epoch) + heads

    def heads(self, epoch: int) -> NDArray[np.int64]:
        return self._heads.get(epoch, np.zeros(self.law.panels, np.int64))

    def to_bytes(self) -> bytes:
        """Serialize the number of epochs, each epoch with its heads (int64), and the panels."""
        entries = [[epoch, *heads.tolist()] for epoch, heads in sorted(self._heads.items())]
        table = np.array(entries, "<i8").tobytes()
        return np.array([len(entries)], "<i8").tobytes() + table + super().to_bytes()

    @classmethod
    def from_bytes(cls, law: PanelsLaw, parameters: AskedPanels, data: bytes) -> Self:
        width = 1 + law.panels
        epochs = int.from_bytes(data[:8], "little")
        end = 8 + 8 * width * epochs
        if len(data) < end or epochs > law.last_epoch:
            raise ValueError(f"heads are truncated: {len(data)} bytes for {epochs} epochs")
        aggregator = super().from_bytes(law, parameters, data[end:])
        before = 0
        for epoch, *heads in np.frombuffer(data[8:end], "<i8").reshape(epochs, width).tolist():
            if not before < epoch <= law.last_epoch or min(heads) < 0:
                raise ValueError(
                    f"heads of epoch {epoch} follow those of epoch {before}; expected increasing "
                    f"epochs from 1 to {law.last_epoch}, and heads of at least 0"
                )
            aggregator._heads[epoch] = np.array(heads, np.int64)
            before = epoch
        return aggregator
