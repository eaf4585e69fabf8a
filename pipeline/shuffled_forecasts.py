"""What to expect of continual counts in the shuffled model, before there is any data."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from aggregators.freezing import FreezingModel
from aggregators.shuffled_counts import predicted_deviations as counts_deviations
from aggregators.shuffled_item_counts import predicted_deviations as item_deviations
from aggregators.shuffled_item_tree import predicted_deviations as item_tree_deviations
from aggregators.shuffled_item_tree import predicted_smoothed_deviations as item_tree_smoothed
from aggregators.shuffled_level_counts import predicted_deviations as level_deviations
from aggregators.shuffled_tree import interval_variances, predicted_smoothed_deviations
from aggregators.shuffled_tree import predicted_deviations as tree_deviations
from randomizers.cell_noise_law import CellNoiseLaw
from randomizers.code_variances import (
    equal_variances,
    level_range_variances,
    mean_deviation,
)
from randomizers.shuffled_counts import ShuffledCountsLaw
from randomizers.shuffled_item_counts import ShuffledItemCountsLaw
from randomizers.shuffled_item_tree import ShuffledItemTreeLaw
from randomizers.shuffled_level_counts import ShuffledLevelCountsLaw
from randomizers.shuffled_tree import ShuffledTreeLaw


class ShuffledCountsForecast:
    """One cell for each epoch, its noise averaged over about 2r + 1 of them.

    Args:
        law: the constants of the job.
        last_epoch: at most the law's last.
    """

    def __init__(self, law: ShuffledCountsLaw, last_epoch: int) -> None:
        self._law, self._last_epoch = law, last_epoch
        self.reports_per_user = np.full(last_epoch, law.boost + 1 + law.noise.per_contributor(1))
        self.constants: tuple[Mapping[str, int | float], ...] = (
            {
                "epochs": law.last_epoch,
                "changes": law.changes,
                "boost": law.boost,
                **_noise_columns(law.noise),
            },
        )
        self.caveats = (
            "messages are those of a user whose value is always 1: with 0 it sends one fewer",
            *_boost_caveats(law),
            *_noise_caveats(law.noise),
        )

    def standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the estimates, in users, shape (epochs,)."""
        return counts_deviations(self._law, self._last_epoch, users)

    def freezing_bias(self, model: FreezingModel) -> NDArray[np.float64]:
        """Expected estimate minus truth for one user, shape (epochs,)."""
        boost, biases, bias = self._law.boost, [], 0.0
        # By epoch, what changes that are not boosted add up to.
        for unboosted in np.diff(model.missed(order=0, signs=self._law.changes)).tolist():
            bias = boost * (bias - unboosted) / (boost + 1)
            biases.append(bias)
        return np.array(biases)


class ShuffledItemCountsForecast:
    """Of every item the same.

    Args:
        law: the constants of the job.
        last_epoch: at most the law's last.
    """

    def __init__(self, law: ShuffledItemCountsLaw, last_epoch: int) -> None:
        self._law, self._last_epoch = law, last_epoch
        self.reports_per_user = np.full(last_epoch, 1 + law.dummies_per_user)
        self.constants: tuple[Mapping[str, int | float], ...] = (
            {
                "epochs": law.last_epoch,
                "changes": law.changes,
                "boost": law.boost,
                "buckets": law.buckets,
                "collisions": law.hashes.overlap,
                "dummies": law.held.mean,
                "dummies_left": 0.0 if law.left is None else law.left.mean,
                "dummies_per_user": law.dummies_per_user,
            },
        )
        self.caveats = (
            "the errors are those of each of the items; everybody is taken to have one, and "
            "messages about others that fall into an item's bucket are part of its error",
            *_boost_caveats(law),
            *_noise_caveats(law.held),
        )

    def standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the estimate of each item, in users, shape (epochs,)."""
        return item_deviations(self._law, self._last_epoch, users)


class ShuffledLevelCountsForecast:
    """Of every value the same, and of ranges.

    Args:
        law: the constants of the job.
        last_epoch: at most the law's last.
    """

    def __init__(self, law: ShuffledLevelCountsLaw, last_epoch: int) -> None:
        self._law, self._last_epoch = law, last_epoch
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
        self.caveats = (
            f"the errors are those of each of the {law.size:,} values or buckets; random ranges "
            f"have {self._of_ranges():.1f} times as large ones on average",
            *_boost_caveats(law),
            *_noise_caveats(law.held),
        )

    def standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the estimate of each value, in users, shape (epochs,)."""
        return level_deviations(self._law, self._last_epoch, users)

    def range_standard_deviations(self, users: int, start: int, end: int) -> NDArray[np.float64]:
        """Of the number of values from `start`, counted from 0, up to before `end`, by epoch."""
        return level_deviations(self._law, self._last_epoch, users, start, end)

    def _of_ranges(self) -> float:
        """The mean deviation of random ranges, over that of a single value."""
        levels = self._law.levels
        own = equal_variances(levels, rooted=self._law.rooted)
        single = float(level_range_variances(levels, own, 0, 1))
        return mean_deviation(levels, own) / math.sqrt(single)


