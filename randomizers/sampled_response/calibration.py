"""Calibrate sampled_response: the sets of points, and the number of answers with their mechanism.

For up to `MOST_VALUES` values, points are subsets. Their size and the number of answers are those
with the smallest variance for an item that an average share of users has. For more values, points
are those of a projective space, with one answer: more help only for few items and large epsilons.
A device also gives only one answer about sets of items.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from dpstream.randomizers.accounting.amplification import (
    amplified_epsilon,
    of_any_randomizer,
    of_randomizer_of_sets,
)
from dpstream.randomizers.accounting.best_spaces import best_space
from dpstream.randomizers.accounting.calibration import optimal
from dpstream.randomizers.item_domains import domain_size
from dpstream.randomizers.sampled_response import (
    MAX_REPORTS,
    AnswerSets,
    SampledResponseLaw,
    SampledResponseParameters,
)
from dpstream.randomizers.set_systems import MOST_VALUES, Subsets


def calibrate(parameters: SampledResponseParameters, last_epoch: int) -> SampledResponseLaw:
    """Calibrate with `reports` answers, or with the number that minimizes the error.

    Raises `ValueError` if there are no epochs or too many, or fewer than `reports`.

    >>> [calibrate(SampledResponseParameters(epsilon), 52).reports for epsilon in (1, 2, 4, 6)]
    [1, 2, 3, 5]
    >>> labels = ("car", "bus", "bicycle", "train", "tram", "none of these")
    >>> calibrate(SampledResponseParameters(1, domain=labels, complete=True), 52).sets
    Subsets(values=6, size=2)
    """
    share = expected_share(parameters)
    return min(_laws(parameters, last_epoch), key=lambda law: unit_variance(law, share))


def expected_share(parameters: SampledResponseParameters) -> float:
    """Return the share of users for which errors are predicted: `share`, or 1 / D for D items."""
    domain = parameters.domain
    return parameters.share if domain is None else 1 / domain_size(domain)


def _laws(parameters: SampledResponseParameters, last_epoch: int) -> Iterator[SampledResponseLaw]:
    epsilon, complete = parameters.epsilon, parameters.complete
    items = 1 if parameters.domain is None else domain_size(parameters.domain)
    values = items + (not complete)
    systems: list[AnswerSets]
    if values <= MOST_VALUES:
        systems = [Subsets(values, size) for size in range(1, values)]
    else:
        if (parameters.reports or 1) != 1:
            raise ValueError(
                f"reports is {parameters.reports}; expected 1 for more than {MOST_VALUES} values"
            )
        systems = [best_space(values - 1, optimal(1, epsilon))]
    single = values > MOST_VALUES or parameters.items > 1
    most = 1 if single else max(1, min(MAX_REPORTS, last_epoch))
    counts = range(1, most + 1) if parameters.reports is None else [parameters.reports]
    for sets in systems:
        for count in counts:
            flips = optimal(count, epsilon, sets.block, sets.outside)
            yield SampledResponseLaw(
                last_epoch, epsilon, flips, sets, items, complete, parameters.items
            )


def unit_variance(law: SampledResponseLaw, share: float, users: int | None = None) -> float:
    """Return an estimate's variance per enrolled user, if `share` of them have the value.

    The first part is due to flips, the second to sampling. If `users` is None, there are many.
    """
    asked = law.reports / law.last_epoch
    small = 1.0 if users is None else users / max(1, users - 1)
    return (flip_variance(law, share) + (1 - asked) * small * share * (1 - share)) / asked


def flip_variance(law: SampledResponseLaw, share: float) -> float:
    """Return the variance of one answer's estimate of a value, given the user's own value."""
    own, other = map(float, law.probabilities)
    return (share * own * (1 - own) + (1 - share) * other * (1 - other)) / (own - other) ** 2


def epsilon_if_shuffled(law: SampledResponseLaw, contributors: int, delta: float) -> float:
    """Return epsilon for a horizon against an observer of shuffled answers only, rounded up.

    A user has one message, in a window with at least `contributors` honest users who answer, the
    user included. Phases are public and independent of values, and windows have no users in common:
    what is published about other windows reveals nothing further about the user. So the loss of one
    window is that of the horizon, even if values depend on earlier publications. Raises
    `ValueError` for several answers, which these arguments do not cover.

    >>> law = calibrate(SampledResponseParameters(1), 52)
    >>> round(epsilon_if_shuffled(law, 1_923, 1e-6), 4)
    0.1047
    """
    if law.reports > 1:
        raise ValueError(f"the mechanism has {law.reports} answers; expected 1")
    own, other = law.flips.weights
    sets, loss = law.sets, law.flips.loss
    elsewhere = Fraction(
        other * (sets.block - sets.common), own * sets.block + other * sets.outside
    )
    coins = of_any_randomizer(loss), of_randomizer_of_sets(loss, float(elsewhere))
    return min(amplified_epsilon(coin, contributors, delta) for coin in coins)
