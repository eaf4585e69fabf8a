"""Predicted errors of measures by size of group, and what private breakdowns cost."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dpstream.pipeline.jobs.job_files import Job, make_job
from dpstream.pipeline.planning.job_plan import Plan, plan

USERS = 100_000
VALUES = {"values": ["a", "b", "c"]}


def planned(users: int = USERS, by_size: tuple[float, ...] = (), **keys: Any) -> tuple[Job, Plan]:
    given = {
        "name": "app",
        "epochs": {"count": 12, "start": "2026-01-01", "length": "P1M"},
        "parameters": {"epsilon": 4, "max_changes": 2},
        "measures": {"mau": {"type": "active"}},
        "attributes": {"plan": VALUES},
        "by": ["plan"],
    }
    job = make_job(given | keys)
    return job, plan(job, users, by_size=by_size)


def test_a_public_group_has_the_error_of_its_own_users() -> None:
    public = {"plan": {**VALUES, "public": True}}
    _, made = planned(attributes=public, by_size=(0.5, 0.25, 0.01), protocol="panels")
    _, alone = planned(25_000, attributes=None, by=None, protocol="value_stream")
    (mau,) = made.measures
    assert [group.users for group in mau.groups] == [50_000, 25_000, 1_000]
    assert mau.total is not None
    assert mau.total.rmse == pytest.approx(made.rmse)
    assert mau.groups[1].rmse == pytest.approx(alone.rmse, rel=1e-6)
    assert mau.groups[2].relative == mau.groups[2].rmse / 1_000


@pytest.mark.parametrize(("protocol", "least"), [("panels", 100), ("sampled_panels", 300)])
def test_the_plan_says_which_groups_are_too_small_to_be_shown(protocol: str, least: int) -> None:
    """If each of 300 users answers at 4 of 12 epochs, 100 answer at an epoch."""
    public = {"plan": {**VALUES, "public": True}}
    for users, told in ((least, 0), (least - 1, 1)):
        made = planned(attributes=public, by_size=(0.5, users / USERS), protocol=protocol)[1]
        notes = [note for note in made.notes if f"fewer than {least} users" in note]
        assert len(notes) == told
        assert all("by_minimum, 100" in note for note in notes)


def test_asking_a_sample_adds_its_error() -> None:
    measures = {"mau": {"type": "active"}, "days": {"type": "count", "at_least": 9}}
    _, made = planned(measures=measures, attributes=None, by=None, protocol="panels")
    _, half = planned(USERS // 2, attributes=None, by=None, protocol="value_stream")
    # Half of the users are asked, so the worst share adds sqrt(n) / 2.
    expected = math.hypot(2 * half.rmse, math.sqrt(USERS) / 2)
    assert made.measures[0].total is not None
    assert [made.rmse, made.measures[0].total.rmse] == pytest.approx([expected] * 2, rel=1e-6)


@pytest.mark.parametrize(("trust", "thresholds"), [("none", 0.25), ("shuffle", 0.0)])
def test_the_thresholds_of_a_mean_add_their_error(trust: str, thresholds: float) -> None:
    asked: dict[str, Any] = {"attributes": None, "by": None, "trust": trust}
    alike = {"protocol": "value_stream"} if trust == "none" else {}
    if trust == "shuffle":
        asked["shuffle"] = {"minimum": 1_000}
        asked["parameters"] = {"epsilon": 4, "delta": 1e-6, "max_changes": 2}
    mean = {"minutes": {"type": "sum", "number": "minutes", "mean": {"low": 0, "high": 1}}}
    protocol = "panels" if trust == "none" else "shuffled_panels"
    _, made = planned(**{**asked, "measures": mean, "protocol": protocol})
    _, alone = planned(**{**asked, **alike})
    added = made.rmse**2 - alone.rmse**2
    assert added == pytest.approx(USERS * thresholds, rel=1e-3, abs=1.0)


def test_the_plan_names_the_cheaper_way_first() -> None:
    _, private = planned()
    _, public = planned(attributes={"plan": {**VALUES, "public": True}})
    cheaper = next(note for note in private.notes if "public: true" in note)
    assert f"{public.measures[0].groups[0].rmse:,.0f} users" in cheaper
    (cells,) = (each for each in private.measures if each.groups)
    assert cells.name == "mau by plan"
    assert cells.groups[0].rmse > 3 * public.measures[0].groups[0].rmse
    assert not any("public: true" in note for note in public.notes)


def test_the_plan_names_separate_jobs_of_the_same_loss() -> None:
    asked: dict[str, Any] = {
        "attributes": None,
        "by": None,
        "trust": "shuffle",
        "shuffle": {"minimum": 1_000},
    }
    parameters = {"epsilon": 1, "delta": 1e-6, "max_changes": 4}
    several = {"wau": {"type": "active"}, "mau": {"type": "active", "within": 4}}
    _, made = planned(**{**asked, "measures": several, "parameters": parameters})
    halved = {**parameters, "epsilon": 0.5, "delta": 5e-7}
    _, alone = planned(**{**asked, "parameters": halved})
    (note,) = (each for each in made.notes if "job of its own" in each)
    assert f"{alone.rmse:,.0f} users" in note
    assert f"{made.rmse:,.0f} users" in note
    assert alone.rmse < made.rmse / 3
    _, single = planned(**{**asked, "parameters": parameters})
    assert not any("job of its own" in each for each in single.notes)


def test_groups_summed_by_the_shuffler_have_noise_of_their_own() -> None:
    asked: dict[str, Any] = {"trust": "shuffle", "shuffle": {"minimum": 1_000}}
    asked["parameters"] = {"epsilon": 1, "delta": 1e-6, "max_changes": 2}
    public = {"plan": {**VALUES, "public": True}}
    _, made = planned(**{**asked, "attributes": public, "protocol": "shuffled_panels"})
    _, alone = planned(**{**asked, "attributes": None, "by": None})
    (mau,) = made.measures
    assert mau.total is not None
    # Three values, and other.
    assert mau.groups[0].rmse == pytest.approx(alone.rmse, rel=1e-3)
    assert [made.rmse, mau.total.rmse] == pytest.approx([2 * alone.rmse] * 2, rel=1e-3)
