"""The protocols that a job file can name: our own, and those of other packages.

Whoever adds one of our own writes its devices in `randomizers`, its estimates in `aggregators`, a
module of its name with its entry and its forecast here, and names it below; tests/conformance says
what else it wants. Another package names its entry in its metadata, as README.md says.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from dpstream.pipeline.protocols.other_packages import Registry
from dpstream.pipeline.protocols.protocol import Protocol

OWN: Final = (
    "value_stream",
    "future_rand",
    "hadamard_values",
    "range_values",
    "projective_geometry",
    "count_min",
    "independent_response",
    "erlingsson",
    "bun",
    "split_budget",
    "memoized_response",
    "hadamard",
    "single_message",
    "fragments",
    "ldp_sgd",
    "shuffled_counts",
    "laplace_histogram",
    "jl_hh",
    "bucket",
    "sparse_recovery",
    "count_mean_sketch",
)
"""Modules of this package, each named as its protocol is."""


def _own(name: str) -> Protocol:
    protocol: Protocol = import_module(f"dpstream.pipeline.protocols.{name}").PROTOCOL
    return protocol


PROTOCOLS = Registry(OWN, _own)
