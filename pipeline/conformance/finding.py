"""Find, by a protocol's name, the cases and the exact law of an installed protocol."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from dpstream.pipeline.conformance.cases import Case, MakeExactLaw
from dpstream.pipeline.errors import error_line
from dpstream.pipeline.protocols.other_packages import ProtocolError
from dpstream.pipeline.protocols.protocol import Protocol
from dpstream.pipeline.protocols.registry import OWN, PROTOCOLS, module_of

GROUP = "dpstream.exact_laws"
"""Group of entry points: protocol name and location of its `ExactLaw`."""
OWN_LAWS = "dpstream.pipeline.conformance.laws"
"""Package with the exact laws of the built-in protocols, one module per protocol module."""


def cases_of(protocol: Protocol, make_exact: MakeExactLaw) -> list[Case]:
    """Return a case for every example; raise ProtocolError if the protocol has none."""
    if not protocol.examples:
        raise ProtocolError(
            f"protocol {protocol.name} has no examples; expected at least one in its registry entry"
        )
    return [Case(protocol, number, make_exact) for number in range(len(protocol.examples))]


def find_cases(name: str) -> list[Case]:
    """Return the cases of an installed protocol; raise ProtocolError if it has none."""
    PROTOCOLS.check(name)
    if name not in PROTOCOLS:
        raise ProtocolError(
            f"protocol {name} does not exist; expected one of: {', '.join(PROTOCOLS)}. Another "
            "protocol's package must be installed, and declare the protocol as an entry point in "
            "group dpstream.protocols"
        )
    return cases_of(PROTOCOLS[name], exact_law_of(name))


def exact_law_of(name: str) -> MakeExactLaw:
    """Return the constructor of a protocol's exact law; raise ProtocolError if it is missing."""
    if name in OWN:
        make_exact: MakeExactLaw = import_module(f"{OWN_LAWS}.{module_of(name)}").exact_law
        return make_exact
    laws = list(entry_points(group=GROUP, name=name))
    if not laws:
        raise ProtocolError(
            f"protocol {name} has no exact law. Declare one as an entry point of its package, in "
            f"group {GROUP}; for examples, see {OWN_LAWS.replace('.', '/')}"
        )
    try:
        make_exact = laws[0].load()
    except Exception as error:
        raise ProtocolError(
            f"the exact law of protocol {name}, {laws[0].value}, cannot be imported: "
            f"{error_line(error)}"
        ) from error
    return make_exact
