"""What becomes of epsilon when fewer contributors are honest and present than noise is sized on.

Noise that contributors add is sized on the fewest of a window, as if all of these added theirs. Who
leaves its dummies out, or tells them to somebody, leaves less to hide among.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import singledispatch
from typing import Final

from randomizers.accounting.amplification import amplified_epsilon
from randomizers.accounting.boosted_counts import BoostedReports, shifted_cells
from randomizers.accounting.continual_counts import epsilon_for_epochs
from randomizers.accounting.count_min_noise import cells_epsilon, noise_of_cells
from randomizers.accounting.counting_tree import tree_shifts
from randomizers.accounting.hadamard import blanket_epsilon
from randomizers.accounting.item_streams import ItemReports, epsilon_for_items
from randomizers.accounting.overlapping_cells import epsilon_for_overlapping
from randomizers.accounting.renyi_shift import renyi_epsilon
from randomizers.accounting.shifted_noise import epsilon_spent
from randomizers.accounting.shuffled_item_tree import charged_messages
from randomizers.accounting.shuffled_level_counts import epsilon_with_share
from randomizers.accounting.single_message import coins
from randomizers.accounting.table_distances import FOR_TABLES
from randomizers.balls_into_bins import BallsIntoBinsLaw
from randomizers.count_min import CountMinLaw
from randomizers.hadamard import HadamardLaw
from randomizers.shuffled_counts import ShuffledCountsLaw
from randomizers.shuffled_item_counts import ShuffledItemCountsLaw
from randomizers.shuffled_item_tree import ShuffledItemTreeLaw
from randomizers.shuffled_level_counts import ShuffledLevelCountsLaw
from randomizers.shuffled_tree import ShuffledTreeLaw
from randomizers.single_message import SingleMessageLaw

SHARES: Final = (1.0, 0.9, 0.75, 0.5, 0.25, 0.1)


def contributor_curve(
    law: object, shares: Sequence[float] = SHARES
) -> list[tuple[float, int, float]]:
    """Epsilon, with the law's delta, for some shares of the fewest contributors.

    Args:
        law: of any protocol.
        shares: of those that the noise is sized on, from 0 to 1.

    Returns:
        Share, contributors (rounded down) and epsilon each: of what the guarantee is about, an
        epoch or a stream; infinite where delta is not enough. Nothing where the guarantee does not
        rest on contributors.

    >>> from randomizers.accounting.count_min import calibrate
    >>> from randomizers.count_min import CountMinParameters
    >>> law = calibrate(CountMinParameters(1.0, 1e-6, ("a", "b")), last_epoch=1, minimum=1000)
    >>> [(honest, round(epsilon, 2)) for _, honest, epsilon in contributor_curve(law, (1, 0.5))]
    [(1000, 1.0), (500, 1.69)]
    """
    minimum = _sized_on(law)
    if minimum is None:
        return []
    curve = []
    for share in shares:
        honest = math.floor(minimum * share)
        curve.append((share, honest, epsilon_with(law, honest) if honest else math.inf))
    return curve


@singledispatch
def epsilon_with(law: object, honest: int) -> float:
    """The epsilon of a law with so many honest contributors, at least 1.

    Raises:
        TypeError: its guarantee does not rest on contributors.
    """
    raise TypeError(f"{type(law).__name__} does not rest on contributors")


@epsilon_with.register
def _count_min(law: CountMinLaw, honest: int) -> float:
    noise = noise_of_cells(law.noise, honest)
    return cells_epsilon(noise, law.code, law.items, 1, law.delta, law.calibration)


@epsilon_with.register
def _balls_into_bins(law: BallsIntoBinsLaw, honest: int) -> float:
    spared = law.delta * (1 - FOR_TABLES)
    mean = law.noise.mean * honest / law.noise.minimum
    return epsilon_for_overlapping(mean, spared, law.hashes.overlap, law.items)


@epsilon_with.register
def _hadamard(law: HadamardLaw, honest: int) -> float:
    tuples, delta = law.blanket * honest, law.delta * (1 - FOR_TABLES)
    return blanket_epsilon(tuples, delta, law.rows, law.slots, 1, law.dummies)


@epsilon_with.register
def _single_message(law: SingleMessageLaw, honest: int) -> float:
    hidden = coins(law.response, law.local_epsilon, law.slots, law.items)
    return min(amplified_epsilon(coin, honest, law.delta) for coin in hidden)


@epsilon_with.register
def _shuffled_counts(law: ShuffledCountsLaw, honest: int) -> float:
    noise = noise_of_cells(law.noise, honest)
    delta = law.delta * (1 - FOR_TABLES)
    if not law.boost:
        return epsilon_for_epochs(noise, delta, law.last_epoch)
    shifts = BoostedReports(law.last_epoch, law.changes, law.boost).shifts
    if law.calibration == "rigorous":
        return renyi_epsilon(noise, shifts, delta)[0]
    return epsilon_spent(shifted_cells(noise, shifts), delta)


@epsilon_with.register
def _shuffled_tree(law: ShuffledTreeLaw, honest: int) -> float:
    noises = [noise_of_cells(noise, honest) for noise in law.noises]
    delta = law.delta * (1 - FOR_TABLES)
    return epsilon_spent(tree_shifts(noises, law.most_sums), delta)


@epsilon_with.register
def _item_counts(law: ShuffledItemCountsLaw, honest: int) -> float:
    reports = ItemReports(law.last_epoch, law.changes, law.boost, law.hashes.overlap)
    share, delta = honest / law.held.minimum, law.delta * (1 - FOR_TABLES)
    left = None if law.left is None else law.left.mean * share
    return epsilon_for_items(law.held.mean * share, left, delta, reports)


@epsilon_with.register
def _level_counts(law: ShuffledLevelCountsLaw, honest: int) -> float:
    return epsilon_with_share(law, honest / law.held.minimum)


@epsilon_with.register
def _item_tree(law: ShuffledItemTreeLaw, honest: int) -> float:
    mean = law.noise.mean * honest / law.noise.minimum
    delta = law.delta * (1 - FOR_TABLES)
    return epsilon_for_overlapping(
        mean, delta, law.hashes.overlap, epochs=charged_messages(law.last_epoch, law.changes)
    )


def _sized_on(law: object) -> int | None:
    """The fewest contributors of a window, if these add the noise."""
    match law:
        case CountMinLaw() | BallsIntoBinsLaw() | ShuffledCountsLaw() | ShuffledItemTreeLaw():
            noise = law.noise
        case ShuffledItemCountsLaw() | ShuffledLevelCountsLaw():
            noise = law.held
        case ShuffledTreeLaw():
            noise = law.noises[0]
        case HadamardLaw() | SingleMessageLaw():
            return law.minimum
        case _:
            return None
    return None if noise.dummies == "shuffle" else noise.minimum
