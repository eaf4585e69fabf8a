"""What to expect of balls into bins, before there is any data."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from aggregators.balls_into_bins import mean_variance
from pipeline.held_forecast import HeldForecast
from randomizers.balls_into_bins import BallsIntoBinsLaw


class BallsIntoBinsForecast(HeldForecast):
    """Dummies, and messages about other items that fall into an item's bucket.

    Args:
        law: the constants of the job.
        last_epoch: at most the law's last.
        held: see `HeldForecast`.
    """

    def __init__(
        self, law: BallsIntoBinsLaw, last_epoch: int, held: NDArray[np.float64] | None = None
    ) -> None:
        super().__init__(last_epoch, law.size, law.items, held)
        self._law = law
        self._messages = float(self._held.sum())
        hashes = "one hash" if law.hashes.directions == 1 else f"{law.hashes.directions:,} hashes"
        self.cells = f"a row of {law.buckets:,} buckets by {hashes}, drawn for every message"
        if law.hashes.overlap == 0:
            self.cells = f"a histogram, with a bucket for each of {law.size:,} items"
        self.reports_per_user = np.full(last_epoch, law.messages)
        self.constants: tuple[Mapping[str, int | float], ...] = (
            {
                "buckets": law.buckets,
                "digits": law.hashes.digits,
                "hashes": law.hashes.directions,
                "dummies": law.noise.mean,
                "collisions": law.hashes.overlap,
                "bytes_per_user": law.word_form.report_bytes * law.messages,
            },
        )
        self.caveats = (
            f"a user is taken to hold {self._messages:,.3g} items on average: messages about "
            "others that fall into an item's bucket are part of its error",
            f"dummies are sized on shuffle.minimum, {law.noise.minimum:,}: the closer it is to the "
            "number of users, the smaller the errors",
        )

    def like(self, held: NDArray[np.float64]) -> BallsIntoBinsForecast:
        """The same if users hold as many items together as these shares add up to."""
        return BallsIntoBinsForecast(self._law, self._last_epoch, held)

    def _deviation(self, users: int) -> float:
        return math.sqrt(mean_variance(self._law, users, users * self._messages))

    def _noise_deviation(self, users: int) -> float:
        return math.sqrt(mean_variance(self._law, users, 0.0))
