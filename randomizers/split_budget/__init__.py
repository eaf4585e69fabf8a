"""The privacy budget split evenly over the epochs: what one would do without thinking further.

At each of d epochs a device sends its value by randomized response with epsilon / d. The losses of
the epochs add up to epsilon for the whole stream, exactly: two streams that differ everywhere
attain it. The noise of an estimate grows as d.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.composed import ComposedLaw, log_rounded_up
from dpstream.randomizers.epoch_responses import EpochResponses, check_response
from dpstream.randomizers.future_rand import check_epsilon
from dpstream.randomizers.guarantee import Guarantee
from dpstream.randomizers.laws import Constants


@dataclass(frozen=True, slots=True)
class SplitBudgetParameters:
    """What a job says about the split budget.

    Attributes:
        epsilon: the privacy loss of a user's whole stream.

    Raises:
        ValueError: it is not allowed; the message says what is.
    """

    epsilon: float

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        object.__setattr__(self, "epsilon", float(self.epsilon))


@dataclass(frozen=True, slots=True)
class SplitBudgetLaw(Constants):
    """All constants of a job.

    Attributes:
        last_epoch: number of epochs.
        epsilon: what was asked for.
        response: the law of one sign: the randomized response of an epoch.

    Raises:
        ValueError: the fields are not of this kind, or the responses spend more than epsilon.
    """

    last_epoch: int
    epsilon: float
    response: ComposedLaw

    def __post_init__(self) -> None:
        check_response("response", self.response, self.last_epoch)
        if self.loss > self.epsilon:
            raise ValueError(f"a loss of {self.loss}, must be at most epsilon, {self.epsilon}")

    @property
    def c_gap(self) -> float:
        """P(a report is the value) - P(it is not)."""
        return self.response.c_gap

    @property
    def loss(self) -> float:
        """The privacy loss of a user's stream, rounded up."""
        weights = self.response.weights
        return log_rounded_up(Fraction(max(weights), min(weights)), self.last_epoch)


class SplitBudget(EpochResponses[SplitBudgetLaw]):
    """The devices of one horizon. They draw nothing in advance.

    >>> from dpstream.randomizers.split_budget.calibration import calibrate
    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> rng = seeded_generator(1)
    >>> devices = SplitBudget(calibrate(SplitBudgetParameters(8), last_epoch=4))
    >>> devices.enrol(1000, rng)
    >>> reports = devices.report(1, np.ones(1000, np.int8), None, rng)
    >>> round(float(reports.mean()), 1)  # e^2 / (e^2 + 1)
    0.9

    Args:
        law: the constants of the job.
    """

    def __init__(self, law: SplitBudgetLaw) -> None:
        super().__init__(law, law.last_epoch, law.response)

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of a user's whole stream, from the weights of the law."""
        return Guarantee(
            epsilon=self.law.loss,
            delta=0.0,
            unit="stream",
            neighbours="any two streams of a user's values",
            trust=(
                "nobody: it holds against everyone who sees the reports; which devices exist and "
                "when they report is public"
            ),
            basis="exact",
        )

    def _answers(self, devices: NDArray[np.intp], values: NDArray[np.int8]) -> NDArray[np.uint8]:
        return values.astype(np.uint8)
