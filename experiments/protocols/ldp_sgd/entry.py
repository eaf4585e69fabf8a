"""Registry entry and forecast for ldp_sgd: a linear model from one bit per step and device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.protocols.protocol import (
    Aggregation,
    Example,
    Learning,
    Planning,
    Protocol,
    Shuffling,
)
from dpstream.pipeline.values.examples import ExampleDomain
from dpstream.randomizers.guarantee import rounded_up
from experiments.protocols.ldp_sgd import LdpSgd, LdpSgdLaw, LdpSgdParameters
from experiments.protocols.ldp_sgd.aggregator import LdpSgdAggregator, length_deviation
from experiments.protocols.ldp_sgd.calibration import calibrate, epsilon_with


class LdpSgdForecast:
    """Forecast of the error in the gradient of each step."""

    def __init__(self, law: LdpSgdLaw, last_epoch: int) -> None:
        self._law = law
        self._last_epoch = last_epoch
        self.reports_per_user = np.full(last_epoch, law.reports / law.groups)
        self.constants: tuple[Mapping[str, int | float], ...] = (
            {
                "numbers_of_model": law.dimensions,
                "groups": law.groups,
                "steps_of_device": law.participations,
                "epsilon_alone_step": law.local_epsilon(law.reports),
                "epsilon_alone_all_steps": law.local_epsilon(law.reports * law.participations),
            },
        )
        self.notes = (
            f"gradients have length at most clip, {law.clip:g}, and noise of 100% has that "
            "length; noise averages out over steps and decreases with more users, larger "
            "epsilon, a smaller model or fewer groups",
            "if the shuffler knows which messages come from the same device, epsilon is "
            f"{rounded_up(law.local_epsilon(law.reports), 4)} at every step in which the device "
            "participates, and "
            f"{rounded_up(law.local_epsilon(law.reports * law.participations), 4)} in total",
        )

    def standard_errors(self, users: int) -> NDArray[np.float64]:
        """Return the RMS length of each gradient's noise, in percent of `clip`, shape (epochs,)."""
        reports = max(1.0, users * self._law.reports / self._law.groups)
        return np.full(self._last_epoch, 100 * length_deviation(self._law, reports))


PROTOCOL = Protocol(
    name="ldp_sgd",
    parameters=LdpSgdParameters,
    law=lambda requested: LdpSgdLaw,
    calibrate=calibrate,
    randomizer=LdpSgd,
    aggregation=Aggregation(LdpSgdAggregator, LdpSgdAggregator.from_bytes),
    shuffling=Shuffling(epsilon_with, without_shuffling=lambda law: LdpSgd(law).without_shuffling),
    planning=Planning.of(LdpSgdForecast),
    values=lambda requested: ExampleDomain(
        requested.features, requested.classes, tested=requested.test_set is not None
    ),
    learning=Learning(numbers=lambda law: law.dimensions, groups=lambda law: law.groups),
    examples=(
        Example(LdpSgdParameters(2.0, 0.05, 2, 2, clip=0.02, seed_bits=3), 1, minimum=2),
        Example(LdpSgdParameters(3.0, 0.05, 1, 2, clip=0.01, seed_bits=3), 2),
        Example(LdpSgdParameters(1.2, 0.3, 1, 2, clip=0.01, reports=2, seed_bits=2), 1, minimum=2),
    ),
)
