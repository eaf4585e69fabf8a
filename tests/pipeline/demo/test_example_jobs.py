"""The example jobs about the events of an app, each simulated and held to the events themselves."""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from dpstream.pipeline import demo
from dpstream.pipeline.devices.producer_input import load_input
from dpstream.pipeline.devices.users import load_job_users
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import load_job
from dpstream.pipeline.results.query_options import default_query
from dpstream.pipeline.simulation.simulated_job import Simulation, coverage
from dpstream.pipeline.simulation.trials import run_trials
from experiments.prepare_app_events import EVENTS, ROSTER, written

FOLDER = Path(demo.__file__).parent
EPOCHS = {"app-activity": 52, "search-retention": 12, "session-minutes": 8}


@cache
def rows(name: str) -> list[dict[str, str]]:
    with gzip.open(FOLDER / name, "rt") as file:
        return list(csv.DictReader(file))


@cache
def simulated(name: str) -> Simulation:
    job = load_job(FOLDER / f"{name}.yaml")
    log = load_input(job, FOLDER / EVENTS, users=load_job_users(job, FOLDER / ROSTER))
    deployed = deploy_job(job, deployed_at=0, deployment=bytes(16))
    (simulation,) = run_trials(deployed, log, 1, seed=1)
    return simulation


def truths(name: str, epoch: int) -> Mapping[str, float]:
    """Return the ground truth of a simulation by item."""
    simulation = simulated(name)
    items = simulation.job.domain.nameable
    assert items is not None
    return dict(zip(items, simulation.ground_truth[epoch].tolist(), strict=True))


def moments(row: dict[str, str]) -> datetime:
    return datetime.fromisoformat(row["ts"])


def active_users(since: datetime, until: datetime, event: str | None = None) -> set[str]:
    return {
        row["user_id"]
        for row in rows(EVENTS)
        if since <= moments(row) < until and event in (None, row["event"])
    }


def test_the_events_are_those_that_the_script_makes_up() -> None:
    for name, data in written().items():
        assert gzip.decompress((FOLDER / name).read_bytes()) == data


@pytest.mark.parametrize("name", EPOCHS)
def test_example_jobs_run_to_the_end_with_the_stated_errors(name: str) -> None:
    simulation = simulated(name)
    assert len(simulation.records) == EPOCHS[name]
    # Errors of an epoch's items are correlated, so the share of one run varies.
    share = coverage([simulation])
    assert share is not None
    assert share >= 0.85


@pytest.mark.parametrize("epoch", [1, 4, 40, 52])
def test_activity_by_platform_is_that_of_the_events(epoch: int) -> None:
    start = datetime(2024, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))
    end = start + timedelta(weeks=epoch)
    platform = {row["user"]: row["os"] for row in rows(ROSTER)}
    found = truths("app-activity", epoch)
    for measure, weeks in (("wau", 1), ("mau", 4)):
        users = active_users(end - timedelta(weeks=weeks), end)
        assert found[measure] == len(users)
        for group in ("ios", "android", "web"):
            of_group = sum(platform[user] == group for user in users)
            assert found[f"{measure}: platform={group}"] == of_group
        others = sum(platform[user] == "tv" for user in users)
        assert found[f"{measure}: platform=other"] == others


def test_retention_by_month_of_first_search_is_that_of_the_events() -> None:
    months = [f"2024-{month:02}" for month in range(1, 13)]
    first: dict[str, str] = {}
    searched = defaultdict(set)
    for row in rows(EVENTS):
        if row["event"] == "search":
            first.setdefault(row["user_id"], row["ts"][:7])
            searched[row["ts"][:7]].add(row["user_id"])
    for epoch in (1, 5, 12):
        found = truths("search-retention", epoch)
        for cohort in months[:epoch]:
            users = {user for user, month in first.items() if month == cohort}
            used = len(users & searched[months[epoch - 1]])
            assert found[f"used=yes,cohort={cohort}"] == used
            assert found[f"used=no,cohort={cohort}"] == len(users) - used
        never = sum(first.get(row["user"], "9999") > months[epoch - 1] for row in rows(ROSTER))
        assert found["used=no,cohort=never"] == never


def test_minutes_by_plan_and_arm_are_those_of_the_events() -> None:
    own = {row["user"]: (row["plan"], row["arm"]) for row in rows(ROSTER)}
    start = datetime.fromisoformat("2024-03-11T00:00Z")
    minutes, sessions = defaultdict[str, float](float), defaultdict[str, float](float)
    for row in rows(EVENTS):
        if row["event"] == "session_end" and start <= moments(row) < start + timedelta(weeks=1):
            minutes[row["user_id"]] += float(row["duration"])
            sessions[row["user_id"]] += 1
    found = truths("session-minutes", 3)
    for plan, arm in set(own.values()):
        group = [user for user, each in own.items() if each == (plan, arm)]
        for name, numbers, most in (("minutes", minutes, 120), ("sessions", sessions, 4)):
            mean = np.mean([min(numbers[user], most) for user in group])
            assert found[f"{name}: plan={plan}, arm={arm}"] == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize("name", EPOCHS)
def test_answers_are_compared_with_the_truth_of_their_own_row(name: str) -> None:
    simulation = simulated(name)
    query: Any = default_query(simulation.job.domain)
    for record in simulation.records[:4]:
        known = truths(name, record.epoch)
        answers = query.answers(record.estimate, simulation.ground_truth[record.epoch])
        assert answers
        for answer in answers:
            assert answer.ground_truth == known[answer.name], answer.name
