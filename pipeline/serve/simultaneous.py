"""The band that a curve keeps to at all epochs of a horizon at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.results.expected_errors import EXCEEDED, widening
from dpstream.pipeline.results.series import Series


@dataclass(frozen=True, slots=True)
class Simultaneous:
    """How wide it is.

    Attributes:
        epochs: of a horizon, those to come included.
        widening: how many times as wide as the 95 % interval of each epoch.
        words: what it covers.
    """

    epochs: int
    widening: float
    words: str

    @classmethod
    def of(cls, job: Job) -> Self | None:
        """Of a job whose epochs rest on one another, as `plan` says it; None for others."""
        epochs = job.epochs.count
        if job.protocol_entry.per_epoch or epochs == 1:
            return None
        outside = max(1, round(EXCEEDED * epochs))
        return cls(
            epochs=epochs,
            widening=widening(epochs),
            words=f"The wide band is for all {epochs:,} epochs of a horizon at once, those to come "
            "included: in 19 of 20 runs the noise of no epoch leaves it. The narrow one is for "
            f"each epoch by itself: about {outside:,} of {epochs:,} are expected outside it. "
            "Both are for each curve by itself.",
        )

    def ends(
        self, series: Series, triples: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Lower and upper ends at every epoch, (n,) each; None of quantiles, which are no counts.

        Args:
            series: of the job.
            triples: value, low and high, (n, 3), nan for gaps.
        """
        if series.share:
            return None
        value, low, high = triples.T
        return value - self.widening * (value - low), value + self.widening * (high - value)