class ShuffledTreeForecast:
    """Dyadic intervals with the noise of their cells.

    Args:
        law: the constants of the job.
        last_epoch: at most the law's last.
    """

    def __init__(self, law: ShuffledTreeLaw, last_epoch: int) -> None:
        self._law, self._last_epoch = law, last_epoch
        self.horizon = law.horizon
        self.reports_per_user = law.dummies_of_user(last_epoch)
        for order, most in enumerate(law.most_sums):
            intervals = law.last_epoch >> order
            self.reports_per_user[(1 << order) - 1 :: 1 << order] += most / intervals
        self.constants: tuple[Mapping[str, int | float], ...] = tuple(
            {
                "order": order,
                "epochs": 1 << order,
                "changes": law.most_sums[order],
                **_noise_columns(noise),
            }
            for order, noise in enumerate(law.noises)
        )
        self.caveats = (
            f"a user with more than {law.changes} changes freezes: what is then missed of it "
            "biases the estimates, and is not in the predicted errors",
            "messages are those of a user with as many changes as are followed, at any epochs",
            *_noise_caveats(law.noises[0]),
        )

    def standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the estimates, in users, shape (epochs,)."""
        return tree_deviations(self._law, self._last_epoch, users)

    def smoothed_standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the estimates smoothed over the whole horizon, in users, shape (epochs,)."""
        return predicted_smoothed_deviations(self._law, self._last_epoch, users)

    def freezing_bias(self, model: FreezingModel) -> NDArray[np.float64]:
        """Expected estimate minus truth for one user, shape (epochs,)."""
        law = self._law
        variances = interval_variances(law, self._last_epoch, law.minimum)
        return model.bias_of([law.changes] * len(variances), variances)


class ShuffledItemTreeForecast:
    """Dyadic intervals with the noise of their words, of every item the same.

    Args:
        law: the constants of the job.
        last_epoch: at most the law's last.
    """

    def __init__(self, law: ShuffledItemTreeLaw, last_epoch: int) -> None:
        self._law, self._last_epoch = law, last_epoch
        self.horizon = law.horizon
        self.reports_per_user = law.dummies_of_user(last_epoch)
        for order, most in enumerate(law.most_sums):
            intervals = law.last_epoch >> order
            self.reports_per_user[(1 << order) - 1 :: 1 << order] += (2 * most - 1) / intervals
        self.constants: tuple[Mapping[str, int | float], ...] = tuple(
            {
                "order": order,
                "epochs": 1 << order,
                "changes": most,
                "buckets": law.buckets,
                "collisions": law.hashes.overlap,
                **_noise_columns(law.noise, law.buckets),
            }
            for order, most in enumerate(law.most_sums)
        )
        self.caveats = (
            "the errors are those of each of the items; everybody is taken to have one from the "
            "first epoch on, and to change as often as is followed: messages about others that "
            "fall into an item's bucket are part of its error",
            f"a user with more than {law.changes} changes, the first item included, freezes: what "
            "is then missed of it biases the estimates, and is not in the predicted errors",
            *_noise_caveats(law.noise),
        )

    def standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the estimate of each item, in users, shape (epochs,)."""
        return item_tree_deviations(self._law, self._last_epoch, users)

    def smoothed_standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the smoothed estimate of each item, in users, shape (epochs,)."""
        return item_tree_smoothed(self._law, self._last_epoch, users)


def _noise_columns(noise: CellNoiseLaw, cells: int = 1) -> dict[str, int | float]:
    return {
        "dummies": noise.mean,
        "variance": noise.moments(noise.minimum)[1],
        "dummies_per_user": noise.per_contributor(cells),
    }


def _boost_caveats(
    law: ShuffledCountsLaw | ShuffledItemCountsLaw | ShuffledLevelCountsLaw,
) -> tuple[str, ...]:
    if not law.boost:
        return ()
    kept = f"the share ({law.boost}/{law.boost + 1})^(m+1) of it is missing m epochs later"
    return (
        f"changes of a user past the first {law.changes} are not boosted, nor are those that fall "
        f"on an epoch that is withheld or follow one at which the user was silent: {kept}, which "
        "biases the estimates and is not in the predicted errors",
    )


def _noise_caveats(noise: CellNoiseLaw) -> tuple[str, ...]:
    if noise.dummies == "shuffle":
        return ()
    return (
        "every user adds dummies, so that there is more noise than is needed with more users than "
        f"shuffle.minimum, {noise.minimum:,}: the closer it is to their number, the smaller the "
        "errors",
    )
