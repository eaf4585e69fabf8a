"""FutureRand: how many have value 1, for every epoch. Its entry and its forecast."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.freezing import FreezingModel
from dpstream.aggregators.future_rand import (
    Estimator,
    FutureRandAggregator,
    predicted_smoothed_variances,
    predicted_variances,
)
from dpstream.pipeline.protocols.boolean_alternatives import alternatives
from dpstream.pipeline.protocols.change_limits import change_limit
from dpstream.pipeline.protocols.late_calibration import late_calibration
from dpstream.pipeline.protocols.protocol import Example, Protocol, fixed_words
from dpstream.randomizers.baselines import IndependentResponseParameters
from dpstream.randomizers.dyadic import FutureRandLaw
from dpstream.randomizers.future_rand import FutureRand, FutureRandParameters


class FutureRandForecast:
    """FutureRand's dyadic intervals, combined or not, when everybody reports.

    Args:
        law: the constants of the job.
        last_epoch: at most the law's horizon.
        estimator: of the job.
    """

    def __init__(self, law: FutureRandLaw, last_epoch: int, estimator: Estimator = "tree") -> None:
        epochs = np.arange(1, last_epoch + 1)
        self.horizon = law.horizon
        self._law, self._estimator = law, estimator
        self._unit_variances = predicted_variances(law, last_epoch, estimator)
        self.reports_per_user = np.zeros(last_epoch)
        for order, probability in enumerate(law.order_probabilities):
            self.reports_per_user[epochs % (1 << order) == 0] += probability
        self.constants = tuple(
            {
                "order": order,
                "epochs": 1 << order,
                "probability": law.order_probabilities[order],
                "changes": composed.k,
                "c_gap": law.c_gaps[order],
                "epsilon": composed.loss,
            }
            for order, composed in enumerate(law.composed)
        )
        self.caveats = (
            f"a user with more than {law.composed[0].k} changes freezes: what is then missed of it "
            "biases the estimates, and is not in the predicted errors",
        )

    def standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the estimates, in users, shape (epochs,)."""
        return np.sqrt(users * self._unit_variances)

    def smoothed_standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the estimates smoothed over the whole horizon, in users, shape (epochs,)."""
        last_epoch = len(self._unit_variances)
        return np.sqrt(users * predicted_smoothed_variances(self._law, last_epoch))

    def published_bound(self, users: int, exceeded: float) -> float:
        """Theorem 4.1 of "Randomize the Future": (1 + log2 d) / c_gap sqrt(2 n ln(2 d / beta)).

        Of orders that are all equally likely, and with the least c_gap of all.

        Args:
            users: n.
            exceeded: beta, how likely it is at most that some error is larger.
        """
        hoeffding = math.sqrt(2 * users * math.log(2 * self.horizon / exceeded))
        return (1 + math.log2(self.horizon)) / min(self._law.c_gaps) * hoeffding

    def freezing_bias(self, model: FreezingModel) -> NDArray[np.float64]:
        """Expected estimate minus truth for one user, shape (epochs,)."""
        return model.bias(self._law, self._estimator)


def dyadic_protocol(
    name: str,
    parameters: type[FutureRandParameters | IndependentResponseParameters],
    calibrate: Callable[[Any, int, int], Any],
    examples: tuple[Example, ...],
) -> Protocol:
    """FutureRand's devices and estimators, with a law of signs."""
    return Protocol(
        name=name,
        parameters=parameters,
        calibrate=calibrate,
        law=lambda asked: FutureRandLaw,
        randomizer=FutureRand,
        restore=FutureRand.restore,
        aggregator=lambda law, asked: FutureRandAggregator(law, asked.estimator),
        aggregator_from_bytes=lambda law, asked, data: FutureRandAggregator.from_bytes(
            law, data, asked.estimator
        ),
        word_form=fixed_words(FutureRand),
        needs_shuffle=False,
        loss_of_streams=True,
        change_limit=lambda law, asked, epochs: change_limit(asked.changes, epochs, "lost"),
        forecast=lambda law, asked, last_epoch: FutureRandForecast(
            law, last_epoch, asked.estimator
        ),
        alternatives=alternatives,
        examples=examples,
    )


PROTOCOL = dyadic_protocol(
    "future_rand",
    FutureRandParameters,
    late_calibration("future_rand"),
    (
        Example(FutureRandParameters(1.0, 1), 2),
        Example(FutureRandParameters(2.0, 2), 4),
        Example(FutureRandParameters(1.5, 2), 3),
        Example(FutureRandParameters(4.0, 1, "published"), 2),
        Example(FutureRandParameters(8.0, 2, "published"), 4),
    ),
)
