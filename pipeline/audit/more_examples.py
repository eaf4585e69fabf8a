"""Examples in which users lose all that is stated, beside those of the registry.

Those of the registry are few items, so that estimates can be compared with what is predicted of
them. Two of those items may be told apart by less than any two may be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from dpstream.pipeline.conformance.cases import Case
from dpstream.pipeline.conformance.finding import find_cases
from dpstream.pipeline.protocols.protocol import Example

_PARAMETERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "bucket": {"epsilon": 8.0, "domain": ("a", "b", "c"), "delta": 0.1, "hashes": 1, "trials": 2},
    "jl_hh": {"epsilon": 8.0, "domain": ("a", "b", "c"), "delta": 0.1, "measurements": 2},
}


def more_examples(name: str) -> Iterator[Case]:
    """Those of a protocol, of one epoch, numbered on from those that it has.

    Raises:
        ProtocolError: there is none of that name, or it is broken.

    >>> list(map(str, more_examples("jl_hh")))
    ['jl_hh-3']
    """
    if name in _PARAMETERS:
        (first, *_) = find_cases(name)
        entry = first.protocol
        examples = (*entry.examples, Example(entry.parameters(**_PARAMETERS[name]), 1))
        yield replace(first, protocol=replace(entry, examples=examples), number=len(entry.examples))
