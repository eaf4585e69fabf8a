"""A hundred audits of what is whole: none convicts, as a recorded experiment.

Seen when it was written: 100 of 100 acquitted, of three protocols each.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.audit.audits import run_attacks
from pipeline.audit.plans import QUICK, attacks_on_protocol

RUNS = 100


@pytest.mark.verify
def test_a_hundred_clean_runs_are_acquitted() -> None:
    """Of attacks that draw: the others cannot convict by chance."""
    acquitted = 0
    for _ in range(RUNS):
        attacks = [
            attack
            for name in ("split_budget", "count_min", "single_message")
            for attack in attacks_on_protocol(name, replace(QUICK, trials=40))
            if attack.draws
        ]
        assert {attack.name for attack in attacks} == {"draws against the law", "released windows"}
        acquitted += not run_attacks(attacks).convicted
    print(f"{acquitted} of {RUNS} clean runs acquitted")
    assert acquitted == RUNS
