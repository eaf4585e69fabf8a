"""Every registered protocol is complete and provides what the suite needs."""

from __future__ import annotations

import re

import pytest

from dpstream.pipeline.conformance import checks
from dpstream.pipeline.conformance.checks import Check
from dpstream.pipeline.protocols.registry import PROTOCOLS
from tests.conformance.cases import CASES, Case, every_case

# Other modules of this folder test what the remaining checks of the suite do, in more detail.
QUICK: tuple[Check, ...] = (
    checks.examples_are_small,
    checks.laws_survive_json,
    checks.reports_have_the_declared_format,
    checks.spends_at_most_the_requested_epsilon,
    checks.exact_law_sums_to_one,
    checks.exact_guarantees_are_attained,
)


def test_installed_protocols_are_discovered() -> None:
    assert {case.protocol.name for case in CASES} == set(PROTOCOLS) != set()


@every_case
@pytest.mark.parametrize("check", QUICK, ids=lambda check: check.__name__)
def test_protocol_passes_the_quick_checks_of_the_public_suite(case: Case, check: Check) -> None:
    check(case)


REMOVAL_WHERE_PUBLISHED = {"jl_hh", "laplace_histogram", "sparse_recovery"}
"""Protocols whose paper defines neighbors by removal. All others replace the values of a user."""


@every_case
def test_guarantee_defines_its_neighbors_and_states_that_presence_is_public(case: Case) -> None:
    guarantee = case.protocol.randomizer(case.law).guarantee
    words = guarantee.neighbors
    replaced = words.startswith(("any two ", "the value 0 at every epoch and the value 1"))
    removed = re.match(r"having an? (item|set of at most [\d,]+ items) at an .*having none", words)
    assert replaced != (removed is not None), words
    requested = getattr(case.parameters, "neighbors", None)
    published = getattr(case.parameters, "calibration", None) == "published"
    if requested is None:
        requested = (
            "removal"
            if published and case.protocol.name in REMOVAL_WHERE_PUBLISHED
            else "replacement"
        )
    assert requested == ("replacement" if replaced else "removal")
    assert guarantee.only_removal == (removed is not None)
    everything = f"{words} {guarantee.trust}"
    assert re.search("public|reported at the same epochs", everything)
