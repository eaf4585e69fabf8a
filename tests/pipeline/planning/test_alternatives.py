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


def test_who_must_be_trusted_is_told_and_what_it_is_worth() -> None:
    by_name = {each.protocol: each for each in planned("shuffled_counts", delta=1e-6).alternatives}
    assert "2,000 honest contributors" in by_name["shuffled_counts"].trust
    assert by_name["future_rand"].trust.startswith("nobody")
    # Without a number of changes all are followed, by every protocol.
    assert by_name["shuffled_counts"].changes is None
    for name in ("value_stream", "future_rand"):
        assert by_name[name].changes == EPOCHS
    assert by_name["value_stream"].trusted == by_name["future_rand"].trusted
    assert by_name["future_rand"].rmse > 10 * by_name["shuffled_counts"].rmse


def test_whoever_has_the_stage_add_dummies_compares_others_that_do() -> None:
    found = planned("shuffled_counts", delta=1e-6, changes=2, dummies="shuffle").alternatives
    shuffled = [each.trust for each in found if each.protocol.startswith("shuffled")]
    assert len(shuffled) == 2
    assert not any("honest contributors" in trust for trust in shuffled)


def test_items_have_alternatives_too() -> None:
    items = [f"item{number}" for number in range(20)]
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


def test_over_few_epochs_a_protocol_that_pays_for_each_is_named_with_the_same_loss() -> None:
    items = [f"item{number}" for number in range(1024)]
    made = {
        epochs: plan(
            job_of("hadamard_values", epochs=epochs, changes=0, domain=items), USERS, compared=True
        )
        for epochs in (1, 2, 16, 17)
    }
    for epochs, each in made.items():
        first, shuffled, *others = each.alternatives
        assert first.planned
        assert shuffled.protocol == "shuffled_counts"
        if epochs == 17:
            assert others == []
            continue
        (other,) = others
        alone = plan(
            job_of("projective_geometry", epochs=epochs, epsilon=1 / epochs, domain=items), USERS
        )
        assert shown(other) == (*own(alone, None)[:3], epochs, alone.guarantee.trust)
        assert alone.guarantee.stream_epsilon == pytest.approx(1)
        assert (other.rmse < first.rmse) == (epochs < 2)
    (ours, _, other) = made[1].alternatives
    assert ours.rmse / other.rmse == pytest.approx(1.41, abs=0.01)


@pytest.mark.parametrize("protocol", ["value_stream", "future_rand", "erlingsson"])
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
        (
            "value_stream",
            {},
            "shuffled_counts",
            {"delta": 1e-6, "dummies": "shuffle"},
        ),
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


ITEMS = [f"item{number}" for number in range(6)]


@pytest.mark.parametrize("carrier", ["values", pytest.param("stream", marks=pytest.mark.verify)])
@pytest.mark.parametrize(
    ("kind", "domain", "other"),
    [
        ("hadamard", {"domain": ITEMS}, {"domain": ITEMS, "cells": "count_min"}),
        (
            "range",
            {"low": 0, "high": 80, "buckets": 8},
            {"domain": {"low": 0, "high": 80, "buckets": 8}},
        ),
    ],
)
def test_of_items_and_numbers_another_trust_is_told_too(
    capsys: pytest.CaptureFixture[str],
    carrier: str,
    kind: str,
    domain: dict[str, Any],
    other: dict[str, Any],
) -> None:
    made = planned(f"{kind}_{carrier}", changes=1, **domain)
    # The first value of a user is a change there.
    asked: dict[str, Any] = {"delta": 1e-6, "dummies": "shuffle", "changes": 2, **other}
    expected = planned("shuffled_counts", compared=False, **asked)
    found = under_another_trust(made.alternatives)
    assert found is not None
    assert shown(found) == own(expected, 2)
    assert (found.epsilon, found.delta) == (expected.guarantee.epsilon, expected.guarantee.delta)
    assert found.rmse < made.rmse
    show_plan(made)
    line = (
        f"if the shuffle stage may be trusted: {number(expected.rmse)} users at epsilon 1, "
        "delta 1e-06, by shuffled_counts"
    )
    assert line in " ".join(capsys.readouterr().out.split())


def test_what_is_paid_at_every_epoch_is_told_of_the_whole_horizon() -> None:
    made = plan(job_of("value_stream", epochs=3, changes=1), USERS, compared=True)
    for each in made.alternatives:
        assert 0.95 < each.epsilon <= 1 + 1e-9, each.protocol


def test_over_one_epoch_it_is_better_to_be_asked_once_with_all_of_epsilon() -> None:
    made = {
        epochs: plan(job_of("value_stream", epochs=epochs, changes=1), USERS, compared=True)
        for epochs in (1, 3, 16, 17)
    }
    for epochs, each in made.items():
        by_name = {other.protocol: other for other in each.alternatives}
        assert ("split_budget" in by_name) == (epochs <= 16)
        assert by_name["future_rand"].rmse > by_name["value_stream"].rmse
        least = least_error(each.alternatives)
        assert (None if least is None else least.protocol) == (
            "split_budget" if epochs == 1 else None
        )


def test_other_protocols_have_none_and_nobody_pays_for_what_was_not_asked() -> None:
    assert planned("count_min", delta=1e-6, domain=["a", "b"]).alternatives == ()
    cheap = planned("shuffled_counts", compared=False, delta=1e-6, changes=2)
    assert (cheap.alternatives, cheap.contributors) == ((), ())


@pytest.mark.verify
def test_items_and_numbers_by_letters_are_named_beside_those_by_changes() -> None:
    """And the other way round, each with what its own plan says; letters are twice as accurate."""
    domains: dict[str, dict[str, Any]] = {
        "hadamard": {"domain": [f"item{number}" for number in range(6)]},
        "range": {"low": 0, "high": 80, "buckets": 8},
    }
    for kind, domain in domains.items():
        plans = {
            carrier: plan(
                job_of(f"{kind}_{carrier}", epochs=64, changes=4, **domain), USERS, compared=True
            )
            for carrier in ("values", "stream")
        }
        for carrier, other in (("values", "stream"), ("stream", "values")):
            first, second, _ = plans[carrier].alternatives
            assert first.planned
            assert shown(first) == own(plans[carrier], 4)
            assert shown(second) == own(plans[other], 4)
        by_letters, by_changes, _ = plans["values"].alternatives
        assert by_letters.rmse < 0.5 * by_changes.rmse
