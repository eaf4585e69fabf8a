"""For comparison: JL-HH, a random projection of a user's item with Laplace noise.

"Distributed Private Heavy Hitters" (Hsu, Khanna, Roth 2012), Algorithm 1. A device sends A e_x plus
noise, m numbers; the count of item p is the product of column p of A and the sum of all reports.
Entries of A are +-1/sqrt(m), here +-1 with noise sqrt(m) times as large: m different rows of a
Hadamard matrix, so that all counts together take one fast transform. Any two columns are as close
to being at right angles as independent signs are, or closer, which is all that the error needs.

The paper's number of rows, ln(N + 1) ln(2 / beta) n^4, cannot be sent: here it is a parameter. Its
noise is for removal: replacing an item moves a measurement by 2/sqrt(m), not 1/sqrt(m). Sampled, a
device reports its entry in one of all rows. `hadamard_values` has the same rows, but follows
whether the entry is +1 over time, which at one epoch makes errors up to 1.3 times as large.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpstream.randomizers.item_domains import ItemDomain
from dpstream.randomizers.measurements import (
    Calibration,
    Measurements,
    MeasurementsLaw,
    check_measured,
    check_number,
)
from dpstream.randomizers.public_matrices import ParityRows, distinct_rows


@dataclass(frozen=True, slots=True)
class JlHhParameters:
    """What a job says.

    Attributes:
        epsilon: the privacy loss of a user's item of one epoch, against everybody.
        domain: the items, up to 2^20.
        delta: the same; unused where rows are sampled.
        measurements: m, numbers of a report; None for 256, or for all rows where they are sampled.
        calibration: "published", which is for removal, "replacement" or "sampled".

    Raises:
        ValueError: a value is not allowed; the message says what is.
    """

    epsilon: float
    domain: ItemDomain
    delta: float = 1e-6
    measurements: int | None = None
    calibration: Calibration = "replacement"

    def __post_init__(self) -> None:
        allowed = ("published", "replacement", "sampled")
        check_measured(self.epsilon, self.delta, self.domain, self.calibration, allowed)
        check_number("measurements", self.measurements)
        object.__setattr__(self, "epsilon", float(self.epsilon))


@dataclass(frozen=True, slots=True)
class JlHhLaw(MeasurementsLaw):
    """All constants of a job.

    Attributes:
        measurements: m.
    """

    measurements: int

    @property
    def matrix(self) -> ParityRows:
        """A, times sqrt(m)."""
        return distinct_rows(f"jl_hh of {self.items} items", self.items, self.measurements)


class JlHh(Measurements[JlHhLaw]):
    """The devices of one horizon.

    >>> from dpstream.randomizers.jl_hh.calibration import calibrate
    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> import numpy as np
    >>> devices = JlHh(calibrate(JlHhParameters(1.0, ("a", "b"), measurements=3), last_epoch=1))
    >>> devices.enrol(2, seeded_generator(1))
    >>> devices.report(1, np.array([[1], [2]]), None, seeded_generator(2)).shape
    (2, 3)
    """
