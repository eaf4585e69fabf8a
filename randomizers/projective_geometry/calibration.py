"""Calibrate the mechanism of projective_geometry from a job's parameters.

`dpstream.randomizers.accounting.best_spaces` chooses the space.
"""

from __future__ import annotations

from fractions import Fraction

from dpstream.randomizers.accounting.amplification import (
    amplified_epsilon,
    of_any_randomizer,
    of_randomizer_of_sets,
)
from dpstream.randomizers.accounting.best_spaces import best_space, prefixes_of
from dpstream.randomizers.accounting.calibration import optimal
from dpstream.randomizers.item_domains import domain_size
from dpstream.randomizers.parameter_checks import MOST_ITEMS
from dpstream.randomizers.point_spaces import MOST_POINTS
from dpstream.randomizers.projective_geometry import (
    ProjectiveGeometryLaw,
    ProjectiveGeometryParameters,
)


def calibrate(
    parameters: ProjectiveGeometryParameters, last_epoch: int, minimum: int
) -> ProjectiveGeometryLaw:
    """Calibrate the mechanism of a job.

    `minimum` is the minimum number of contributors to a window; only the guarantee that trusts the
    shuffler assumes it.

    >>> labels = tuple(map(str, range(1024)))
    >>> law = calibrate(ProjectiveGeometryParameters(1.0, labels), last_epoch=1, minimum=10_000)
    >>> law.order, law.coordinates, law.space.points, round(law.shuffled_epsilon, 3)
    (3, 7, 1093, 0.053)
    """
    items, odds = domain_size(parameters.domain), optimal(1, parameters.epsilon)
    prefixes = (
        None if items <= MOST_ITEMS else prefixes_of(items.bit_length() - 1, "projective_geometry")
    )
    if prefixes is None:
        space = best_space(items, odds)
    else:
        cells = prefixes.levels[0].buckets
        space = best_space(cells, odds, MOST_POINTS // prefixes.messages)
    own, other = odds.weights
    total = own * space.block + other * space.outside
    elsewhere = float(Fraction(other * (space.block - space.common), total))
    coins = (
        of_any_randomizer(odds.loss),
        of_randomizer_of_sets(odds.loss, elsewhere),
    )

    def shuffled(epochs: int) -> float:
        return min(amplified_epsilon(coin, minimum, parameters.delta, epochs) for coin in coins)

    return ProjectiveGeometryLaw(
        items=items,
        slots=parameters.items,
        order=space.order,
        coordinates=space.coordinates,
        minimum=minimum,
        last_epoch=last_epoch,
        odds=odds,
        shuffled_epsilon=shuffled(1),
        shuffled_stream_epsilon=shuffled(last_epoch),
        shuffled_delta=parameters.delta,
        prefixes=prefixes,
    )
