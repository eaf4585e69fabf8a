"""What people were charged, on the page in a real browser, where their budget composes charges."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import expect

from dpstream.aggregators.estimate import Estimate
from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.jobs.stated_budgets import BY_COMMAND, StatedBudget
from tests.support.chromium import PATIENCE, Watched
from tests.support.served_page import ServedPage

pytestmark = [pytest.mark.browser, pytest.mark.slow]

WEEKLY = """
name: weekly
protocol: future_rand
parameters: {epsilon: 0.25, changes: 2}
epochs: {count: 8}
population: students
"""


@pytest.mark.verify
def test_a_budget_that_composes_charges_says_so_beside_what_they_add_up_to(
    served: ServedPage, watch: Callable[..., Watched], artefacts: Path
) -> None:
    """A hundred charges of epsilon 1/4 in a budget of 17: added they are more than it."""
    job = served.deploy(WEEKLY)
    own = Charge.of(job)
    served.publish(job, 1, [Estimate(4_000.0, 100.0, 3_804.0, 4_196.0, 20_000, 20_000)])
    budget = StatedBudget("students", 17.0, 1e-6, "a", BY_COMMAND, 5, True, "a", composed=True)
    weeks = (replace(own, deployment=f"{number:032x}") for number in range(99))
    served.say(budget, *weeks)
    seen = watch(served.address)
    seen.open("?job=weekly")
    tile = seen.page.locator(".tile").last
    expect(tile.locator(".figure")).to_have_text("ε 0.25")
    expect(tile.locator(".note")).to_have_text(
        "ε 15.2 of 17 charged in all, composed; 1.84 remains for each person", timeout=PATIENCE
    )
    account = seen.page.locator(".account")
    expect(account.locator("dt")).to_have_text(
        [
            "Stated by this job",
            "Charged to these people so far",
            "Composed, as their budget counts",
            "Remaining",
        ]
    )
    expect(account.locator("dd")).to_have_text(
        ["ε 0.25", "ε 25", "ε 15.2", re.compile("^ε 1.84, δ 5 ")]
    )
    seen.page.screenshot(path=artefacts / "composed-budget.png", full_page=True)

    # The page that is open follows what others charge the same people.
    served.say(replace(own, deployment="f" * 32, horizons=None))
    expect(tile.locator(".note")).to_have_text(
        "without end charged in all; no budget can be kept", timeout=PATIENCE
    )
    expect(account.locator("dd")).to_have_text(["ε 0.25", "without end", "no limit was set"])
    seen.assert_well_behaved()
