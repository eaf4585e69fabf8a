"""The kinds by what a domain says is published of it: the one place that tells them apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dpstream.pipeline.results.kinds.items import FoundKind, ItemsKind
from dpstream.pipeline.results.kinds.numbers import NumbersKind
from dpstream.pipeline.results.kinds.one_value import CountKind, MeasureKind
from dpstream.pipeline.results.kinds.published_kind import PublishedKind
from dpstream.pipeline.values.value_domains import Kind, ValueDomain

_KINDS: Final[Mapping[Kind, PublishedKind]] = {
    "value": CountKind(),
    "items": ItemsKind(),
    "numbers": NumbersKind(),
    "found": FoundKind(),
}
_MEASURE: Final = MeasureKind()


def kind_of(domain: ValueDomain) -> PublishedKind:
    """The kind of what is published of a domain."""
    return _KINDS[domain.kind] if domain.measure is None else _MEASURE
