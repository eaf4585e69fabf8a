"""Likelihood ratios of everything that can be seen."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from dpstream.pipeline.audit.exact import enumerate_losses, largest_loss
from dpstream.pipeline.audit.findings import Verdict
from dpstream.pipeline.audit.plans import small_case
from dpstream.pipeline.conformance.cases import Case
from dpstream.pipeline.conformance.finding import find_cases
from dpstream.pipeline.jobs.job_files import make_job


def case_of(name: str, number: int = 0) -> Case:
    return find_cases(name)[number]


def claiming(case: Case, **changed: Any) -> Any:
    return replace(case.protocol.randomizer(case.law).guarantee, **changed)


@pytest.mark.parametrize(("name", "claimed"), [("future_rand", 1.0), ("split_budget", 1.0)])
def test_an_exact_guarantee_is_observed(name: str, claimed: float) -> None:
    (finding,) = enumerate_losses(case_of(name))
    assert finding.verdict is Verdict.EXACT
    assert finding.observed == pytest.approx(claimed, abs=1e-9)
    assert finding.false_alarm == 0


def test_a_loss_with_a_delta_is_the_one_that_the_claim_is_about() -> None:
    case = case_of("shuffled_counts")
    (finding,) = enumerate_losses(case)
    assert (finding.claimed, finding.delta) == (1.5, 0.05)
    # Whatever is claimed: it is no claim that is shown.
    for claimed in (1.5, 3.0):
        observed = largest_loss(case, claiming(case, epsilon=claimed)).observed
        assert observed == pytest.approx(1.5, abs=1e-3)


def test_what_is_lost_over_all_epochs_is_compared_with_what_is_said_of_it() -> None:
    epoch, stream = enumerate_losses(case_of("projective_geometry"))
    assert epoch.observed == pytest.approx(1.0)
    assert stream.observed == pytest.approx(2.0)


@pytest.mark.parametrize("less", [1e-12, 0.1])
def test_who_claims_less_than_is_lost_is_convicted(less: float) -> None:
    case = case_of("future_rand")
    finding = largest_loss(case, claiming(case, epsilon=1.0 - less))
    assert finding.convicted
    assert "can be told from" in finding.reason


def test_who_claims_a_smaller_delta_is_convicted() -> None:
    case = case_of("shuffled_counts")
    assert largest_loss(case, claiming(case, delta=0.0499)).convicted
    assert not largest_loss(case, claiming(case, delta=0.0501)).convicted


def test_what_only_one_neighbour_sends_is_an_infinite_loss() -> None:
    class Open(Case):
        views = {(0,): {(((0,),),): Fraction(1)}, (1,): {(((1,),),): Fraction(1)}}  # noqa: RUF012

    case = case_of("split_budget")
    opened = Open(case.protocol, 0, case.make_exact)
    finding = largest_loss(opened, claiming(case))
    assert finding.convicted
    assert finding.observed == math.inf
    assert finding.to_json()["observed"] == "infinite"


@pytest.mark.parametrize(("protocol", "epochs"), [("future_rand", 3), ("value_stream", 2)])
def test_of_a_job_no_more_epochs_are_enumerated_than_of_its_protocol(
    protocol: str, epochs: int
) -> None:
    """Letters of three epochs are three million views of every stream."""
    job = make_job(
        {
            "name": "long",
            "protocol": protocol,
            "parameters": {"epsilon": 4, "changes": 4},
            "epochs": {"count": 170},
        }
    )
    case = small_case(job)
    assert case is not None
    assert case.last_epoch == epochs
