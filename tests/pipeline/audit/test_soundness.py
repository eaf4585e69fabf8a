"""A hundred audits of what is whole, as a recorded experiment: 100 of 100 were acquitted."""

from __future__ import annotations

import pytest

from dpstream.pipeline.audit.audits import Attack, run_attacks
from dpstream.pipeline.audit.plans import QUICK, attacks_on_protocol
from dpstream.pipeline.audit.sampling import Sample
from dpstream.pipeline.audit.subjects import job_of
from dpstream.pipeline.audit.targets import History
from dpstream.pipeline.conformance.finding import find_cases

RUNS = 100


@pytest.mark.verify
def test_a_hundred_clean_runs_are_acquitted() -> None:
    """Of attacks that draw: the others cannot convict by chance."""
    job = job_of(find_cases("split_budget")[0], epochs=1, minimum=1)
    sample = Sample("it", ("local reports",), job, History(job), job.guarantee(), 1_000)
    attacks = [
        attack
        for name in ("split_budget", "single_message")
        for attack in attacks_on_protocol(name, QUICK)
        if attack.draws
    ]
    attacks.append(Attack("it", "local reports", 1, sample.run))
    acquitted = sum(not run_attacks(attacks).convicted for _ in range(RUNS))
    print(f"{acquitted} of {RUNS} clean runs acquitted")
    assert acquitted == RUNS
