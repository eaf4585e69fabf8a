"""Every registered protocol is complete and provides what the suite needs."""

from __future__ import annotations

import math
import re
from dataclasses import fields, replace

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


def wrong_values(name: str, declared: str, value: object) -> tuple[object, ...]:
    """Return values of a parameter that are invalid whatever the other parameters are."""
    if name in ("low", "high", "initial"):
        return () if value is None else (math.nan, math.inf, True)
    if declared.startswith("float"):
        return (math.nan, -1.0, 0.0, *(() if name == "messages_per_user" else (math.inf,)))
    if declared.startswith("int"):
        return (-1, 1.5, *(() if name in ("max_changes", "boost") else (0,)))
    if declared == "bool":
        return (1, "no")
    if isinstance(value, tuple):
        return (*(() if name in ("groups", "by") else ((),)), ("a", "a"), ("",))
    return ("none such",) if isinstance(value, str) else ()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_parameters_out_of_range_are_rejected_by_name(case: Case) -> None:
    for field in fields(case.parameters):
        value = getattr(case.parameters, field.name)
        for wrong in wrong_values(field.name, str(field.type), value):
            with pytest.raises(ValueError, match=field.name):
                replace(case.parameters, **{field.name: wrong})


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
