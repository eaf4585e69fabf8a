"""The privacy budget split evenly over the epochs: what one would do without thinking further.

At each of d epochs a device sends its value by randomized response with epsilon / d. The losses of
the epochs add up to epsilon for the whole stream, exactly: two streams that differ everywhere
attain it. The noise of an estimate grows as d.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from randomizers.composed import ComposedLaw, log_rounded_up
from randomizers.epoch_responses import EpochResponses, check_response
from randomizers.future_rand import check_epsilon
from randomizers.guarantee import Guarantee


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
class SplitBudgetLaw:
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

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "last_epoch": self.last_epoch,
            "epsilon": self.epsilon,
            "response": self.response.to_json(),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Read `to_json`.

        Raises:
            ValueError: it is something else.
        """
        try:
            return cls(
                last_epoch=body["last_epoch"],
                epsilon=float(body["epsilon"]),
                response=ComposedLaw.from_json(body["response"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a law of a split budget: {error!r}") from error


class SplitBudget(EpochResponses):
    """The devices of one horizon. They draw nothing in advance.

    >>> from randomizers.accounting.epoch_responses import calibrate_split_budget
    >>> from randomizers.randomness import seeded_generator
    >>> rng = seeded_generator(1)
    >>> devices = SplitBudget(calibrate_split_budget(SplitBudgetParameters(8), last_epoch=4))
    >>> devices.enrol(1000, rng)
    >>> reports = devices.report(1, np.ones(1000, np.int8), None, rng)
    >>> round(float(reports.mean()), 1)  # e^2 / (e^2 + 1)
    0.9

    Args:
        law: the constants of the job.
    """

    def __init__(self, law: SplitBudgetLaw) -> None:
        super().__init__(law.last_epoch, law.response)
        self.law = law
        self._population = 0

    @property
    def population(self) -> int:
        """Number of devices."""
        return self._population

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

    def enrol(self, count: int, rng: np.random.Generator) -> None:
        """Add devices; `rng` is not used."""
        self._population += count

    def _answers(self, devices: NDArray[np.intp], values: NDArray[np.int8]) -> NDArray[np.uint8]:
        return values.astype(np.uint8)

    def state_arrays(self) -> dict[str, NDArray[np.generic]]:
        """All that must be kept, with `epoch`: population, int64, shape (1,)."""
        return {"population": np.array([self._population], np.int64)}

    @classmethod
    def restore(
        cls, law: SplitBudgetLaw, arrays: Mapping[str, NDArray[np.generic]], epoch: int
    ) -> Self:
        """The devices as they were.

        Args:
            law: of the job.
            arrays: what `state_arrays` returned.
            epoch: the last epoch reported, 0 if none.

        Raises:
            ValueError: the arrays are not of this protocol.
        """
        if arrays.keys() != {"population"} or arrays["population"].shape != (1,):
            raise ValueError(f"state arrays {sorted(arrays)}, a split budget keeps a population")
        devices = cls(law)
        devices.epoch = epoch
        devices._population = int(arrays["population"].astype(np.int64)[0])
        return devices
