"""Which protocols count what shuffled_counts does, and the reverse."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from dpstream.pipeline.protocols.boolean_alternatives import DELTA, untrusting
from dpstream.pipeline.protocols.protocol import Alternative
from dpstream.randomizers.composed import MAX_SIGNS
from dpstream.randomizers.item_domains import Bits, Numbers
from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
from dpstream.randomizers.value_stream.hadamard_values import HadamardValuesParameters
from dpstream.randomizers.value_stream.range_values import RangeValuesParameters


def alternatives(asked: ShuffledCountsParameters, last_epoch: int) -> Iterator[Alternative]:
    """Others with the same epsilon; where no number of changes is stated, all are followed."""
    shared: dict[str, Any] = {
        "epsilon": asked.epsilon,
        "delta": asked.delta,
        "dummies": "shuffle" if asked.dummies == "shuffle" else "poisson",
    }
    if asked.domain is not None:
        # How well items are told apart is a matter of how many messages there may be.
        limit = asked.messages_per_user
        shared |= {"domain": asked.domain, "cells": asked.cells, "messages_per_user": limit}
    changes = asked.changes or min(last_epoch, MAX_SIGNS)
    if asked.changes is not None:
        yield "shuffled_counts", partial(ShuffledCountsParameters, changes=changes, **shared)
    yield "shuffled_counts", partial(ShuffledCountsParameters, **shared)
    domain = asked.domain
    if domain is None:
        yield from untrusting(asked.epsilon, changes, last_epoch)
    elif isinstance(domain, Numbers):
        numbers = asked.epsilon, changes, domain.low, domain.high, domain.buckets
        yield "range_values", partial(RangeValuesParameters, *numbers)
    elif not isinstance(domain, Bits):
        # There the first item of a user does not count as a change.
        items = asked.epsilon, changes - 1, domain
        yield "hadamard_values", partial(HadamardValuesParameters, *items)


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
