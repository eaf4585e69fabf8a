"""Test that the plan of each compared protocol matches the plan of a job with that protocol."""

from __future__ import annotations

from typing import Any

import pytest

from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.planning.job_plan import Plan, plan
from dpstream.pipeline.results.compared_protocols import Alternative, least_error
from tests.support.new_jobs import new_job

pytestmark = pytest.mark.slow

USERS, MINIMUM, EPOCHS = 2_500, 2_000, 32


def job_of(protocol: str, *, epochs: int = EPOCHS, **parameters: Any) -> Job:
    return new_job(
        "side-by-side", protocol, {"epsilon": 1, **parameters}, count=epochs, minimum=MINIMUM
    )


def planned(protocol: str, *, compared: bool = True, **parameters: Any) -> Plan:
    return plan(job_of(protocol, **parameters), USERS, compared=compared)


def shown(alternative: Alternative) -> tuple[str, int | None, float, float, str]:
    return (
        alternative.protocol,
        alternative.max_changes,
        alternative.rmse,
        alternative.messages_per_user,
        alternative.trust,
    )


def own(made: Plan, changes: int | None) -> tuple[str, int | None, float, float, str]:
    return (made.protocol, changes, made.rmse, made.messages_per_user, made.guarantee.trust)


def test_each_listed_alternative_matches_a_separate_plan_for_it() -> None:
    shared: dict[str, Any] = {"delta": 1e-6, "max_changes": 2}
    made = planned("shuffled_counts", **shared)
    first, *others = made.alternatives
    assert first.planned
    assert not any(other.planned for other in others)
    assert made.messages_unit == "horizon"
    assert shown(first) == own(made, 2)
    expected = [
        own(planned("shuffled_counts", compared=False, **shared), 2),
        own(planned("shuffled_counts", compared=False, delta=1e-6), None),
        own(planned("value_stream", compared=False, max_changes=2), 2),
        own(planned("future_rand", compared=False, max_changes=2), 2),
        own(planned("sampled_response", compared=False), None),
    ]
    assert sorted(map(shown, made.alternatives), key=str) == sorted(expected, key=str)


def by_stage(alternative: Alternative) -> bool:
    return not alternative.needs_no_trust and "honest" not in alternative.trust


SETS: dict[str, Any] = {"delta": 1e-6, "domain": ["a", "b", "c"], "items": 2}


@pytest.mark.parametrize(
    "protocol", ["count_min", "single_message", "projective_geometry", "hadamard", "fragments"]
)
def test_plan_for_item_sets_compares_the_counting_protocols(protocol: str) -> None:
    made = planned(protocol, **SETS)
    ours, *others = made.alternatives
    assert (ours.protocol, ours.rmse, ours.planned) == (protocol, made.rmse, True)
    counted = {"projective_geometry", "single_message", "count_min"}
    assert {each.protocol for each in others} >= counted - {protocol}
    for each in others:
        dummies = {"dummies": "shuffle"} if by_stage(each) else {}
        same = planned(each.protocol, compared=False, **SETS, **dummies)
        assert each.rmse == same.rmse, each.protocol


@pytest.mark.parametrize(
    ("protocol", "epochs", "parameters"),
    [
        ("hadamard_values", 4, {"max_changes": 2, "domain": ["a", "b", "c"]}),
        ("range_values", 4, {"max_changes": 2, "low": 0, "high": 8, "buckets": 8}),
        ("shuffled_counts", 4, {"delta": 1e-6, "domain": ["a", "b", "c"]}),
        ("projective_geometry", 1, {"domain": ["a", "b", "c"]}),
    ],
)
def test_plan_suggests_sampling_users_for_items_at_few_epochs(
    protocol: str, epochs: int, parameters: dict[str, Any]
) -> None:
    made = plan(job_of(protocol, epochs=epochs, **parameters), USERS, compared=True)
    values = {key: parameters[key] for key in parameters if key not in ("max_changes", "delta")}
    same = plan(job_of("sampled_response", epochs=epochs, **values), USERS, compared=False)
    (sampled,) = (each for each in made.alternatives if each.protocol == "sampled_response")
    assert shown(sampled) == own(same, None)
    if protocol in ("hadamard_values", "range_values"):
        assert least_error(made.alternatives) == sampled


def test_plan_compares_sampling_of_items_with_tracking_of_changes() -> None:
    made = plan(
        job_of("sampled_response", epochs=170, domain=["a", "b", "c"]), USERS, compared=True
    )
    others = {(each.protocol, each.max_changes) for each in made.alternatives[1:]}
    assert others == {("hadamard_values", 2), ("hadamard_values", 4)}
    better = least_error(made.alternatives)
    assert better is not None
    assert better.protocol == "hadamard_values"
