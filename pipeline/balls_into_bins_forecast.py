"""What to expect of balls into bins, before there is any data."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from aggregators.balls_into_bins import mean_variance
from randomizers.balls_into_bins import BallsIntoBinsLaw
from randomizers.row_errors import normal_errors, usual_error, zipf_counts

_COUNTED = 100_000


class BallsIntoBinsForecast:
    """Every epoch is as good as the others, if as many users contribute.

    Args:
        law: the constants of the job.
        last_epoch: at most the law's last.
        held: the shares of the users that hold each item, in any order; None: those of Zipf's law,
            if everybody holds as many items as are allowed.
    """

    def __init__(
        self, law: BallsIntoBinsLaw, last_epoch: int, held: NDArray[np.float64] | None = None
    ) -> None:
        self._law, self._last_epoch = law, last_epoch
        self._held = zipf_counts(min(law.size, _COUNTED), law.items) if held is None else held
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

    def standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the estimate of each item, in users, shape (epochs,)."""
        return np.full(self._last_epoch, self._deviation(users, self._messages))

    def predicted_error(self, users: int) -> float:
        """See `CellForecast.predicted_error`."""
        return self._usual(self._deviation(users, self._messages), users)

    def noise_error(self, users: int) -> float:
        """What it would be without collisions."""
        return self._usual(self._deviation(users, 0.0), users)

    def like(self, held: NDArray[np.float64]) -> BallsIntoBinsForecast:
        """The same if users hold as many items together as these shares add up to."""
        return BallsIntoBinsForecast(self._law, self._last_epoch, held)

    def _usual(self, deviation: float, users: int) -> float:
        return usual_error(normal_errors(deviation), users * self._held)

    def _deviation(self, users: int, messages: float) -> float:
        return math.sqrt(mean_variance(self._law, users, users * messages))
