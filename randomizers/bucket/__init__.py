"""For comparison: the Bucket mechanism, which finds the item that most users hold, or none.

"Distributed Private Heavy Hitters" (Hsu, Khanna, Roth 2012), Algorithm 3. In each of some trials
items are hashed to two buckets by several hashes, h(x) = <r, x> over GF(2) with a string r of bits;
with noise a device sends the bucket of its item under all of them. The larger buckets of a trial
are linear equations for the item held most; what most trials say is the answer.

A bucket is -1 or 1 here, so that who has no item is in neither; and items are numbered from 1,
since item 0 would be in bucket 0 always. The published noise is right for users who replace their
item. An item is read right if it is held by more than twice the distance of the others from a half
and twice the noise (Lemma 4.6 has the noise once); Theorem 4.8 then has 8 sqrt(3 c k_1), not
8 sqrt(2 c k_1), and the 1.0004 of Lemma 4.5 holds from k = 4 on only. Found is what more than half
of the trials say, not just most of them. Sampled, a device reports its bucket under one hash of all
trials, for everybody to see which.
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
from dpstream.randomizers.public_matrices import ParityRows, nonzero_rows


@dataclass(frozen=True, slots=True)
class BucketParameters:
    """What a job says.

    Attributes:
        epsilon: the privacy loss of a user's item of one epoch, against everybody.
        domain: the items, up to 2^20.
        delta: the same; unused where hashes are sampled.
        beta: the probability of failing that the number of trials is chosen for.
        hashes: k_1, of a trial; None for log2(12 N), rounded up.
        trials: k_2; None for 8 ln(1 / beta), rounded up.
        calibration: "published", which is enough for replacement, or "sampled".

    Raises:
        ValueError: a value is not allowed; the message says what is.
    """

    epsilon: float
    domain: ItemDomain
    delta: float = 1e-6
    beta: float = 0.05
    hashes: int | None = None
    trials: int | None = None
    calibration: Calibration = "published"

    def __post_init__(self) -> None:
        allowed = ("published", "replacement", "sampled")
        check_measured(self.epsilon, self.delta, self.domain, self.calibration, allowed)
        check_beta(self.beta)
        check_number("hashes", self.hashes)
        check_number("trials", self.trials)
        object.__setattr__(self, "epsilon", float(self.epsilon))


@dataclass(frozen=True, slots=True)
class BucketLaw(MeasurementsLaw):
    """All constants of a job.

    Attributes:
        hashes: k_1.
        trials: k_2.
    """

    hashes: int
    trials: int

    @property
    def matrix(self) -> ParityRows:
        """The hashes of all trials, one trial after the other."""
        return hash_rows(self.items, self.hashes, self.trials)


def hash_rows(items: int, hashes: int, trials: int) -> ParityRows:
    """Strings of bits, none of them 0, each drawn by itself."""
    text = f"bucket of {items} items, {trials} trials of {hashes} hashes"
    return nonzero_rows(text, items, hashes * trials)


class Bucket(Measurements[BucketLaw]):
    """The devices of one horizon.

    >>> from dpstream.randomizers.bucket.calibration import calibrate
    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> import numpy as np
    >>> devices = Bucket(calibrate(BucketParameters(0.5, ("a", "b")), last_epoch=1))
    >>> devices.enrol(2, seeded_generator(1))
    >>> devices.report(1, np.array([[1], [2]]), None, seeded_generator(2)).shape  # 5 x 24
    (2, 120)
    """
