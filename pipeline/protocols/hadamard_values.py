"""One of several items, for every epoch, by letters; nobody trusted. Its entry and its forecast."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.hadamard_values import HadamardValuesAggregator
from dpstream.pipeline.protocols.change_limits import change_limit
from dpstream.pipeline.protocols.late_calibration import late_calibration
from dpstream.pipeline.protocols.protocol import Alternative, Example, Protocol, fixed_words
from dpstream.pipeline.protocols.shuffled_alternatives import trusting_with_values
from dpstream.pipeline.protocols.value_stream import ValueStreamForecast
from dpstream.pipeline.values.value_domains import CategoryDomain
from dpstream.randomizers.projective_geometry import ProjectiveGeometryParameters
from dpstream.randomizers.value_stream.hadamard_values import (
    HadamardValues,
    HadamardValuesLaw,
    HadamardValuesParameters,
)

FEW_EPOCHS: Final = 16
"""Up to so many, a protocol that pays for every epoch is looked at besides."""


class HadamardValuesForecast:
    """Every item's standard deviation is twice that of a Boolean, and what rows do by chance.

    Args:
        law: the constants of the job.
        last_epoch: at most the law's last.
    """

    def __init__(self, law: HadamardValuesLaw, last_epoch: int) -> None:
        self._boolean = ValueStreamForecast(law.booleans, last_epoch)
        self.reports_per_user = self._boolean.reports_per_user
        self.constants = self._boolean.constants
        self.caveats = (
            "the errors are those of an item that few hold, however many items there are",
            unboosted_caveat(law.changes, law.booleans.changes, law.unboosted_share, "item"),
            *self._boolean.caveats,
        )

    def standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the estimate of each item, in users, shape (epochs,)."""
        letters = 2 * self._boolean.standard_deviations(users)
        # A user with another item adds or takes one, by its row.
        return np.hypot(letters, np.sqrt(users))

    def smoothed_standard_deviations(self, users: int) -> NDArray[np.float64]:
        """The same: later letters add nothing to the estimate of an epoch."""
        return self.standard_deviations(users)


def unboosted_caveat(changes: int, boosted: int, share: float, value: str) -> str:
    """How many users have flips that are followed late."""
    if boosted > changes:
        return f"all flips of a user whose {value} changes at most {changes} times are boosted"
    return (
        f"{boosted} flips of what a device tracks are boosted; of the users whose {value} changes "
        f"{changes} times {share:.2%} have more if each change is to another {value} chosen at "
        f"random"
    )


def alternatives(asked: HadamardValuesParameters, last_epoch: int) -> Iterator[Alternative]:
    """The one that trusts the shuffle stage, and one that is asked anew.

    The last one is for few epochs, which it pays for one by one.
    """
    yield from trusting_with_values(asked.epsilon, asked.changes, asked.domain)
    if last_epoch <= FEW_EPOCHS:
        yield (
            "projective_geometry",
            partial(ProjectiveGeometryParameters, asked.epsilon / last_epoch, asked.domain),
        )


PROTOCOL = Protocol(
    name="hadamard_values",
    parameters=HadamardValuesParameters,
    calibrate=late_calibration("value_stream.hadamard_values"),
    law=lambda asked: HadamardValuesLaw,
    randomizer=HadamardValues,
    restore=HadamardValues.restore,
    aggregator=lambda law, asked: HadamardValuesAggregator(law),
    aggregator_from_bytes=lambda law, asked, data: HadamardValuesAggregator.from_bytes(law, data),
    word_form=fixed_words(HadamardValues),
    needs_shuffle=False,
    loss_of_streams=True,
    change_limit=lambda law, asked, epochs: change_limit(
        asked.changes, epochs, "delayed", first_is_free=True, boost=law.booleans.boost
    ),
    values=lambda asked: CategoryDomain(asked.domain),
    forecast=lambda law, asked, last_epoch: HadamardValuesForecast(law, last_epoch),
    alternatives=alternatives,
    examples=(
        Example(HadamardValuesParameters(1.0, 0, ("a", "b")), 1),
        Example(HadamardValuesParameters(2.0, 1, ("a", "b")), 2),
    ),
)
