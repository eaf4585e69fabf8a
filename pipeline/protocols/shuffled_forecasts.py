"""Forecasts of counts in the shuffle model, one per mechanism of `shuffled_counts`."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.freezing import FreezingModel
from dpstream.aggregators.shuffled_counts import predicted_deviations as counts_deviations
from dpstream.aggregators.shuffled_item_counts import predicted_deviations as item_deviations
from dpstream.aggregators.shuffled_level_counts import predicted_deviations as level_deviations
from dpstream.aggregators.shuffled_value_stream import predicted_deviations as stream_deviations
from dpstream.pipeline.protocols.followed_forecasts import FollowedForecast
from dpstream.randomizers.cell_noise_law import CellNoiseLaw
from dpstream.randomizers.change_kernel import Kernel
from dpstream.randomizers.code_variances import (
    equal_variances,
    level_range_variances,
    mean_deviation,
)
from dpstream.randomizers.shuffled_counts import ShuffledCountsLaw
from dpstream.randomizers.shuffled_counts.shuffled_item_counts import ShuffledItemCountsLaw
from dpstream.randomizers.shuffled_counts.shuffled_level_counts import ShuffledLevelCountsLaw
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import STEPS, ShuffledValueStreamLaw


class ShuffledCountsForecast:
    """Forecast for one cell per epoch, with noise averaged over about 2 `boost` + 1 epochs."""

    def __init__(self, law: ShuffledCountsLaw, last_epoch: int) -> None:
        self._law, self._last_epoch = law, last_epoch
        self.boost = law.boost
        self.reports_per_user = np.full(last_epoch, law.boost + 1 + law.noise.per_contributor(1))
        self.constants: tuple[Mapping[str, int | float], ...] = (
            {
                "epochs": law.last_epoch,
                "max_changes": law.max_changes,
                "boost": law.boost,
                "dummies": law.noise.mean,
                "variance": law.noise.moments(law.noise.minimum)[1],
                "dummies_per_user": law.noise.per_contributor(1),
            },
        )
        self.notes = (
            "messages are counted for a user whose value is always 1; with value 0 a user sends "
            "one message fewer",
            *_boost_notes(law),
            *_noise_notes(law.noise),
        )

    def standard_errors(self, users: int) -> NDArray[np.float64]:
        return counts_deviations(self._law, self._last_epoch, users)

    def freezing_bias(self, model: FreezingModel) -> NDArray[np.float64]:
        boost, biases, bias = self._law.boost, [], 0.0
        # Expected sum of the changes that are not boosted, by epoch.
        for unboosted in np.diff(model.missed(order=0, signs=self._law.max_changes)).tolist():
            bias = boost * (bias - unboosted) / (boost + 1)
            biases.append(bias)
        return np.array(biases)


class ShuffledItemCountsForecast:
    def __init__(self, law: ShuffledItemCountsLaw, last_epoch: int) -> None:
        self._law, self._last_epoch = law, last_epoch
        self.boost = law.boost
        self.reports_per_user = np.full(last_epoch, 1 + law.dummies_per_user)
        self.constants: tuple[Mapping[str, int | float], ...] = (
            {
                "epochs": law.last_epoch,
                "max_changes": law.max_changes,
                "boost": law.boost,
                "buckets": law.buckets,
                "collisions": law.hashes.overlap,
                "dummies": law.held.mean,
                "dummies_left": 0.0 if law.left is None else law.left.mean,
                "dummies_per_user": law.dummies_per_user,
            },
        )
        self.notes = (
            "predicted errors are for each item; every user is assumed to have one, and messages "
            "about other items in an item's bucket are part of its error",
            *_boost_notes(law),
            *_noise_notes(law.held),
        )

    def standard_errors(self, users: int) -> NDArray[np.float64]:
        return item_deviations(self._law, self._last_epoch, users)


class ShuffledLevelCountsForecast:
    def __init__(self, law: ShuffledLevelCountsLaw, last_epoch: int) -> None:
        self._law, self._last_epoch = law, last_epoch
        self.boost = law.boost
        self.reports_per_user = np.full(last_epoch, law.levels_sent + law.dummies_per_user)
        self.constants: tuple[Mapping[str, int | float], ...] = tuple(
            {
                "level": level,
                "nodes": nodes,
                "width": width,
                "boost": law.boost,
                "dummies": law.held.mean,
                "dummies_left": 0.0 if law.left is None else law.left.mean,
                "dummies_per_user": sum(noise.per_contributor(nodes) for noise in law.noises),
            }
            for level, (nodes, width) in enumerate(
                zip(law.levels.nodes, law.levels.widths, strict=True)
            )
            if level or law.rooted
        )
        self.notes = (
            f"predicted errors are for each of the {law.size:,} values or buckets; errors of "
            f"random ranges are {self._of_ranges():.1f} times as large on average",
            *_boost_notes(law),
            *_noise_notes(law.held),
        )

    def standard_errors(self, users: int) -> NDArray[np.float64]:
        return level_deviations(self._law, self._last_epoch, users)

    def _of_ranges(self) -> float:
        levels = self._law.levels
        own = equal_variances(levels, rooted=self._law.rooted)
        single = float(level_range_variances(levels, own, 0, 1))
        return mean_deviation(levels, own) / math.sqrt(single)


class ShuffledValueStreamForecast(FollowedForecast):
    """Forecast for one noisy sum per epoch, of Booleans or of `numbers` from 0 to 1."""

    def __init__(
        self, law: ShuffledValueStreamLaw, last_epoch: int, *, numbers: bool = False
    ) -> None:
        super().__init__(Kernel(law.boost, law.decay), law.max_changes, last_epoch)
        self._law, self._numbers = law, numbers
        if numbers:
            self.notes += (
                "a change of a number counts by its size: a change by the whole range is one, from "
                "the lowest number before the first epoch",
            )
        self.constants: tuple[Mapping[str, int | float], ...] = (
            {
                "epochs": law.last_epoch,
                "max_changes": law.max_changes,
                "boost": law.boost,
                "decay": law.decay,
                "squared_norm_budget": law.squared_norm_budget / STEPS**2,
                "deviation": law.deviation / STEPS,
            },
        )

    def standard_errors(self, users: int) -> NDArray[np.float64]:
        return stream_deviations(self._law, self._last_epoch, users, rounded=self._numbers)


def _boost_notes(
    law: ShuffledCountsLaw | ShuffledItemCountsLaw | ShuffledLevelCountsLaw,
) -> tuple[str, ...]:
    if not law.boost:
        return ()
    kept = (
        f"of an unboosted change, the fraction ({law.boost}/{law.boost + 1})^(m+1) is missing "
        "after m epochs"
    )
    return (
        f"only the first {law.max_changes} changes of a user are boosted, and none at a suppressed "
        f"epoch or after an epoch at which the user was absent: {kept}, which biases the "
        "estimates and is not in the predicted errors",
    )


def _noise_notes(noise: CellNoiseLaw) -> tuple[str, ...]:
    if noise.dummies == "shuffle":
        return ()
    return (
        "every user adds dummies, so the noise is larger than necessary with more users than "
        f"shuffle.minimum, {noise.minimum:,}: the closer this minimum is to the number of users, "
        "the smaller the errors",
    )
