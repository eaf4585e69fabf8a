"""Memoized responses: permanent answers to each value, randomized once more at every epoch.

The idea of RAPPOR (Erlingsson, Pihur and Korolova 2014) and dBitFlip (Ding et al. 2017). When it is
enrolled, a device draws for each of the two values a *permanent response*, the value or its
opposite. At every epoch it sends an *instantaneous response*: that of its present value, randomized
again. However long a value lasts, no more is told of it than its permanent response.

That is a guarantee for users whose value never changes. A change replaces one permanent response by
the other, and the epochs before and after it, each many reports long, tell the two apart: the loss
of a whole stream grows with its length, without limit. It is computed here, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.composed import ComposedLaw
from dpstream.randomizers.draws import draw_categories
from dpstream.randomizers.epoch_responses import EpochResponses, check_response
from dpstream.randomizers.future_rand import check_epsilon
from dpstream.randomizers.guarantee import Guarantee
from dpstream.randomizers.laws import Constants
from dpstream.randomizers.permanent_loss import stream_loss

MIN_FIRST_SHARE, MAX_FIRST_SHARE = 0.01, 0.99


@dataclass(frozen=True, slots=True)
class MemoizedResponseParameters:
    """What a job says about memoized responses.

    Attributes:
        epsilon: the privacy loss claimed for a value that never changes, however often reported.
        first_share: the loss of a single report, as a share of that of a permanent response.
        calibration: "published", RAPPOR's: a permanent response has a loss of epsilon / 2, as each
            of the two bits has that tell two values apart there; or "full": epsilon.

    Raises:
        ValueError: a value is not allowed; the message says what is.
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
                f"first_share is {share!r}, must be a number "
                f"from {MIN_FIRST_SHARE} to {MAX_FIRST_SHARE}"
            )
        if self.calibration not in ("published", "full"):
            raise ValueError(f"calibration is {self.calibration!r}, must be 'published' or 'full'")
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "first_share", float(share))


@dataclass(frozen=True, slots=True)
class MemoizedResponseLaw(Constants):
    """All constants of a job.

    Attributes:
        last_epoch: number of epochs.
        epsilon: what is claimed for a value that never changes.
        permanent: the law of one sign: the permanent response to a value.
        instantaneous: the law of one sign: the report of a permanent response.

    Raises:
        ValueError: the fields are not of this kind, a response is reversed more often than kept, or
            the permanent responses spend more than is claimed.
    """

    last_epoch: int
    epsilon: float
    permanent: ComposedLaw
    instantaneous: ComposedLaw

    def __post_init__(self) -> None:
        for name, law in (("permanent", self.permanent), ("instantaneous", self.instantaneous)):
            check_response(name, law, self.last_epoch)
            if law.weights[0] <= law.weights[1]:
                raise ValueError(f"the {name} response is reversed no less often than kept")
        if self.permanent.loss > self.epsilon:
            raise ValueError(
                f"permanent responses have a loss of {self.permanent.loss}, "
                f"claimed is {self.epsilon} at most"
            )

    @property
    def c_gap(self) -> float:
        """P(a report is the value) - P(it is not)."""
        return float(self.permanent.exact_c_gap * self.instantaneous.exact_c_gap)

    @property
    def stream_loss(self) -> float:
        """The privacy loss of a user's whole stream, over all pairs of streams, rounded up."""
        return stream_loss(self.permanent, self.instantaneous, self.last_epoch)


class MemoizedResponse(EpochResponses[MemoizedResponseLaw]):
    """The devices of one horizon, each with the permanent responses it drew once.

    >>> from dpstream.randomizers.memoized_response.calibration import calibrate
    >>> law = calibrate(MemoizedResponseParameters(1), last_epoch=10)
    >>> devices = MemoizedResponse(law)
    >>> devices.guarantee.spent_on
    'single value (claimed), 4.65303 for the whole stream'

    Args:
        law: the constants of the job.
    """

    def __init__(self, law: MemoizedResponseLaw) -> None:
        super().__init__(law, law.last_epoch, law.instantaneous)
        # Permanent responses to the values 0 and 1.
        self._memo = self._declare("memo", np.uint8, (2,), new=None, allowed=range(2))

    @property
    def guarantee(self) -> Guarantee:
        """What is claimed for a value that never changes, and the exact loss of a whole stream."""
        return Guarantee(
            epsilon=self.law.epsilon,
            delta=0.0,
            unit="value",
            neighbours=(
                "two values of a user who has one of them at every epoch (not one who is withdrawn "
                "with the value 1, which changes it to 0)"
            ),
            trust=(
                "nobody: it holds against everyone who sees the reports; which devices exist and "
                "when they report is public"
            ),
            basis="bound",
            stream_epsilon=self.law.stream_loss,
        )

    def _draw(self, count: int, rng: np.random.Generator) -> dict[str, NDArray[np.uint8]]:
        reversed_ = draw_categories(self.law.permanent.weights, 2 * count, rng).astype(np.uint8)
        return {"memo": reversed_.reshape(count, 2) ^ np.array([0, 1], np.uint8)}

    def _answers(self, devices: NDArray[np.intp], values: NDArray[np.int8]) -> NDArray[np.uint8]:
        answers: NDArray[np.uint8] = self._memo[devices, values]
        return answers
