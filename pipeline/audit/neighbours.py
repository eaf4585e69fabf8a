"""Streams among which the worst neighbours are searched."""

from __future__ import annotations

from collections.abc import Iterator

from dpstream.pipeline.conformance.cases import Stream
from dpstream.pipeline.conformance.divergences import differ_by_removal, neighbours
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.values.examples import ExampleDomain
from dpstream.randomizers.guarantee import Guarantee, held_or_nothing


def candidate_pairs(
    job: DeployedJob, guarantee: Guarantee, epochs: int
) -> list[tuple[Stream, Stream]]:
    """Neighbours by a guarantee, in both orders, of which an attack takes the worst."""
    streams = list(dict.fromkeys(_streams(some_values(job), guarantee, epochs)))
    slots = job.domain.slots
    by_removal = slots is not None and guarantee.neighbours.startswith(held_or_nothing(slots))
    return [
        (one, other)
        for one, other in neighbours(streams, guarantee)
        if not by_removal or differ_by_removal(one, other)
    ]


def some_values(job: DeployedJob) -> list[int | tuple[int, ...]]:
    """Values that a user may have: nothing, the first ones and the last ones."""
    domain = job.domain
    if isinstance(domain, ExampleDomain):
        features = domain.features
        return [(0,) * (1 + features), (1, *[127] * features), (2, 90, *[-50] * (features - 1))]
    items = [*dict.fromkeys([domain.initial, 0, 1, domain.size // 2, domain.size - 1])]
    items = [item for item in items if item < domain.size]
    if domain.slots is None:
        return [*items]
    slots = domain.slots
    sets = [
        (),
        *((item,) for item in items if item),
        tuple(range(1, domain.size)[:slots]),
        tuple(range(1, domain.size)[-slots:]),
    ]
    return [*dict.fromkeys((*held, *[0] * (slots - len(held))) for held in sets)]


def _streams(
    values: list[int | tuple[int, ...]], guarantee: Guarantee, epochs: int
) -> Iterator[Stream]:
    """Those that never change, change once, early or late, and as often as can be."""
    first, others = values[0], values[1:]
    for value in values:
        yield (value,) * epochs
    if guarantee.unit == "value" or epochs == 1:
        return
    for value in others[:1] + others[-1:]:
        yield (value, *[first] * (epochs - 1))
        yield (*[first] * (epochs - 1), value)
        if guarantee.unit == "stream":
            yield tuple(value if epoch >= epochs // 2 else first for epoch in range(epochs))
            yield tuple(value if epoch % 2 == 0 else first for epoch in range(epochs))
            yield tuple(value if epoch % 2 else first for epoch in range(epochs))
