"""From the parameters of a shuffled tree to the constants that its devices run on."""

from __future__ import annotations

from collections.abc import Sequence

from randomizers.accounting.cell_noise import NegativeBinomialNoise, PoissonNoise, noise_of_cells
from randomizers.accounting.counting_tree import (
    best_poisson,
    equal_negative_binomial,
    order_messages,
    tree_shifts,
)
from randomizers.accounting.shifted_noise import epsilon_spent
from randomizers.accounting.table_distances import FOR_TABLES, check_tables
from randomizers.shuffled_counts.calibration import noise_law, too_many
from randomizers.shuffled_tree import ShuffledTreeLaw, ShuffledTreeParameters


def calibrate(parameters: ShuffledTreeParameters, last_epoch: int, minimum: int) -> ShuffledTreeLaw:
    """The law of a job: Poisson noise by order, negative-binomial noise the same in all.

    Args:
        parameters: of the job.
        last_epoch: number of epochs.
        minimum: the fewest contributors a window is released with.

    Raises:
        ValueError: no noise is found, or it asks for more messages than users may be asked for.

    >>> law = calibrate(ShuffledTreeParameters(epsilon=1, delta=1e-6, changes=4), 170, 32593)
    >>> [round(noise.mean) for noise in law.noises]
    [526, 1052, 1064, 1071, 1105, 1865, 850, 1042]
    """
    epsilon, delta = parameters.epsilon, parameters.delta * (1 - FOR_TABLES)
    messages = order_messages(last_epoch, parameters.changes)
    noises: Sequence[PoissonNoise | NegativeBinomialNoise]
    if parameters.dummies == "negative_binomial":
        one = equal_negative_binomial(epsilon, delta, last_epoch, parameters.changes)
        noises = [one] * len(messages)
    else:
        noises = best_poisson(epsilon, delta, last_epoch, parameters.changes)
    dummies = tuple(noise_law(noise, minimum, parameters.dummies) for noise in noises)
    cells = 1 if parameters.changes == 1 else 2
    check_tables(
        epsilon,
        parameters.delta,
        [(noise, cells * (last_epoch >> order)) for order, noise in enumerate(dummies)],
    )
    law = ShuffledTreeLaw(last_epoch, epsilon, parameters.delta, parameters.changes, dummies)
    allowed = parameters.messages_per_user
    if allowed is not None and law.messages > allowed:
        raise ValueError(too_many(law.messages, allowed, law.noises[0], last_epoch))
    return law


def epsilon_with(law: ShuffledTreeLaw, honest: int) -> float:
    """The epsilon with so many honest contributors, at least 1, where these add the noise."""
    noises = [noise_of_cells(noise, honest) for noise in law.noises]
    delta = law.delta * (1 - FOR_TABLES)
    return epsilon_spent(tree_shifts(noises, law.most_sums), delta)
