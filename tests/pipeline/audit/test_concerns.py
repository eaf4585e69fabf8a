"""With a job those attacks are run that are about something it has, and the others are named."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.audit.concerns import ANYBODY
from pipeline.audit.findings import Verdict
from pipeline.audit.interrupted_producers import attack_interrupted
from pipeline.audit.plans import FULL, QUICK, attacks_around_job, attacks_around_protocol
from pipeline.audit.record_sizes import attack_sizes
from pipeline.conformance.finding import find_cases
from pipeline.jobs.job_files import make_job
from pipeline.protocols.registry import PROTOCOLS

DEVICES = {"collected reports", "device clients", "windows of devices"}
PRODUCERS = {"presence", "interruptions", "membership"}
OTHERS = {
    *("dummies of the stage", "sums of the stage", "crowds", "boxes and shares", "sizes"),
    *("spending", "ledger", "lanes"),
}
ALWAYS = {"kept files", "windows written again"}


@pytest.mark.parametrize(
    ("sections", "about"),
    [
        ({}, PRODUCERS),
        ({"devices": {}}, DEVICES),
        ({"population": "people"}, PRODUCERS | {"spending", "ledger"}),
        ({"shuffle": {"minimum": 10, "instances": 2}}, PRODUCERS | {"sizes"}),
        ({"topics": {"partitions": 2, "lanes": 2}}, PRODUCERS | {"lanes"}),
    ],
    ids=["plain", "devices", "population", "instances", "lanes"],
)
def test_of_what_a_job_has(sections: dict[str, Any], about: set[str]) -> None:
    job = make_job(
        {
            "name": "asked",
            "protocol": "future_rand",
            "parameters": {"epsilon": 1, "changes": 1},
            "epochs": {"count": 2, "start": "2024-01-01", "length": "P1D"},
            **sections,
        }
    )
    chosen, left_out = attacks_around_job(job, QUICK)
    names = [attack.name for attack in chosen if attack.subject != "future_rand-0"]
    assert set(names) == about | ALWAYS
    missing = {name.partition(" (")[0] for name, why in left_out.items() if why != ANYBODY}
    assert missing == (DEVICES | PRODUCERS | OTHERS) - about
    # Full audits look at what all protocols rest on, too.
    more, without = attacks_around_job(job, FULL)
    assert ANYBODY in left_out.values()
    assert len(more) - len(chosen) == list(left_out.values()).count(ANYBODY)
    assert without == {name: why for name, why in left_out.items() if why != ANYBODY}


def test_of_noise_that_the_stage_can_add_for_a_protocol() -> None:
    for name, added in (("count_min", "dummies of the stage"), ("split_budget", None)):
        chosen, _ = attacks_around_protocol(name, QUICK)
        names = {attack.name for attack in chosen}
        assert {each for each in names if each.endswith("of the stage")} == {added} - {None}
        assert {(f"{name}-0", "interruptions"), (f"{name}-0", "sizes")} <= {
            (attack.subject, attack.name) for attack in chosen
        }


@pytest.mark.parametrize("name", list(PROTOCOLS))
def test_producers_of_every_protocol_are_attacked(name: str) -> None:
    """Whoever audits one protocol in full runs these, whatever its producers wait for."""
    (case, *_) = find_cases(name)
    found = [*attack_interrupted(case), *attack_sizes(case)]
    assert found
    assert [each for each in found if each.verdict is Verdict.CONVICTED] == []
