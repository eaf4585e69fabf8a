"""One of several items, for every epoch, nobody trusted. Its entry and its forecast."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregators.dyadic_aggregator import Estimator
from aggregators.hadamard_stream import HadamardStreamAggregator
from pipeline.protocols.future_rand import FutureRandForecast
from pipeline.protocols.late_calibration import late_calibration
from pipeline.protocols.protocol import Alternative, Example, Protocol, fixed_words
from pipeline.protocols.shuffled_alternatives import trusting_with_values
from pipeline.values.value_domains import CategoryDomain
from randomizers.hadamard_stream import HadamardStream, HadamardStreamLaw, HadamardStreamParameters
from randomizers.hadamard_values import HadamardValuesParameters
from randomizers.projective_geometry import ProjectiveGeometryParameters

FEW_EPOCHS: Final = 16
"""Up to so many, a protocol that pays for every epoch is looked at besides."""


class HadamardStreamForecast:
    """Every item's standard deviation is twice that of a Boolean with the same signs.

    Args:
        law: the constants of the job.
        last_epoch: at most the law's horizon.
        estimator: of the job.
    """

    def __init__(
        self, law: HadamardStreamLaw, last_epoch: int, estimator: Estimator = "tree"
    ) -> None:
        self._boolean = FutureRandForecast(law.future_rand, last_epoch, estimator)
        self.horizon = self._boolean.horizon
        self.reports_per_user = self._boolean.reports_per_user
        self.constants = self._boolean.constants
        self.caveats = (
            "the errors are those of each of the items, and do not depend on how many there are",
            _freezing(law),
        )

    def standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the estimate of each item, in users, shape (epochs,)."""
        return 2 * self._boolean.standard_deviations(users)

    def smoothed_standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the smoothed estimate of each item, in users, shape (epochs,)."""
        return 2 * self._boolean.smoothed_standard_deviations(users)


def _freezing(law: HadamardStreamLaw) -> str:
    """Who freezes. A change of item uses a sign up in half of the rows only."""
    bias = "what is then missed of it biases the estimates, and is not in the predicted errors"
    missing = law.changes + 1 - law.signs
    if missing <= 0:
        return f"a user whose item changes more than {law.changes} times may freeze: {bias}"
    # Between two items a device flips every time, or not at all but for its first item.
    alternating = "25 %" if missing == 1 else "50 %"
    return (
        f"{law.signs} flips of what a device tracks are followed; of the users whose item changes "
        f"{law.changes} times {law.frozen_share:.2%} need more and freeze if each change is to "
        f"another item chosen at random, and {alternating} if they go back and forth between two: "
        f"{bias}"
    )


def trusting_or_anew(
    asked: HadamardStreamParameters | HadamardValuesParameters, last_epoch: int
) -> Iterator[Alternative]:
    """The one that trusts the shuffle stage, and one that is asked anew.

    The last one is for few epochs, which it pays for one by one.
    """
    yield from trusting_with_values(asked.epsilon, asked.changes, asked.domain)
    if last_epoch <= FEW_EPOCHS:
        yield (
            "projective_geometry",
            partial(ProjectiveGeometryParameters, asked.epsilon / last_epoch, asked.domain),
        )


def alternatives(asked: HadamardStreamParameters, last_epoch: int) -> Iterator[Alternative]:
    """The protocol that reports values, and `trusting_or_anew`."""
    yield (
        "hadamard_values",
        partial(HadamardValuesParameters, asked.epsilon, asked.changes, asked.domain),
    )
    yield from trusting_or_anew(asked, last_epoch)


PROTOCOL = Protocol(
    name="hadamard_stream",
    parameters=HadamardStreamParameters,
    calibrate=late_calibration("hadamard_stream"),
    law=lambda asked: HadamardStreamLaw,
    randomizer=HadamardStream,
    restore=HadamardStream.restore,
    aggregator=lambda law, asked: HadamardStreamAggregator(law, asked.estimator),
    aggregator_from_bytes=lambda law, asked, data: HadamardStreamAggregator.from_bytes(
        law, data, asked.estimator
    ),
    word_form=fixed_words(HadamardStream),
    needs_shuffle=False,
    loss_of_streams=True,
    values=lambda asked: CategoryDomain(asked.domain),
    forecast=lambda law, asked, last_epoch: HadamardStreamForecast(
        law, last_epoch, asked.estimator
    ),
    alternatives=alternatives,
    examples=(
        Example(HadamardStreamParameters(1.0, 0, ("a", "b")), 2),
        Example(HadamardStreamParameters(4.0, 1, ("a", "b")), 3),
        Example(HadamardStreamParameters(2.0, 1, ("a", "b", "c"), signs=1), 2),
    ),
)
