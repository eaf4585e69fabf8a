"""Calibrate the mechanism of shuffled counts from a job's parameters."""

from __future__ import annotations

from collections.abc import Iterable

from dpstream.randomizers.accounting.boosted_counts import (
    BoostedReports,
    best_boost,
    poisson_for_boosted,
)
from dpstream.randomizers.accounting.cell_noise import (
    NegativeBinomialNoise,
    PoissonNoise,
    noise_of_cells,
)
from dpstream.randomizers.accounting.continual_counts import (
    epsilon_for_epochs,
    negative_binomial_for_epochs,
    poisson_for_epochs,
)
from dpstream.randomizers.accounting.renyi_shift import renyi_epsilon
from dpstream.randomizers.accounting.table_distances import FOR_TABLES, check_tables
from dpstream.randomizers.cell_noise_law import CellNoiseLaw, DummyKind, too_many
from dpstream.randomizers.shuffled_counts import (
    Calibration,
    ShuffledCountsLaw,
    ShuffledCountsParameters,
)


def calibrate(
    parameters: ShuffledCountsParameters, last_epoch: int, minimum: int
) -> ShuffledCountsLaw:
    """Calibrate for values 0 and 1 and windows of at least `minimum` contributors.

    Raises `ValueError` if no noise suffices, or if it needs more messages than users can send.

    >>> parameters = ShuffledCountsParameters(epsilon=1, delta=1e-6, max_changes=4)
    >>> law = calibrate(parameters, last_epoch=170, minimum=32593)
    >>> law.boost, round(law.noise.mean), round(law.messages)
    (3, 7118, 720)
    """
    for boost in _boosts(parameters, last_epoch):
        law = _law(parameters, last_epoch, minimum, boost)
        if parameters.messages_per_user is None or law.messages <= parameters.messages_per_user:
            return law
    raise ValueError(too_many(law.messages, parameters.messages_per_user, law.noise, last_epoch))


def epsilon_with(law: ShuffledCountsLaw, honest: int) -> float:
    noise = noise_of_cells(law.noise, honest)
    delta = law.delta * (1 - FOR_TABLES)
    if not law.boost:
        return epsilon_for_epochs(noise, delta, law.last_epoch)
    shifts = BoostedReports(law.last_epoch, law.max_changes, law.boost).shifts
    return renyi_epsilon(noise, shifts, delta)[0]


def noise_law(
    noise: PoissonNoise | NegativeBinomialNoise, minimum: int, dummies: DummyKind
) -> CellNoiseLaw:
    shape = noise.shape if isinstance(noise, NegativeBinomialNoise) else None
    return CellNoiseLaw(dummies, noise.mean, minimum, shape)


def _boosts(parameters: ShuffledCountsParameters, last_epoch: int) -> Iterable[int]:
    """Return the boosts to try: the most accurate first, then smaller ones for fewer messages."""
    if parameters.max_changes is None or parameters.boost is not None:
        return (parameters.boost or 0,)
    best, _ = best_boost(parameters.epsilon, parameters.delta, last_epoch, parameters.max_changes)
    return range(best.boost, -1, -1)


def _law(
    parameters: ShuffledCountsParameters, last_epoch: int, minimum: int, boost: int
) -> ShuffledCountsLaw:
    epsilon, delta = parameters.epsilon, parameters.delta * (1 - FOR_TABLES)
    max_changes = parameters.max_changes if parameters.max_changes is not None and boost else 0
    calibration: Calibration = "exact"
    noise: PoissonNoise | NegativeBinomialNoise
    if not boost:
        clustered = parameters.dummies == "negative_binomial"
        find = negative_binomial_for_epochs if clustered else poisson_for_epochs
        noise = find(epsilon, delta, last_epoch)
    else:
        reports = BoostedReports(last_epoch, max_changes, boost)
        calibration = "rigorous"
        noise = poisson_for_boosted(epsilon, delta, reports)
    dummies = noise_law(noise, minimum, parameters.dummies)
    check_tables(epsilon, parameters.delta, [(dummies, last_epoch)])
    return ShuffledCountsLaw(
        last_epoch, epsilon, parameters.delta, max_changes, boost, calibration, dummies
    )
