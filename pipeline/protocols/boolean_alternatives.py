"""Which protocols count yes or no at every epoch, whoever is trusted, for the same epsilon.

And items or numbers, where the shuffle stage is trusted.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pipeline.protocols.protocol import Alternative
from randomizers.comparisons import IndependentResponseParameters
from randomizers.future_rand import FutureRandParameters
from randomizers.item_domains import Numbers
from randomizers.shuffled_counts import ShuffledCountsParameters
from randomizers.split_budget import SplitBudgetParameters
from randomizers.value_stream import ValueStreamParameters

DELTA = 1e-6
"""Of those that trust the shuffle stage, beside a job that states none."""

# With more of them nothing is left for each.
_FEW_EPOCHS = 16


def alternatives(
    asked: ValueStreamParameters | FutureRandParameters | IndependentResponseParameters,
    last_epoch: int,
) -> Iterator[Alternative]:
    """Those that trust nobody; the shuffle stage to forget; the shuffle stage to add noise."""
    yield from untrusting(asked.epsilon, asked.changes, last_epoch)
    yield from trusting(asked.epsilon, asked.changes)


def trusting(epsilon: float, changes: int) -> Iterator[Alternative]:
    """Those of the shuffled model: where devices add the noise, and where the stage does."""
    for dummies in ("poisson", "shuffle"):
        yield (
            "shuffled_counts",
            partial(ShuffledCountsParameters, epsilon, DELTA, changes=changes, dummies=dummies),
        )


def trusting_with_values(
    epsilon: float, changes: int, domain: tuple[str, ...] | Numbers
) -> Iterator[Alternative]:
    """The one of items or numbers where the shuffle stage adds the noise.

    Devices would have to send so much of it that nobody would choose that.

    Args:
        epsilon: of the whole stream.
        changes: that are followed after a user's first value, which is one more there.
        domain: of the values.
    """
    yield (
        "shuffled_counts",
        partial(
            ShuffledCountsParameters,
            epsilon,
            DELTA,
            changes=changes + 1,
            dummies="shuffle",
            domain=domain,
            cells=None if isinstance(domain, Numbers) else "count_min",
        ),
    )


def untrusting(epsilon: float, changes: int, last_epoch: int) -> Iterator[Alternative]:
    """Those that trust nobody; at few epochs it may be better to pay for each of them."""
    yield "value_stream", partial(ValueStreamParameters, epsilon, changes)
    yield "future_rand", partial(FutureRandParameters, epsilon, changes)
    if last_epoch <= _FEW_EPOCHS:
        yield "split_budget", partial(SplitBudgetParameters, epsilon)
