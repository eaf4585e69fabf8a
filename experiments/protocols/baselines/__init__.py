"""Earlier or simpler protocols for a yes-or-no value at every epoch, for comparison.

- independent_response, erlingsson and bun run the devices of FutureRand with another distribution
  of the signs. A device draws from its job's distribution and does not know which protocol it runs.
- split_budget sends the value by randomized response with epsilon / d at each of d epochs. The
  losses of the epochs sum to exactly epsilon for the whole stream: two streams that differ at every
  epoch attain it. The noise of an estimate grows in proportion to d.
- memoized_response is the idea of RAPPOR (Erlingsson, Pihur and Korolova 2014) and dBitFlip (Ding
  et al. 2017). On enrollment, a device draws a *permanent response* to each of the two values: the
  value or its opposite. At every epoch it sends an *instantaneous response*: the permanent response
  to its current value, randomized again. However long a value lasts, the reports reveal at most its
  permanent response. That is a guarantee for users whose value never changes. A change replaces one
  permanent response with the other, and the many reports before and after it distinguish the two.
  The loss of a whole stream, computed here exactly, grows with its length without limit.

Devices of the last two protocols report one randomized bit at every epoch: their value, or the
permanent response to it. No report covers several epochs, so a value may change at any time and any
number of times. Both protocols account for the privacy loss of these changes.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.composed import ComposedLaw, log_rounded_up
from dpstream.randomizers.devices import Devices, LawT
from dpstream.randomizers.draws import draw_categories
from dpstream.randomizers.dyadic import check_signs
from dpstream.randomizers.given_values import check_epoch, checked_booleans
from dpstream.randomizers.guarantee import Guarantee
from dpstream.randomizers.laws import Constants
from dpstream.randomizers.parameter_checks import check_epsilon
from experiments.protocols.permanent_loss import stream_loss

MAX_EPOCHS = 1 << 20


class EpochResponses(Devices[LawT]):
    """Devices that randomize one bit at every epoch by `response`, a distribution of one sign."""

    word_dtype: ClassVar[np.dtype[np.uint8]] = np.dtype(np.uint8)
    width: ClassVar[int] = 1

    def __init__(self, law: LawT, last_epoch: int, response: ComposedLaw) -> None:
        super().__init__(law)
        self._last_epoch = last_epoch
        self._response = response

    @abstractmethod
    def _answers(self, devices: NDArray[np.intp], values: NDArray[np.int8]) -> NDArray[np.uint8]:
        """Return these devices' answers before randomization, 0 or 1."""

    def due(self, epoch: int) -> NDArray[np.intp]:
        return np.arange(self.population)

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer] | NDArray[np.bool_],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.uint8]:
        check_epoch(epoch, after=self.epoch, last_epoch=self._last_epoch)
        values = checked_booleans(epoch, values, present, self.population)
        here = np.arange(self.population) if present is None else np.flatnonzero(present)
        reversed_ = draw_categories(self._response.weights, len(here), rng).astype(np.uint8)
        self.epoch = epoch
        return (self._answers(here, values[here]) ^ reversed_)[:, None]


def check_response(name: str, response: ComposedLaw, last_epoch: int) -> None:
    if response.k != 1:
        raise ValueError(f"{name} has {response.k} signs; expected 1")
    if type(last_epoch) is not int or not 1 <= last_epoch <= MAX_EPOCHS:
        raise ValueError(f"got {last_epoch} epochs; expected 1 to {MAX_EPOCHS}")


MIN_FIRST_SHARE, MAX_FIRST_SHARE = 0.01, 0.99

_NO_TRUST: Final = (
    "none; it holds against everyone who sees the reports; which devices exist and when they "
    "report is public"
)


@dataclass(frozen=True, slots=True)
class IndependentResponseParameters:
    """Parameters of independent randomized response for every change (Example 4.2).

    Attributes:
        epsilon: Privacy loss of a user's whole stream; each change takes an equal share.
        max_changes: Number of changes in a user's value that are tracked.
        estimator: "prefix", as in the paper, or "tree"; see `future_rand`.
    """

    epsilon: float
    max_changes: int
    estimator: Literal["tree", "prefix"] = "prefix"

    def __post_init__(self) -> None:
        check_signs(self.epsilon, self.max_changes, self.estimator)
        object.__setattr__(self, "epsilon", float(self.epsilon))


@dataclass(frozen=True, slots=True)
class BunParameters(IndependentResponseParameters):
    """Parameters of the composed randomizer of Bun et al."""


@dataclass(frozen=True, slots=True)
class ErlingssonParameters(IndependentResponseParameters):
    """Parameters of Erlingsson et al.; the "published" calibration spends only half of epsilon."""

    calibration: Literal["published", "full"] = "published"

    def __post_init__(self) -> None:
        IndependentResponseParameters.__post_init__(self)
        _check_calibration(self.calibration)


@dataclass(frozen=True, slots=True)
class SplitBudgetParameters:
    """Parameters of split_budget; epsilon is the privacy loss of a user's whole stream."""

    epsilon: float

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        object.__setattr__(self, "epsilon", float(self.epsilon))


