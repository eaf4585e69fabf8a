"""Test that sentences on privacy state neither more nor less than the guarantee."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dpstream.pipeline.cli.output import guarantee_pairs
from dpstream.pipeline.jobs.budget_declarations import BudgetDeclaration
from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.results.privacy_sentences import (
    budget_line,
    budget_of,
    guarantee_description,
    posterior_odds,
)
from dpstream.randomizers.guarantee import (
    Guarantee,
    ShuffledStreams,
    attack_success_rate,
)
from tests.support.new_jobs import new_job

STREAM = Guarantee(1.0, 1e-6, "stream", "any two streams", "the shuffler to shuffle", "exact")


@pytest.mark.parametrize("delta", [0.0, 1e-6, 0.01, 0.3])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_posterior_probability_includes_delta(epsilon: float, delta: float) -> None:
    text = posterior_odds(epsilon, delta)
    percent = float(text.partition("right in at most ")[2].partition(" %")[0])
    assert 0 <= percent - 100 * attack_success_rate(epsilon, delta) < 0.1


def test_factor_for_a_stream_is_called_exact_and_factor_for_a_value_a_bound() -> None:
    value = Guarantee(1.0, 0.0, "value", "0 and 1", "none", "bound", stream_epsilon=4.65)
    single, whole = guarantee_description(value)[-2:]
    assert "about their value, if it never changes, by at most" in single
    assert single.endswith("This is a proven upper bound.")
    assert "This factor is exact" in whole


def test_sentence_about_shuffled_streams_states_which_users_are_covered() -> None:
    shuffled = ShuffledStreams(0.5, 1e-6, 10_000)
    local = replace(STREAM, delta=0.0, shuffled=shuffled)
    words = guarantee_description(local)[-1]
    assert words.startswith(
        "For a user who reports in every window, shuffled among 10,000 such users, it is a factor "
        "of 1.65 (epsilon 0.5). Larger shifts can occur"
    )
    assert "9,999 other honest users" in words
    rows = dict(guarantee_pairs(replace(local, horizons=1)))
    assert rows["if shuffled"].startswith(
        "epsilon 0.5, delta 1e-06 for a user's whole stream of one horizon, n times that for n"
    )
    once = replace(shuffled, one_window=True)
    several = replace(local, horizons=1, shuffled=once).over(2)
    words = guarantee_description(several)[-1]
    assert words.startswith(
        "For a user whose every report is shuffled among 10,000 of its window, it is a factor of "
        "2.72 (epsilon 1)"
    )


def job_with(**budget: float) -> Job:
    parameters = {"epsilon": 1, "delta": 1e-6, "domain": ["a", "b"]}
    return new_job(
        "fruits",
        "count_min",
        parameters,
        count=1,
        shuffle={"minimum": 1_000},
        population="people",
        **({"budget": budget} if budget else {}),
    )


def test_remaining_budget_is_rounded_down() -> None:
    job = deploy_job(job_with(epsilon=6.00092, delta=1e-5), deployed_at=0)
    body = budget_of(job, [Charge.of(job)])
    assert "6.001, 5 remains" in body["description"][-1]


def test_filtered_epsilon_is_omitted_if_charges_exceed_half_of_delta() -> None:
    def body(delta: float) -> dict[str, Any]:
        job = deploy_job(job_with(), deployed_at=0, deployment=bytes(16))
        many = replace(Charge.of(job), epsilon=0.02, delta=delta, horizons=1_000)
        declared = BudgetDeclaration(
            "people", 17.0, 1e-6, "dpstream budget", "by command", 5, True, "ticket", composed=True
        )
        return budget_of(job, [many], [declared])

    proven, unproven = body(5e-10), body(6e-10)
    assert isinstance(proven["filtered"], float)
    assert proven["filtered"] < 10
    assert proven["charged"]["epsilon"] == unproven["charged"]["epsilon"] == 20
    assert unproven["filtered"] is None


def test_unlimited_charge_is_stated_without_a_claim_that_its_job_still_runs() -> None:
    job = deploy_job(job_with(), deployed_at=0, deployment=bytes(16))
    ended = replace(Charge.of(job), job="ended", deployment="e" * 32, horizons=None)
    assert budget_of(job, [Charge.of(job), ended])["description"][0] == (
        "A recurring job about population people was deployed without a limit, so the total charge "
        "has no limit."
    )


def test_page_states_the_budget_for_a_period() -> None:
    epochs = {"count": 52, "renew": True, "start": "2024-01-01", "length": "P1W"}
    budget = {"epsilon": 5, "per": "P1Y"}
    job = deploy_job(
        new_job("weekly", "sampled_response", {"epsilon": 2}, epochs=epochs, budget=budget),
        deployed_at=0,
    )
    body = budget_of(job, [Charge.of(job)])
    assert body["description"][-1].startswith(
        "The budget is epsilon 5 in any year: charges count as 4; 1 remaining; job weekly declared "
    )
    assert not any("No budget" in each for each in body["description"])
    assert budget_line(body) == "epsilon 5 in any year: charges count as 4"
