"""Who was there: devices enrolled and devices present, epoch by epoch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Attendance:
    """Public head counts that estimators scale by.

    Attributes:
        contributors: int64, shape (epochs + 1,): devices in the released window, whether or not a
            report was due; index 0 is unused.
        population: int64, shape (epochs + 1,): devices enrolled; index 0 is unused.
        added: devices that hold nothing, whose reports parties add to every released window.
    """

    contributors: NDArray[np.int64]
    population: NDArray[np.int64]
    added: int = 0

    @classmethod
    def empty(cls, epochs: int, added: int = 0) -> Attendance:
        """Nobody, at any epoch."""
        return cls(np.zeros(epochs + 1, np.int64), np.zeros(epochs + 1, np.int64), added)

    @classmethod
    def constant(cls, epochs: int, devices: int) -> Attendance:
        """The same devices enrolled and present at every epoch."""
        return cls(np.full(epochs + 1, devices), np.full(epochs + 1, devices))

    def senders(self, epoch: int) -> int:
        """Devices whose reports, and whose noise, are in the window of an epoch."""
        return int(self.contributors[epoch]) + self.added

    def set(self, epoch: int, contributors: int, population: int) -> None:
        """Note the head counts of an epoch."""
        self.contributors[epoch] = contributors
        self.population[epoch] = population
