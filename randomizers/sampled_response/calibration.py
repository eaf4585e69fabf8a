"""Calibrate sampled_response: the sets of points, and the number of answers with their mechanism.

For up to `MOST_VALUES` values, points are subsets. Their size and the number of answers are those
with the smallest variance for an item that an average share of users has. For more values, points
are those of a projective space, with one answer: more help only for few items and large epsilons.
About sets of items, too, a device gives only one answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Final

from dpstream.randomizers.accounting.amplification import (
    amplified_epsilon,
    of_any_randomizer,
    of_randomizer_of_sets,
)
from dpstream.randomizers.accounting.best_spaces import best_space, prefixes_of
from dpstream.randomizers.accounting.calibration import optimal
from dpstream.randomizers.cell_codes.levels import Levels
from dpstream.randomizers.item_domains import domain_size
from dpstream.randomizers.point_spaces import MOST_POINTS
from dpstream.randomizers.sampled_response import (
    MAX_REPORTS,
    AnswerSets,
    SampledResponseLaw,
    SampledResponseParameters,
)
from dpstream.randomizers.sampled_response.leveled_response import (
    LeveledResponseLaw,
    node_variance,
)
from dpstream.randomizers.set_systems import MOST_VALUES, Subsets

MOST_IN_ONE_LEVEL: Final = 16
LEAST_FOR_ONE_LEVEL: Final = 3.0
"""Epsilon from which buckets, if there are few, are counted on a single level."""


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


def calibrate_any(
    parameters: SampledResponseParameters, last_epoch: int
) -> SampledResponseLaw | LeveledResponseLaw:
    if parameters.numbers is not None:
        return calibrate_numbers(parameters.epsilon, parameters.numbers.buckets, last_epoch)
    if parameters.searched:
        return calibrate_prefixes(parameters, last_epoch)
    return calibrate(parameters, last_epoch)


def calibrate_prefixes(
    parameters: SampledResponseParameters, last_epoch: int
) -> LeveledResponseLaw:
    """Calibrate for a domain too large to list: an answer is about a prefix of an item.

    >>> from dpstream.randomizers.item_domains import Bits
    >>> law = calibrate_prefixes(SampledResponseParameters(1, domain=Bits(24)), 52)
    >>> [(level.items, level.sets) for level in law.levels]  # doctest: +NORMALIZE_WHITESPACE
    [(524288, PointSpace(order=3, coordinates=13)), (524288, PointSpace(order=3, coordinates=13))]
    """
    if parameters.window is not None and parameters.window > last_epoch:
        raise ValueError(
            f"window is {parameters.window}; expected at most {last_epoch}, the epochs of a horizon"
        )
    assert parameters.domain is not None
    epsilon, flips = parameters.epsilon, optimal(1, parameters.epsilon)
    code = prefixes_of(domain_size(parameters.domain).bit_length() - 1, "sampled_response")
    most = MOST_POINTS // code.messages
    levels = (
        SampledResponseLaw(
            last_epoch=last_epoch,
            epsilon=epsilon,
            flips=flips,
            sets=best_space(level.buckets, flips, most),
            items=level.buckets,
            complete=False,
            slots=parameters.items,
        )
        for level in code.levels
    )
    return LeveledResponseLaw(code, tuple(levels))


def calibrate_numbers(epsilon: float, buckets: int, last_epoch: int) -> LeveledResponseLaw:
    """Calibrate for numbers in 2^L buckets, in a tree whose nodes have four children each.

    If L is odd, the root has only two. Few buckets and a large epsilon need a single level. The
    sets of each level are those with the smallest variance for its nodes if all are equally full.

    >>> [level.items for level in calibrate_numbers(1.0, 1024, 52).levels]
    [4, 16, 64, 256, 1024]
    >>> [level.items for level in calibrate_numbers(1.0, 32, 52).levels]
    [2, 8, 32]
    >>> [level.items for level in calibrate_numbers(4.0, 16, 52).levels]
    [16]
    """
    bits = buckets.bit_length() - 1
    branching = (2,) * (bits % 2) + (4,) * (bits // 2)
    if buckets <= MOST_IN_ONE_LEVEL and epsilon >= LEAST_FOR_ONE_LEVEL:
        branching = (buckets,)
    tree = Levels(buckets, branching)
    levels = tuple(_level(epsilon, nodes, last_epoch) for nodes in tree.nodes[1:])
    return LeveledResponseLaw(tree, levels)


def _level(epsilon: float, nodes: int, last_epoch: int) -> SampledResponseLaw:
    laws = [
        SampledResponseLaw(
            last_epoch, epsilon, optimal(1, epsilon, sets.block, sets.outside), sets, nodes, True, 1
        )
        for sets in _systems(nodes, epsilon)
    ]
    return min(laws, key=node_variance)


def expected_share(parameters: SampledResponseParameters) -> float:
    """Return the share of users for which errors are predicted: `share`, or 1 / D for D items."""
    domain = parameters.numbers or parameters.domain
    return parameters.share if domain is None else 1 / domain_size(domain)


def _systems(values: int, epsilon: float) -> list[AnswerSets]:
    if values <= MOST_VALUES:
        return [Subsets(values, size) for size in range(1, values)]
    return [best_space(values - 1, optimal(1, epsilon))]


def _laws(parameters: SampledResponseParameters, last_epoch: int) -> Iterator[SampledResponseLaw]:
    epsilon, complete = parameters.epsilon, parameters.complete
    items = 1 if parameters.domain is None else domain_size(parameters.domain)
    values = items + (not complete)
    if values > MOST_VALUES and (parameters.reports or 1) != 1:
        raise ValueError(
            f"reports is {parameters.reports}; expected 1 for more than {MOST_VALUES} values"
        )
    single = values > MOST_VALUES or parameters.items > 1
    most = 1 if single else max(1, min(MAX_REPORTS, last_epoch))
    counts = range(1, most + 1) if parameters.reports is None else [parameters.reports]
    for sets in _systems(values, epsilon):
        for count in counts:
            flips = optimal(count, epsilon, sets.block, sets.outside)
            yield SampledResponseLaw(
                last_epoch, epsilon, flips, sets, items, complete, parameters.items
            )


def unit_variance(law: SampledResponseLaw, share: float, users: int | None = None) -> float:
    """Return an estimate's variance per enrolled user, if `share` of them have the value.

    It consists of a part due to flips and a part due to sampling. If `users` is None, the number of
    enrolled users is taken as infinite.
    """
    asked = law.reports / law.last_epoch
    small = 1.0 if users is None else users / max(1, users - 1)
    return (law.flip_variance(share) + (1 - asked) * small * share * (1 - share)) / asked


def epsilon_of_any_if_shuffled(
    law: SampledResponseLaw | LeveledResponseLaw, contributors: int, delta: float
) -> float:
    """Return `epsilon_if_shuffled`, also with levels: an answer is hidden among those on its level.

    The level of each answer is public and drawn independently of all values. The number of the
    `contributors` who answer about a user's level is below a binomial quantile with probability at
    most `delta` / 2. Otherwise they hide the user's answer, with the rest of `delta`.
    """
    if isinstance(law, SampledResponseLaw):
        return epsilon_if_shuffled(law, contributors, delta)
    crowd, levels = contributors, len(law.levels)
    if levels > 1:
        # Imported here because calibrations of other values do not need scipy.
        from scipy import stats

        delta *= 0.5 - 1e-9
        crowd = 1 + int(stats.binom.ppf(delta, contributors - 1, 1 / levels))
    return max(epsilon_if_shuffled(level, max(1, crowd), delta) for level in law.levels)


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
