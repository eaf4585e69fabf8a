"""For comparison: a histogram of which every device sends all cells, with Laplace noise in each.

The "more naive approach" that "Distributed Private Heavy Hitters" (Hsu, Khanna, Roth 2012) compares
its first mechanism with (section 3.1). Its noise of scale 1/epsilon is for removal: an item that
takes the place of another changes two cells. The paper calls the accuracy of JL-HH similar; it is
more than ten times worse.

A report has as many words as there are items, so domains are small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dpstream.randomizers.item_domains import ItemDomain
from dpstream.randomizers.measurements import Measurements, MeasurementsLaw, check_measured
from dpstream.randomizers.public_matrices import OneHot

_NO_DELTA = 0.5


@dataclass(frozen=True, slots=True)
class LaplaceHistogramParameters:
    """What a job says.

    Attributes:
        epsilon: the privacy loss of a user's item of one epoch, against everybody.
        domain: the items, up to 2^15.
        calibration: "published", which is for removal, or "replacement".

    Raises:
        ValueError: a value is not allowed; the message says what is.
    """

    epsilon: float
    domain: ItemDomain
    calibration: Literal["published", "replacement"] = "replacement"

    def __post_init__(self) -> None:
        allowed = ("published", "replacement")
        check_measured(self.epsilon, _NO_DELTA, self.domain, self.calibration, allowed)
        object.__setattr__(self, "epsilon", float(self.epsilon))


@dataclass(frozen=True, slots=True)
class LaplaceHistogramLaw(MeasurementsLaw):
    """All constants of a job: those of any measurements."""

    @property
    def matrix(self) -> OneHot:
        """A cell for every item."""
        return OneHot(self.items)

    @property
    def exact(self) -> bool:
        """An item and another one, or none, attain the loss."""
        return True


class LaplaceHistogram(Measurements[LaplaceHistogramLaw]):
    """The devices of one horizon.

    >>> from dpstream.randomizers.laplace_histogram.calibration import calibrate
    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> import numpy as np
    >>> law = calibrate(LaplaceHistogramParameters(32.0, ("a", "b")), last_epoch=1)
    >>> devices = LaplaceHistogram(law)
    >>> devices.enrol(3, seeded_generator(1))
    >>> reports = devices.report(1, np.array([[0], [1], [2]]), None, seeded_generator(2))
    >>> (reports.astype(int) - law.noise.most).tolist()
    [[0, 0], [1, 0], [0, 1]]
    """
