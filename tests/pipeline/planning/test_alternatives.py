"""Continual counts by several protocols side by side: the same numbers as each one's own plan."""

from __future__ import annotations

from typing import Any

import pytest

from dpstream.pipeline.cli.output import number
from dpstream.pipeline.cli.plan_lines import show_plan
from dpstream.pipeline.jobs.job_files import Job, make_job
from dpstream.pipeline.planning.alternatives import Alternative, least_error, under_another_trust
from dpstream.pipeline.planning.plan import Plan, plan

pytestmark = pytest.mark.slow

USERS, MINIMUM, EPOCHS = 2_500, 2_000, 32


def job_of(protocol: str, *, epochs: int = EPOCHS, **parameters: Any) -> Job:
    return make_job(
        {
            "name": "side-by-side",
            "protocol": protocol,
            "parameters": {"epsilon": 1, **parameters},
            "epochs": {"count": epochs},
            "shuffle": {"minimum": MINIMUM},
        }
    )


def planned(protocol: str, *, compared: bool = True, **parameters: Any) -> Plan:
    return plan(job_of(protocol, **parameters), USERS, compared=compared)


def shown(alternative: Alternative) -> tuple[str, int | None, float, float, str]:
    return (
        alternative.protocol,
        alternative.changes,
        alternative.rmse,
        alternative.messages_per_user,
        alternative.trust,
    )


def own(made: Plan, changes: int | None) -> tuple[str, int | None, float, float, str]:
    return (made.protocol, changes, made.rmse, made.messages_per_user, made.guarantee.trust)


def test_all_have_the_numbers_of_their_own_plans() -> None:
    shared: dict[str, Any] = {"delta": 1e-6, "changes": 2}
    made = planned("shuffled_counts", **shared)
    first, *others = made.alternatives
    assert first.planned
    assert not any(other.planned for other in others)
    assert made.messages_unit == "horizon"
    assert shown(first) == own(made, 2)
    expected = [
        own(planned("shuffled_counts", compared=False, **shared), 2),
        own(planned("shuffled_counts", compared=False, delta=1e-6), None),
        own(planned("value_stream", compared=False, changes=2), 2),
        own(planned("future_rand", compared=False, changes=2), 2),
    ]
    assert sorted(map(shown, made.alternatives), key=str) == sorted(expected, key=str)


def test_items_have_alternatives_too() -> None:
    items = [f"item{number}" for number in range(6)]
    shared: dict[str, Any] = {"delta": 1e-6, "domain": items, "cells": "count_min"}
    made = planned("shuffled_counts", **shared, changes=3)
    first, counts, local = made.alternatives
    assert shown(first) == own(made, 3)
    every_epoch = planned("shuffled_counts", compared=False, **shared)
    assert shown(counts) == own(every_epoch, None)
    # The first item of a user is a change to shuffled protocols, and none to the other.
    assert local.protocol == "hadamard_values"
    alone = planned(local.protocol, compared=False, changes=2, domain=items)
    assert shown(local) == own(alone, 2)


@pytest.mark.parametrize("protocol", ["value_stream", "erlingsson"])
def test_yes_or_no_is_compared_with_all_that_count_it(protocol: str) -> None:
    made = planned(protocol, changes=2)
    first, *others = made.alternatives
    assert first.planned
    assert shown(first) == own(made, 2)
    shared: dict[str, Any] = {"compared": False, "changes": 2}
    shuffled = [
        planned("shuffled_counts", delta=1e-6, dummies=dummies, **shared)
        for dummies in ("poisson", "shuffle")
    ]
    alone = [
        planned(name, **shared) for name in ("value_stream", "future_rand") if name != protocol
    ]
    expected = [own(each, 2) for each in alone + shuffled]
    assert [shown(each) for each in others] == expected
    # The stage adds noise once, and nobody sends dummies.
    assert shuffled[1].rmse < shuffled[0].rmse
    assert [each.messages_per_user for each in others][-1] == EPOCHS
    assert {each.protocol: each.delta > 0 for each in made.alternatives} == {
        each.protocol: each.protocol == "shuffled_counts" for each in made.alternatives
    }
    least = least_error(made.alternatives)
    assert (None if least is None else least.protocol) == (
        None if protocol == "value_stream" else "value_stream"
    )


@pytest.mark.parametrize(
    ("protocol", "own_parameters", "other", "other_parameters"),
    [
        ("value_stream", {}, "shuffled_counts", {"delta": 1e-6, "dummies": "shuffle"}),
        ("shuffled_counts", {"delta": 1e-6}, "value_stream", {}),
    ],
)
def test_another_trust_is_told_with_the_numbers_of_its_own_plan(
    capsys: pytest.CaptureFixture[str],
    protocol: str,
    own_parameters: dict[str, Any],
    other: str,
    other_parameters: dict[str, Any],
) -> None:
    made = planned(protocol, changes=2, **own_parameters)
    expected = planned(other, compared=False, changes=2, **other_parameters)
    found = under_another_trust(made.alternatives)
    assert found is not None
    assert shown(found) == own(expected, 2)
    assert (found.epsilon, found.delta) == (expected.guarantee.epsilon, expected.guarantee.delta)
    show_plan(made)
    who = "nobody" if other == "value_stream" else "the shuffle stage"
    delta = ", delta 1e-06" if expected.guarantee.delta else ""
    line = f"if {who} may be trusted: {number(expected.rmse)} users at epsilon 1{delta}, by {other}"
    # Terminals that are narrow break it.
    assert line in " ".join(capsys.readouterr().out.split())


def test_other_protocols_have_none_and_nobody_pays_for_what_was_not_asked() -> None:
    assert planned("count_min", delta=1e-6, domain=["a", "b"]).alternatives == ()
    cheap = planned("shuffled_counts", compared=False, delta=1e-6, changes=2)
    assert (cheap.alternatives, cheap.contributors) == ((), ())
