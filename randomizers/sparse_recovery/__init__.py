"""For comparison: sparse recovery, a count-sketch with bit tests and Laplace noise.

"Distributed Private Heavy Hitters" (Hsu, Khanna, Roth 2012), Algorithm 2, is GLPS-HH: the matrix
and the decoder of Gilbert, Li, Porat and Strauss with noise. Neither is described there, and only
what they guarantee is used: so this is not GLPS, but the simplest matrix of -1, 0 and 1 with about
as many rows from which items can be read off without a look at all of them.
Sparsity, rows and noise are the paper's. Its noise is for removal: an item that takes the place of
another changes a measurement by up to 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpstream.randomizers.item_domains import ItemDomain
from dpstream.randomizers.measurements import (
    Calibration,
    Measurements,
    MeasurementsLaw,
    check_beta,
    check_measured,
    check_number,
)
from dpstream.randomizers.public_matrices import SignedBuckets


@dataclass(frozen=True, slots=True)
class SparseRecoveryParameters:
    """What a job says.

    Attributes:
        epsilon: the privacy loss of a user's item of one epoch, against everybody.
        domain: the items, up to 2^20.
        delta: the same; unused where measurements are sampled.
        beta: the probability of failing that the sparsity is chosen for.
        sparsity: s, how many items are to be recovered; None for the published number.
        calibration: "published", which is for removal, "replacement" or "sampled".

    Raises:
        ValueError: a value is not allowed; the message says what is.
    """

    epsilon: float
    domain: ItemDomain
    delta: float = 1e-6
    beta: float = 0.05
    sparsity: int | None = None
    calibration: Calibration = "replacement"

    def __post_init__(self) -> None:
        allowed = ("published", "replacement", "sampled")
        check_measured(self.epsilon, self.delta, self.domain, self.calibration, allowed)
        check_beta(self.beta)
        check_number("sparsity", self.sparsity)
        object.__setattr__(self, "epsilon", float(self.epsilon))


@dataclass(frozen=True, slots=True)
class SparseRecoveryLaw(MeasurementsLaw):
    """All constants of a job.

    Attributes:
        buckets: how many there are, each with a test for every bit.
    """

    buckets: int

    @property
    def matrix(self) -> SignedBuckets:
        """Buckets with bit tests."""
        return SignedBuckets(self.items, self.buckets, f"sparse_recovery of {self.items} items")


class SparseRecovery(Measurements[SparseRecoveryLaw]):
    """The devices of one horizon.

    >>> from dpstream.randomizers.sparse_recovery.calibration import calibrate
    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> import numpy as np
    >>> asked = SparseRecoveryParameters(0.5, ("a", "b", "c"), sparsity=1)
    >>> devices = SparseRecovery(calibrate(asked, last_epoch=1, minimum=1))
    >>> devices.enrol(2, seeded_generator(1))
    >>> devices.report(1, np.array([[1], [2]]), None, seeded_generator(2)).shape
    (2, 3)
    """
