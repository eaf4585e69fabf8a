"""Registry entry and forecast for protocols with FutureRand's devices and estimators."""

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
from dpstream.pipeline.protocols.change_limits import change_limit
from dpstream.pipeline.protocols.protocol import (
    Aggregation,
    Example,
    Planning,
    Protocol,
    fixed_format,
)
from dpstream.randomizers.dyadic import FutureRandLaw
from dpstream.randomizers.future_rand import FutureRand


class FutureRandForecast:
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
                "max_changes": composed.k,
                "c_gap": law.c_gaps[order],
                "epsilon": composed.loss,
            }
            for order, composed in enumerate(law.composed)
        )
        self.notes = (
            f"a user with more than {law.composed[0].k} changes exhausts the change budget: "
            "missed changes bias the estimates and are not in the predicted errors",
        )

    def standard_errors(self, users: int) -> NDArray[np.float64]:
        return np.sqrt(users * self._unit_variances)

    def smoothed_standard_errors(self, users: int) -> NDArray[np.float64]:
        last_epoch = len(self._unit_variances)
        return np.sqrt(users * predicted_smoothed_variances(self._law, last_epoch))

    def published_bound(self, users: int, exceeded: float) -> float:
        """Return the bound (1 + log2 d) / c_gap sqrt(2 n ln(2 d / beta)).

        The bound holds if all orders are equally likely. c_gap is the minimum over all orders, n is
        `users`, and beta is `exceeded`, the maximum probability of any error above the bound.

        Reference: *Randomize the Future*, Theorem 4.1.
        """
        hoeffding = math.sqrt(2 * users * math.log(2 * self.horizon / exceeded))
        return (1 + math.log2(self.horizon)) / min(self._law.c_gaps) * hoeffding

    def freezing_bias(self, model: FreezingModel) -> NDArray[np.float64]:
        return model.bias(self._law, self._estimator)


def dyadic_protocol(
    name: str,
    parameters: type[Any],
    calibrate: Callable[[Any, int, int], Any],
    examples: tuple[Example, ...],
) -> Protocol:
    return Protocol(
        name=name,
        parameters=parameters,
        law=lambda requested: FutureRandLaw,
        calibrate=calibrate,
        message_format=fixed_format(FutureRand),
        randomizer=FutureRand,
        aggregation=Aggregation(
            lambda law, requested: FutureRandAggregator(law, requested.estimator),
            lambda law, requested, data: FutureRandAggregator.from_bytes(
                law, data, requested.estimator
            ),
            change_limit=lambda law, requested, epochs: change_limit(
                requested.max_changes, epochs, "lost"
            ),
        ),
        planning=Planning(
            lambda law, requested, last_epoch: FutureRandForecast(
                law, last_epoch, requested.estimator
            ),
        ),
        loss_of_streams=True,
        examples=examples,
    )
