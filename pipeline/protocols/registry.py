"""Protocols that a job file can name: built-in ones, and those from other packages.

A built-in protocol has its devices in `randomizers`, its estimates in `aggregators`, its registry
entry and forecast in a module here, and a line in `OWN`; tests/conformance lists the other
requirements. Other packages declare protocols in their metadata, as described in README.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from dpstream.pipeline.protocols.other_packages import Registry
from dpstream.pipeline.protocols.protocol import Protocol

OWN: Final = {
    "value_stream": "value_stream:PROTOCOL",
    "future_rand": "future_rand:PROTOCOL",
    "sampled_response": "sampled_response:PROTOCOL",
    "hadamard_values": "hadamard_values:PROTOCOL",
    "range_values": "range_values:PROTOCOL",
    "panels": "panels:PROTOCOL",
    "sampled_panels": "sampled_panels:PROTOCOL",
    "shuffled_panels": "shuffled_panels:PROTOCOL",
    "projective_geometry": "projective_geometry:PROTOCOL",
    "count_min": "count_min:PROTOCOL",
    "single_message": "single_message:PROTOCOL",
    "shuffled_counts": "shuffled_counts:PROTOCOL",
}
"""Module and variable of each built-in protocol, in the format of an entry point."""


def module_of(name: str) -> str:
    return OWN[name].partition(":")[0]


def _own(name: str) -> Protocol:
    module = import_module(f"dpstream.pipeline.protocols.{module_of(name)}")
    protocol: Protocol = getattr(module, OWN[name].partition(":")[2])
    return protocol


PROTOCOLS = Registry(OWN, _own)
