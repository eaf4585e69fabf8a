"""Which protocols count sets of items epoch by epoch, whoever is trusted, for the same epsilon."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TypeAlias

from dpstream.pipeline.protocols.protocol import Alternative
from dpstream.randomizers.count_min import CountMinParameters
from dpstream.randomizers.fragments import FragmentsParameters
from dpstream.randomizers.hadamard import HadamardParameters
from dpstream.randomizers.projective_geometry import ProjectiveGeometryParameters
from dpstream.randomizers.single_message import SingleMessageParameters

Asked: TypeAlias = (
    CountMinParameters
    | FragmentsParameters
    | HadamardParameters
    | ProjectiveGeometryParameters
    | SingleMessageParameters
)


def alternatives(asked: Asked, last_epoch: int) -> Iterator[Alternative]:
    """One that trusts nobody; the shuffle stage to forget; the shuffle stage to add noise.

    Nothing beside queries of a job's own, which the others do not answer, nor where a job hides
    whether users have items at all.
    """
    if isinstance(asked, CountMinParameters) and asked.queries is not None:
        return
    if isinstance(asked, FragmentsParameters) and asked.neighbours == "removal":
        return
    epsilon, delta, domain, items = asked.epsilon, asked.delta, asked.domain, asked.items
    yield "projective_geometry", partial(ProjectiveGeometryParameters, epsilon, domain, items)
    yield "single_message", partial(SingleMessageParameters, epsilon, delta, domain, items)
    for dummies in ("poisson", "shuffle"):
        counted = partial(CountMinParameters, epsilon, delta, domain, items, dummies=dummies)
        yield "count_min", counted
