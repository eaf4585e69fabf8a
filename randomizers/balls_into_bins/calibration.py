"""From the parameters of a job of balls into bins to the constants that its devices run on.

More buckets: fewer collisions and a little less noise for an item, but more dummies, since an item
has a smaller part of them. So as many buckets are taken as messages allow, but no more than there
are items: without collisions, more would not help.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

from randomizers.accounting.overlapping_cells import (
    epsilon_for_overlapping,
    poisson_for_overlapping,
)
from randomizers.accounting.table_distances import FOR_TABLES, check_tables
from randomizers.affine_hashes import MOST_BUCKETS, AffineHashes, is_prime
from randomizers.balls_into_bins import (
    MESSAGES_PER_USER,
    BallsIntoBinsLaw,
    BallsIntoBinsParameters,
)
from randomizers.cell_noise_law import CellNoiseLaw


def calibrate(
    parameters: BallsIntoBinsParameters, last_epoch: int, minimum: int
) -> BallsIntoBinsLaw:
    """The law of a job.

    Args:
        parameters: of the job.
        last_epoch: number of epochs.
        minimum: the fewest contributors of a window.

    Raises:
        ValueError: no noise is enough, or more messages would be sent than a user may.

    >>> parameters = BallsIntoBinsParameters(
    ...     1.0, 1e-6, tuple(map(str, range(10_000))), messages_per_user=4.7
    ... )
    >>> law = calibrate(parameters, last_epoch=1, minimum=100_000)
    >>> law.buckets, round(law.noise.mean, 2), round(law.messages, 3)
    (8669, 42.66, 4.698)
    """
    limit = parameters.messages_per_user or math.inf
    buckets = parameters.buckets or _most_buckets(parameters, last_epoch, minimum)
    law = _law(parameters, last_epoch, minimum, buckets)
    if law.messages > limit:
        raise ValueError(
            f"a user would send {law.messages:,.1f} messages in an epoch, messages_per_user is "
            f"{limit:g}: allow more, give fewer buckets, raise shuffle.minimum, or have dummies: "
            "shuffle"
        )
    return law


def epsilon_with(law: BallsIntoBinsLaw, honest: int) -> float:
    """The epsilon with so many honest contributors, at least 1, where these add the noise."""
    spared = law.delta * (1 - FOR_TABLES)
    mean = law.noise.mean * honest / law.noise.minimum
    return epsilon_for_overlapping(mean, spared, law.hashes.overlap, law.items)


def _most_buckets(parameters: BallsIntoBinsParameters, last_epoch: int, minimum: int) -> int:
    """The prime with the least predicted variance, among those that messages allow."""
    enough = parameters.size
    while not is_prime(enough):
        enough += 1
    if parameters.dummies == "shuffle":
        return min(enough, _prime_up_to(MOST_BUCKETS))
    limit = parameters.messages_per_user or MESSAGES_PER_USER
    spare = (limit - parameters.items) * minimum
    buckets = enough
    # Noise grows as buckets become fewer, so the first number that fits is the largest.
    while (needed := _mean(parameters, last_epoch, buckets)) * buckets > spare:
        fewer = _prime_up_to(min(buckets - 1, math.floor(spare / needed)))
        if (
            fewer < 2
            or AffineHashes.for_items(fewer, parameters.size).overlap * (2 * parameters.items - 1)
            > 1
        ):
            raise ValueError(
                f"messages_per_user is {limit:g}: with {minimum:,} contributors and up to "
                f"{parameters.items} items each that is too few for any number of buckets; allow "
                "more, raise shuffle.minimum, or have dummies: shuffle"
            )
        buckets = fewer
    return buckets


def _prime_up_to(number: int) -> int:
    """The largest one that is not larger; 0 if there is none."""
    return next((prime for prime in range(number, 1, -1) if is_prime(prime)), 0)


def _mean(parameters: BallsIntoBinsParameters, last_epoch: int, buckets: int) -> float:
    """Lambda, of the dummies in the words of an item."""
    overlap = AffineHashes.for_items(buckets, parameters.size).overlap
    return _least_mean(parameters.epsilon, parameters.delta, overlap, parameters.items, last_epoch)


@cache
def _least_mean(epsilon: float, delta: float, overlap: float, items: int, last_epoch: int) -> float:
    """Enough for an epoch, and for all of them to lose no more than so many times that.

    Both with the same delta, of which an epoch may have used up all for certain losses.
    """
    spared = delta * (1 - FOR_TABLES)
    mean = poisson_for_overlapping(epsilon, spared, overlap, items)
    if epsilon_for_overlapping(mean, spared, overlap, items, last_epoch) > last_epoch * epsilon:
        mean = poisson_for_overlapping(last_epoch * epsilon, spared, overlap, items, last_epoch)
    return mean


def _law(
    parameters: BallsIntoBinsParameters, last_epoch: int, minimum: int, buckets: int
) -> BallsIntoBinsLaw:
    mean = _mean(parameters, last_epoch, buckets)
    overlap = AffineHashes.for_items(buckets, parameters.size).overlap
    spared = parameters.delta * (1 - FOR_TABLES)
    of_epoch, of_stream = (
        epsilon_for_overlapping(mean, spared, overlap, parameters.items, epochs)
        for epochs in (1, last_epoch)
    )
    epsilon = min(parameters.epsilon, of_epoch)
    law = BallsIntoBinsLaw(
        last_epoch=last_epoch,
        size=parameters.size,
        items=parameters.items,
        buckets=buckets,
        noise=CellNoiseLaw(parameters.dummies, mean, minimum),
        epsilon=epsilon,
        delta=parameters.delta,
        stream_epsilon=max(epsilon, of_stream),
    )
    # All words of an epoch are drawn for at once.
    drawn = replace(law.noise, mean=mean * buckets)
    check_tables(law.epsilon, law.delta, [(drawn, last_epoch)])
    return law
