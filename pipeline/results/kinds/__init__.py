"""Kinds of publication, with one module each: one value, items, numbers.

A kind defines queries for one number, for a few numbers and for all numbers. It also defines the
headline, the sentence and the curves, and what is monitored and smoothed. `published_kind` is the
interface. Only `kind_of` distinguishes kinds.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Final

from dpstream.pipeline.results.kinds.published_kind import PublishedKind
from dpstream.pipeline.values.value_domains import ValueDomain

_KINDS: Final = {
    "value": ("one_value", "CountKind"),
    "items": ("items", "ItemsKind"),
    "numbers": ("numbers", "NumbersKind"),
    "found": ("items", "FoundKind"),
}
"""Modules of this package, imported on demand, and the classes in these modules."""


def kind_of(domain: ValueDomain) -> PublishedKind:
    return _kind(domain.kind)


@cache
def _kind(name: str) -> PublishedKind:
    module_name, kind = _KINDS[name]
    module = import_module(f"dpstream.pipeline.results.kinds.{module_name}")
    published_kind: PublishedKind = getattr(module, kind)()
    return published_kind
