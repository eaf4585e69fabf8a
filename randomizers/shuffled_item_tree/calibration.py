"""From the parameters of a shuffled tree of items to the constants that its devices run on."""

from __future__ import annotations

from dataclasses import replace

from randomizers.accounting.counting_tree import order_messages
from randomizers.accounting.overlapping_cells import (
    epsilon_for_overlapping,
    poisson_for_overlapping,
)
from randomizers.accounting.table_distances import FOR_TABLES, check_tables
from randomizers.affine_hashes import AffineHashes
from randomizers.cell_noise_law import CellNoiseLaw, DummyLaw
from randomizers.item_domains import domain_size
from randomizers.shuffled_counts.calibration import too_many
from randomizers.shuffled_item_counts.calibration import (
    MESSAGES_PER_EPOCH,
    enough_buckets,
    fitting,
)
from randomizers.shuffled_item_tree import ShuffledItemTreeLaw
from randomizers.shuffled_tree import ShuffledTreeParameters


def calibrate(
    parameters: ShuffledTreeParameters, last_epoch: int, minimum: int
) -> ShuffledItemTreeLaw:
    """The law of a job, for items; its noise is the same for all orders.

    Args:
        parameters: of the job.
        last_epoch: number of epochs.
        minimum: the fewest contributors a window is released with.

    Raises:
        ValueError: no noise is found, or it asks for more messages than users may be asked for.

    >>> items = tuple(map(str, range(10_000)))
    >>> asked = ShuffledTreeParameters(1, 1e-6, 2, messages_per_user=194, domain=items)
    >>> law = calibrate(asked, last_epoch=64, minimum=100_000)
    >>> law.buckets, round(law.noise.mean), round(law.messages)
    (107, 649, 193)
    """
    assert parameters.domain is not None
    size = domain_size(parameters.domain)
    orders = len(order_messages(last_epoch, parameters.changes))
    charged = charged_messages(last_epoch, parameters.changes)
    spared = parameters.delta * (1 - FOR_TABLES)

    def law_of(buckets: int) -> ShuffledItemTreeLaw:
        overlap = AffineHashes.for_items(buckets, size).overlap
        mean = poisson_for_overlapping(parameters.epsilon, spared, overlap, epochs=charged)
        kind: DummyLaw = "shuffle" if parameters.dummies == "shuffle" else "poisson"
        return ShuffledItemTreeLaw(
            last_epoch=last_epoch,
            size=size,
            epsilon=parameters.epsilon,
            delta=parameters.delta,
            changes=parameters.changes,
            orders=orders,
            buckets=buckets,
            noise=CellNoiseLaw(kind, mean, minimum),
        )

    allowed = parameters.messages_per_user
    if parameters.buckets is not None:
        law = law_of(parameters.buckets)
    elif (
        not isinstance(parameters.domain, tuple)
        or parameters.cells == "count_min"
        or parameters.dummies == "shuffle"
    ):
        # The values of a range are added up: none may be in the cell of another.
        law = law_of(enough_buckets(size))
    else:
        law = fitting(law_of, size, allowed or MESSAGES_PER_EPOCH * last_epoch)
    # All the words of an order and kind are drawn for at once.
    drawn = replace(law.noise, mean=law.noise.mean * law.buckets)
    draws = law.kinds * sum(last_epoch >> order for order in range(orders))
    check_tables(parameters.epsilon, parameters.delta, [(drawn, draws)])
    if allowed is not None and law.messages > allowed:
        raise ValueError(too_many(law.messages, allowed, law.noise, last_epoch))
    return law


def epsilon_with(law: ShuffledItemTreeLaw, honest: int) -> float:
    """The epsilon with so many honest contributors, at least 1, where these add the noise."""
    mean = law.noise.mean * honest / law.noise.minimum
    delta = law.delta * (1 - FOR_TABLES)
    return epsilon_for_overlapping(
        mean, delta, law.hashes.overlap, epochs=charged_messages(law.last_epoch, law.changes)
    )


def charged_messages(last_epoch: int, changes: int) -> int:
    """How many messages a user is charged with, at most: of each order, one has no item to leave.

    >>> charged_messages(64, 4)
    38
    """
    messages = order_messages(last_epoch, changes)
    return 2 * sum(messages) - len(messages)