@dataclass(frozen=True, slots=True)
class MemoizedResponseParameters:
    """Parameters of memoized responses.

    Attributes:
        epsilon: Privacy loss claimed for a value that never changes, however often it is reported.
        first_share: Loss of a single report, as a fraction of the loss of a permanent response.
        calibration: "full": a permanent response has the loss epsilon; "published": it has the loss
            epsilon / 2, as in RAPPOR, where two bits with this loss distinguish two values.
    """

    epsilon: float
    first_share: float = 0.5
    calibration: Literal["published", "full"] = "published"

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        share = self.first_share
        if (
            isinstance(share, bool)
            or not isinstance(share, int | float)
            or not MIN_FIRST_SHARE <= share <= MAX_FIRST_SHARE
        ):
            raise ValueError(
                f"first_share is {share!r}; expected a number from {MIN_FIRST_SHARE} to "
                f"{MAX_FIRST_SHARE}"
            )
        _check_calibration(self.calibration)
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "first_share", float(share))


def _check_calibration(calibration: str) -> None:
    if calibration not in ("published", "full"):
        raise ValueError(f"calibration is {calibration!r}; expected 'published' or 'full'")


@dataclass(frozen=True, slots=True)
class SplitBudgetLaw(Constants):
    """All constants of a split_budget job; its one-sign responses spend at most `epsilon`."""

    last_epoch: int
    epsilon: float
    response: ComposedLaw

    def __post_init__(self) -> None:
        check_response("response", self.response, self.last_epoch)
        if self.loss > self.epsilon:
            raise ValueError(f"loss is {self.loss}; expected at most epsilon, {self.epsilon}")

    @property
    def c_gap(self) -> float:
        """P(a report equals the value) - P(it does not)."""
        return self.response.c_gap

    @property
    def loss(self) -> float:
        """Privacy loss of a user's stream, rounded up."""
        weights = self.response.weights
        return log_rounded_up(Fraction(max(weights), min(weights)), self.last_epoch)


@dataclass(frozen=True, slots=True)
class MemoizedResponseLaw(Constants):
    """All constants of a memoized_response job.

    Attributes:
        epsilon: Loss claimed for a value that never changes.
        permanent: Distribution of one sign, the response to a value; spends at most epsilon.
        instantaneous: Distribution of one sign, the report on a permanent response.
    """

    last_epoch: int
    epsilon: float
    permanent: ComposedLaw
    instantaneous: ComposedLaw

    def __post_init__(self) -> None:
        for name, law in (("permanent", self.permanent), ("instantaneous", self.instantaneous)):
            check_response(name, law, self.last_epoch)
            if law.weights[0] <= law.weights[1]:
                raise ValueError(
                    f"the {name} response is reversed with probability 1/2 or more; expected less"
                )
        if self.permanent.loss > self.epsilon:
            raise ValueError(
                f"permanent responses have a loss of {self.permanent.loss}; expected at most "
                f"epsilon, {self.epsilon}"
            )

    @property
    def c_gap(self) -> float:
        """P(a report equals the value) - P(it does not)."""
        return float(self.permanent.exact_c_gap * self.instantaneous.exact_c_gap)

    @property
    def stream_loss(self) -> float:
        """Privacy loss of a user's whole stream, over all pairs of streams, rounded up."""
        return stream_loss(self.permanent, self.instantaneous, self.last_epoch)


class SplitBudget(EpochResponses[SplitBudgetLaw]):
    """Devices of a split_budget job for one horizon. They draw nothing in advance.

    >>> from experiments.protocols.baselines.calibration import calibrate
    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> rng = seeded_generator(1)
    >>> devices = SplitBudget(calibrate(SplitBudgetParameters(8), last_epoch=4))
    >>> devices.enroll(1000, rng)
    >>> reports = devices.report(1, np.ones(1000, np.int8), None, rng)
    >>> round(float(reports.mean()), 1)  # e^2 / (e^2 + 1)
    0.9
    """

    def __init__(self, law: SplitBudgetLaw) -> None:
        super().__init__(law, law.last_epoch, law.response)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee(
            epsilon=self.law.loss,
            delta=0.0,
            unit="stream",
            neighbors="any two streams of a user's values",
            trust=_NO_TRUST,
            basis="exact",
        )

    def _answers(self, devices: NDArray[np.intp], values: NDArray[np.int8]) -> NDArray[np.uint8]:
        return values.astype(np.uint8)


class MemoizedResponse(EpochResponses[MemoizedResponseLaw]):
    """Devices of a memoized_response job for one horizon, with the responses they drew once.

    >>> from experiments.protocols.baselines.calibration import calibrate
    >>> law = calibrate(MemoizedResponseParameters(1), last_epoch=10)
    >>> devices = MemoizedResponse(law)
    >>> devices.guarantee.spent_on
    'value, if it never changes, and epsilon 4.65304 for the whole stream'
    """

    def __init__(self, law: MemoizedResponseLaw) -> None:
        super().__init__(law, law.last_epoch, law.instantaneous)
        # Permanent responses to the values 0 and 1.
        self._memo = self._declare("memo", np.uint8, (2,), new=None, allowed=range(2))

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee(
            epsilon=self.law.epsilon,
            delta=0.0,
            unit="value",
            neighbors=(
                "the value 0 at every epoch and the value 1 at every epoch; a user withdrawn while "
                "the value is 1 changes it to 0, which is not covered"
            ),
            trust=_NO_TRUST,
            basis="bound",
            stream_epsilon=self.law.stream_loss,
        )

    def _draw(self, count: int, rng: np.random.Generator) -> dict[str, NDArray[np.uint8]]:
        reversed_ = draw_categories(self.law.permanent.weights, 2 * count, rng).astype(np.uint8)
        return {"memo": reversed_.reshape(count, 2) ^ np.array([0, 1], np.uint8)}

    def _answers(self, devices: NDArray[np.intp], values: NDArray[np.int8]) -> NDArray[np.uint8]:
        answers: NDArray[np.uint8] = self._memo[devices, values]
        return answers
