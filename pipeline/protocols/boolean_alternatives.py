"""Which protocols count yes or no at every epoch, whoever is trusted, for the same epsilon."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from dpstream.pipeline.protocols.protocol import Alternative
from dpstream.randomizers.baselines import IndependentResponseParameters, SplitBudgetParameters
from dpstream.randomizers.future_rand import FutureRandParameters
from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
from dpstream.randomizers.value_stream import ValueStreamParameters

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
    for dummies in ("poisson", "shuffle"):
        yield (
            "shuffled_counts",
            partial(
                ShuffledCountsParameters,
                asked.epsilon,
                DELTA,
                changes=asked.changes,
                dummies=dummies,
            ),
        )


def untrusting(epsilon: float, changes: int, last_epoch: int) -> Iterator[Alternative]:
    """Those that trust nobody; at few epochs it may be better to pay for each of them."""
    yield "value_stream", partial(ValueStreamParameters, epsilon, changes)
    yield "future_rand", partial(FutureRandParameters, epsilon, changes)
    if last_epoch <= _FEW_EPOCHS:
        yield "split_budget", partial(SplitBudgetParameters, epsilon)
