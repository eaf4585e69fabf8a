"""Alternatives that `plan` compares: same counts, same epsilon, any trusted party."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial, singledispatch
from typing import Any, Final, TypeAlias

from dpstream.pipeline.protocols.protocol import DELTA
from dpstream.randomizers.composed import MAX_SIGNS
from dpstream.randomizers.count_min import CountMinParameters
from dpstream.randomizers.future_rand import FutureRandParameters
from dpstream.randomizers.item_domains import Bits, ItemDomain, Numbers
from dpstream.randomizers.projective_geometry import ProjectiveGeometryParameters
from dpstream.randomizers.sampled_response import SampledResponseParameters
from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
from dpstream.randomizers.single_message import SingleMessageParameters
from dpstream.randomizers.value_stream import ValueStreamParameters
from dpstream.randomizers.value_stream.hadamard_values import HadamardValuesParameters
from dpstream.randomizers.value_stream.range_values import RangeValuesParameters

FEWEST_CHANGES: Final = 2
"""Minimum changes that alternatives track: a value that turns 1 and then 0 changes twice."""

Alternative: TypeAlias = tuple[str, Callable[[], Any]]
"""Protocol name, and factory of its parameters, which raises `ValueError` if none are valid."""

_SetsParameters: TypeAlias = (
    CountMinParameters | ProjectiveGeometryParameters | SingleMessageParameters
)


@singledispatch
def alternatives(requested: Any, last_epoch: int) -> Iterable[Alternative]:
    """Return alternatives to a protocol, given its parameters; empty if none are known."""
    return ()


@alternatives.register
def _of_booleans(
    requested: ValueStreamParameters | FutureRandParameters, last_epoch: int
) -> Iterator[Alternative]:
    max_changes = _at_least_two(requested.max_changes, last_epoch)
    yield from _untrusting(requested.epsilon, max_changes)
    for dummies in ("poisson", "shuffle"):
        yield (
            "shuffled_counts",
            partial(
                ShuffledCountsParameters,
                requested.epsilon,
                DELTA,
                max_changes=max_changes,
                dummies=dummies,
            ),
        )


def _at_least_two(max_changes: int, last_epoch: int) -> int:
    return max(max_changes, min(FEWEST_CHANGES, last_epoch))


def _untrusting(epsilon: float, max_changes: int) -> Iterator[Alternative]:
    yield "value_stream", partial(ValueStreamParameters, epsilon, max_changes)
    yield "future_rand", partial(FutureRandParameters, epsilon, max_changes)
    yield "sampled_response", partial(SampledResponseParameters, epsilon)


@alternatives.register
def _of_samples(requested: SampledResponseParameters, last_epoch: int) -> Iterator[Alternative]:
    """Yield protocols that track two or four changes, while sampled_response tracks any number.

    For a domain too large to list, yield the protocol that asks all users at every epoch.
    """
    epsilon, domain = requested.epsilon, requested.numbers or requested.domain
    if domain is not None and requested.searched:
        each = epsilon / last_epoch
        yield (
            "projective_geometry",
            partial(ProjectiveGeometryParameters, each, domain, requested.items),
        )
        return
    if requested.items > 1:
        return
    for max_changes in (2, 4):
        if domain is None:
            yield "value_stream", partial(ValueStreamParameters, epsilon, max_changes)
        elif isinstance(domain, Numbers):
            numbers = epsilon, max_changes, domain.low, domain.high, domain.buckets
            yield "range_values", partial(RangeValuesParameters, *numbers)
        elif isinstance(domain, tuple):
            yield "hadamard_values", partial(HadamardValuesParameters, epsilon, max_changes, domain)


@alternatives.register
def _of_sets(requested: _SetsParameters, last_epoch: int) -> Iterator[Alternative]:
    """Yield nothing for jobs with their own queries, which other protocols do not answer."""
    if isinstance(requested, CountMinParameters) and requested.queries is not None:
        return
    epsilon, delta = requested.epsilon, requested.delta
    domain, items = requested.domain, requested.items
    yield "projective_geometry", partial(ProjectiveGeometryParameters, epsilon, domain, items)
    if last_epoch == 1:
        yield "sampled_response", _sampled(epsilon, domain, items)
    yield "single_message", partial(SingleMessageParameters, epsilon, delta, domain, items)
    for dummies in ("poisson", "shuffle"):
        counted = partial(CountMinParameters, epsilon, delta, domain, items, dummies=dummies)
        yield "count_min", counted


@alternatives.register
def _of_items(requested: HadamardValuesParameters, last_epoch: int) -> Iterator[Alternative]:
    yield from _trusting_with_values(requested.epsilon, requested.max_changes, requested.domain)
    yield "sampled_response", _sampled(requested.epsilon, requested.domain)


def _sampled(
    epsilon: float, domain: ItemDomain, items: int = 1
) -> Callable[[], SampledResponseParameters]:
    return partial(SampledResponseParameters, epsilon, domain=domain, items=items)


def _sampled_numbers(epsilon: float, domain: Numbers) -> Callable[[], SampledResponseParameters]:
    low, high, buckets = domain.low, domain.high, domain.buckets
    return partial(SampledResponseParameters, epsilon, low=low, high=high, buckets=buckets)


@alternatives.register
def _of_numbers(requested: RangeValuesParameters, last_epoch: int) -> Iterator[Alternative]:
    buckets = Numbers(requested.low, requested.high, requested.buckets)
    yield from _trusting_with_values(requested.epsilon, requested.max_changes, buckets)
    yield "sampled_response", _sampled_numbers(requested.epsilon, buckets)


@alternatives.register
def _of_shuffled_counts(
    requested: ShuffledCountsParameters, last_epoch: int
) -> Iterator[Alternative]:
    """Yield protocols with the same epsilon; without `max_changes`, they track all changes."""
    shared: dict[str, Any] = {
        "epsilon": requested.epsilon,
        "delta": requested.delta,
        "dummies": "shuffle" if requested.dummies == "shuffle" else "poisson",
    }
    if requested.domain is not None:
        # The number of messages determines how well items can be distinguished.
        limit = requested.messages_per_user
        shared |= {"domain": requested.domain, "cells": requested.cells, "messages_per_user": limit}
    max_changes = requested.max_changes or min(last_epoch, MAX_SIGNS)
    if requested.max_changes is not None:
        yield (
            "shuffled_counts",
            partial(ShuffledCountsParameters, max_changes=max_changes, **shared),
        )
    yield "shuffled_counts", partial(ShuffledCountsParameters, **shared)
    domain = requested.domain
    if domain is None:
        yield from _untrusting(requested.epsilon, _at_least_two(max_changes, last_epoch))
    elif isinstance(domain, Numbers):
        numbers = requested.epsilon, max_changes, domain.low, domain.high, domain.buckets
        yield "range_values", partial(RangeValuesParameters, *numbers)
    elif not isinstance(domain, Bits):
        # In hadamard_values, the first item of a user does not count as a change.
        items = requested.epsilon, max_changes - 1, domain
        yield "hadamard_values", partial(HadamardValuesParameters, *items)
    if isinstance(domain, Numbers):
        yield "sampled_response", _sampled_numbers(requested.epsilon, domain)
    elif domain is not None:
        yield "sampled_response", _sampled(requested.epsilon, domain)


def _trusting_with_values(
    epsilon: float, max_changes: int, domain: tuple[str, ...] | Numbers
) -> Iterator[Alternative]:
    """Yield the protocol in which the shuffler adds the noise, for items or for numbers.

    If devices added the noise, each would have to send too many messages. `max_changes` does not
    count a user's first value, but shuffled_counts counts it as a change.
    """
    yield (
        "shuffled_counts",
        partial(
            ShuffledCountsParameters,
            epsilon,
            DELTA,
            max_changes=max_changes + 1,
            dummies="shuffle",
            domain=domain,
            cells=None if isinstance(domain, Numbers) else "count_min",
        ),
    )
