"""Sets of items at epochs that stand alone, as balls in bins. Its entry and its forecast."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from aggregators.balls_into_bins import BallsIntoBinsAggregator, mean_variance
from pipeline.protocols.late_calibration import late, late_calibration
from pipeline.protocols.per_epoch_forecast import PerEpochForecast
from pipeline.protocols.protocol import Example, Protocol, stated_capacity
from pipeline.values.sets import SetDomain
from randomizers.balls_into_bins import BallsIntoBins, BallsIntoBinsLaw, BallsIntoBinsParameters


class BallsIntoBinsForecast(PerEpochForecast):
    """Dummies, and messages about other items that fall into an item's bucket.

    Args:
        law: the constants of the job.
        last_epoch: at most the law's last.
        held: see `PerEpochForecast`.
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


PROTOCOL = Protocol(
    name="balls_into_bins",
    parameters=BallsIntoBinsParameters,
    calibrate=late_calibration("balls_into_bins", sized=True),
    law=lambda asked: BallsIntoBinsLaw,
    randomizer=BallsIntoBins,
    restore=BallsIntoBins.restore,
    aggregator=lambda law, asked: BallsIntoBinsAggregator(law),
    aggregator_from_bytes=lambda law, asked, data: BallsIntoBinsAggregator.from_bytes(law, data),
    word_form=lambda law: law.word_form,
    needs_shuffle=True,
    capacity=stated_capacity,
    contributors=lambda law: law.noise.contributors,
    epsilon_with=late("balls_into_bins", "epsilon_with"),
    per_epoch=True,
    stage_dummies=lambda law: law.stage_dummies if law.noise.dummies == "shuffle" else None,
    values=lambda asked: SetDomain(asked.domain, asked.items),
    forecast=lambda law, asked, last_epoch: BallsIntoBinsForecast(law, last_epoch),
    examples=(
        Example(BallsIntoBinsParameters(3.0, 0.1, ("a", "b")), 1),
        Example(BallsIntoBinsParameters(4.0, 0.1, ("a", "b"), items=2), 1, minimum=3),
    ),
)
