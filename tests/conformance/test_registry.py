"""Every registered protocol is complete and provides what the suite needs."""

from __future__ import annotations

import json
import re

import pytest

from dpstream.pipeline.protocols.registry import PROTOCOLS
from tests.conformance.cases import CASES, Case, every_case


def test_installed_protocols_are_discovered() -> None:
    assert {case.protocol.name for case in CASES} == set(PROTOCOLS) != set()


@pytest.mark.parametrize("name", PROTOCOLS)
def test_protocol_provides_examples(name: str) -> None:
    examples = PROTOCOLS[name].examples
    assert examples, f"protocol {name} has no examples in pipeline/protocols/{name}.py"
    for example in examples:
        assert type(example.parameters) is PROTOCOLS[name].parameters
        assert 1 <= example.last_epoch <= 4, "too many streams to enumerate"


@every_case
def test_mechanism_round_trips_through_json(case: Case) -> None:
    body = json.loads(json.dumps(case.law.to_json(), allow_nan=False))
    assert case.protocol.law(case.parameters).from_json(body) == case.law


@every_case
def test_reports_have_the_registered_shape(case: Case) -> None:
    for words in case.send(case.mixed_values(200), case.generator(1)):
        assert words.dtype == case.message_format.dtype
        assert words.ndim == 2
        assert words.shape[1] == case.message_format.width


@every_case
def test_guarantee_stays_within_the_requested_parameters(case: Case) -> None:
    requested = case.protocol.examples[case.number].parameters
    guarantee = case.protocol.randomizer(case.law).guarantee
    assert 0 < guarantee.epsilon <= requested.epsilon
    assert 0 <= guarantee.delta <= getattr(requested, "delta", 0.0)


REMOVAL_WHERE_PUBLISHED = {"jl_hh", "laplace_histogram", "sparse_recovery"}
"""Protocols whose paper defines neighbors by removal. All others replace the values of a user."""


@every_case
def test_guarantee_states_neighbors_and_that_presence_is_public(case: Case) -> None:
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


@every_case
def test_exact_law_probabilities_sum_to_one(case: Case) -> None:
    """Checks the reference that the suite compares with."""
    for views in case.views.values():
        assert sum(views.values()) == 1
        assert min(views.values()) > 0
