"""From the parameters of a job over the Bucket mechanism to the constants its devices run on."""

from __future__ import annotations

import math

from dpstream.randomizers.bucket import BucketLaw, BucketParameters, hash_rows
from dpstream.randomizers.item_domains import domain_size
from dpstream.randomizers.measurements.calibration import published


def calibrate(parameters: BucketParameters, last_epoch: int) -> BucketLaw:
    """The law of a job.

    Raises:
        ValueError: the published noise loses more than epsilon.

    >>> law = calibrate(BucketParameters(0.5, tuple(map(str, range(50_000)))), last_epoch=1)
    >>> law.hashes, law.trials, law.neighbours
    (20, 24, 'replacement')
    """
    items = domain_size(parameters.domain)
    # The bit length of 12 N - 1 is log2(12 N), rounded up.
    hashes = parameters.hashes or (12 * items - 1).bit_length()
    trials = parameters.trials or math.ceil(8 * math.log(1 / parameters.beta))
    spent = published(
        hash_rows(items, hashes, trials),
        parameters.calibration,
        parameters.epsilon,
        parameters.delta,
        last_epoch,
        removal=False,
    )
    return BucketLaw(items=items, last_epoch=last_epoch, hashes=hashes, trials=trials, **spent)
