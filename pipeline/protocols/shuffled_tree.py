"""The dyadic tree at every epoch, charged once, the stage trusted to shuffle: two laws.

How many have value 1 (`ShuffledTreeLaw`), or each of several items or numbers
(`ShuffledItemTreeLaw`); which it is follows from the domain of the job.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from aggregators.freezing import FreezingModel
from aggregators.shuffled_item_tree import ShuffledItemTreeAggregator, ShuffledNumberTreeAggregator
from aggregators.shuffled_item_tree import predicted_deviations as item_tree_deviations
from aggregators.shuffled_item_tree import predicted_smoothed_deviations as item_tree_smoothed
from aggregators.shuffled_tree import (
    ShuffledTreeAggregator,
    interval_variances,
    predicted_smoothed_deviations,
)
from aggregators.shuffled_tree import predicted_deviations as tree_deviations
from pipeline.protocols.protocol import Example
from pipeline.protocols.shuffled import Kind, noise_caveats, noise_columns, shuffled
from randomizers.item_domains import Numbers
from randomizers.shuffled_item_tree import ShuffledItemTree, ShuffledItemTreeLaw
from randomizers.shuffled_tree import ShuffledTree, ShuffledTreeLaw, ShuffledTreeParameters


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
                **noise_columns(noise),
            }
            for order, noise in enumerate(law.noises)
        )
        self.caveats = (
            f"a user with more than {law.changes} changes freezes: what is then missed of it "
            "biases the estimates, and is not in the predicted errors",
            "messages are those of a user with as many changes as are followed, at any epochs",
            *noise_caveats(law.noises[0]),
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
                **noise_columns(law.noise, law.buckets),
            }
            for order, most in enumerate(law.most_sums)
        )
        self.caveats = (
            "the errors are those of each of the items; everybody is taken to have one from the "
            "first epoch on, and to change as often as is followed: messages about others that "
            "fall into an item's bucket are part of its error",
            f"a user with more than {law.changes} changes, the first item included, freezes: what "
            "is then missed of it biases the estimates, and is not in the predicted errors",
            *noise_caveats(law.noise),
        )

    def standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the estimate of each item, in users, shape (epochs,)."""
        return item_tree_deviations(self._law, self._last_epoch, users)

    def smoothed_standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the smoothed estimate of each item, in users, shape (epochs,)."""
        return item_tree_smoothed(self._law, self._last_epoch, users)


PROTOCOL = shuffled(
    "shuffled_tree",
    ShuffledTreeParameters,
    Kind(
        "shuffled_tree",
        lambda law: law.noises[0].contributors,
        ShuffledTreeLaw,
        ShuffledTree,
        ShuffledTreeAggregator,
        ShuffledTreeForecast,
    ),
    Kind(
        "shuffled_item_tree",
        lambda law: law.noise.contributors,
        ShuffledItemTreeLaw,
        ShuffledItemTree,
        ShuffledItemTreeAggregator,
        ShuffledItemTreeForecast,
        ShuffledNumberTreeAggregator,
    ),
    (
        Example(ShuffledTreeParameters(4.0, 0.1, 1), 2),
        Example(ShuffledTreeParameters(4.0, 0.1, 2), 1, minimum=2),
        Example(ShuffledTreeParameters(3.0, 0.1, 1, domain=("a", "b")), 1),
        Example(ShuffledTreeParameters(3.0, 0.1, 1, domain=Numbers(0.0, 80.0, 2)), 1),
    ),
)
