"""Test shares, ratios and differences of a job with measures, from simulated panels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, cast

import numpy as np
import pytest

from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.panel_estimates import PanelEstimates
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.results.counts_queries import Items, Query
from dpstream.pipeline.results.derived_queries import PairQuery, derived_query
from dpstream.pipeline.results.epoch_cells import epoch_cells
from dpstream.pipeline.results.roll_ups import roll_ups
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.boxes import QueryError
from dpstream.pipeline.values.panels import PanelDomain
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.panels import ONE
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.manifests import WindowStatus
from tests.support.new_jobs import new_job

RUNS = 150
USERS = 7_200
PLANS = ("wau=no,plan=free", "wau=yes,plan=free", "wau=no,plan=pro", "wau=yes,plan=pro")
QUESTIONS: list[dict[str, Any]] = [
    {"name": "wau", "answer": "boolean"},
    {"name": "mau", "answer": "boolean"},
    {"name": "spent", "answer": "mean", "low": 10, "high": 30},
    {"name": "visits", "answer": "mean", "low": 0, "high": 8},
    {"name": "wau", "answer": "labels", "labels": PLANS, "by": ["plan"], "share": 2},
]
GROUPS = [{"attributes": {"os": os}} for os in ("ios", "web")]
OF_GROUP = np.arange(USERS) % 3 // 2
# The users of ios are two thirds.
PLACE = np.arange(USERS) // 3 % 20


def answers() -> np.ndarray[Any, Any]:
    wau, mau = PLACE < 5 + 4 * OF_GROUP, PLACE < 14
    spent, visits = PLACE * ONE // 40, (PLACE + OF_GROUP) * ONE // 25
    plan = (PLACE % 3 == 0).astype(np.int64)
    return np.stack([wau, mau, spent, visits, 1 + wau + 2 * plan], axis=1).astype(np.int64)


VALUES = answers()


@cache
def job(count: int = 2) -> DeployedJob:
    parameters = {"questions": QUESTIONS, "groups": GROUPS, "by": [["os"]], "by_minimum": 100}
    made = new_job(
        "app", "panels", {"epsilon": 6.0, "max_changes": 1, **parameters}, count=count, minimum=50
    )
    return deploy_job(made, deployed_at=0, deployment=bytes(16))


@cache
def runs() -> tuple[EstimateRecord, ...]:
    return tuple(_simulated())


def _simulated() -> Iterator[EstimateRecord]:
    rng = seeded_generator(8)
    for _ in range(RUNS):
        devices, aggregator = job().randomizer(), job().aggregator()
        devices.enroll(USERS, rng, {"group": OF_GROUP})
        aggregator.add(1, written_out(devices.report(1, VALUES, None, rng)), None)
        estimate = aggregator.estimate(1, Participation.constant(2, USERS))
        assert isinstance(estimate, PanelEstimates)
        yield record_of(estimate)


def record_of(estimate: PanelEstimates, epoch: int = 1) -> EstimateRecord:
    return EstimateRecord(bytes(16), epoch, WindowStatus.RELEASED, 1, USERS, USERS, estimate, {})


def coverages(truths: dict[str, float], **options: Any) -> dict[str, float]:
    query = derived_query(job(), Query(job().domain, Items()), **options)
    assert query is not None
    held: dict[str, list[bool]] = {name: [] for name in truths}
    for record in runs():
        for answer in query.answers_of(record):
            if answer.name in truths and answer.refused is None:
                held[answer.name].append(answer.ci95_low <= truths[answer.name] <= answer.ci95_high)
    assert all(len(each) > 0.9 * RUNS for each in held.values())
    return {name: float(np.mean(each)) for name, each in held.items()}


def rate(of: int, among: Any = True) -> float:
    return float(VALUES[np.broadcast_to(among, USERS), of].mean())


IOS, WEB, PRO = OF_GROUP == 0, OF_GROUP == 1, VALUES[:, 4] > 2
WAU, MAU, SPENT, VISITS = range(4)


def money(among: Any = True) -> float:
    return 10 + 20 * rate(SPENT, among) / ONE


@pytest.mark.parametrize(
    ("options", "truths"),
    [
        (
            {"ratios": ["wau/mau"]},
            {
                "wau/mau": rate(WAU) / rate(MAU),
                "wau/mau: os=ios": rate(WAU, IOS) / rate(MAU, IOS),
                "wau/mau: os=web": rate(WAU, WEB) / rate(MAU, WEB),
            },
        ),
        (
            {"ratios": ["cost"], "declared": {"cost": ("spent", "visits")}},
            {"cost": money() / (8 * rate(VISITS) / ONE)},
        ),
        (
            {"ratios": ["spent/wau"]},
            {"spent/wau": money() / rate(WAU)},
        ),
        (
            {"shares": True},
            {
                "wau": rate(WAU),
                "wau: os=ios": rate(WAU, IOS),
                "wau: plan=pro": rate(WAU, PRO),
                "wau=no: plan=pro": 1 - rate(WAU, PRO),
            },
        ),
        (
            {"differences": ["plan=pro,plan=free"]},
            {"wau: plan=pro,plan=free": rate(WAU, PRO) - rate(WAU, ~PRO)},
        ),
    ],
)
def test_intervals_of_measures_hold(options: dict[str, Any], truths: dict[str, float]) -> None:
    found = coverages(truths, **options)
    # The standard deviation of a coverage is .018.
    assert all(each > 0.89 for each in found.values()), found


def test_difference_of_public_groups_holds_for_the_effect() -> None:
    """The users are fixed here, so intervals that see them as a sample are too wide."""
    truths = {
        "wau: os=web,os=ios": rate(WAU, WEB) - rate(WAU, IOS),
        "mau: os=web,os=ios": 0.0,
    }
    found = coverages(truths, differences=["os=web,os=ios", "mau: os=web,mau: os=ios"])
    assert all(each > 0.89 for each in found.values()), found
    of_ratio = coverages(
        {"wau/mau: os=web,os=ios": (rate(WAU, WEB) - rate(WAU, IOS)) / rate(MAU)},
        ratios=["wau/mau"],
        differences=["os=web,os=ios"],
    )
    assert all(each > 0.89 for each in of_ratio.values()), of_ratio


def test_sentences_and_refusals_name_groups() -> None:
    record = runs()[0]
    estimate = record.estimate
    assert isinstance(estimate, PanelEstimates)
    everything = Query(job().domain, Items())
    query = derived_query(job(), everything, differences=["os=web,os=ios"])
    assert isinstance(query, PairQuery)
    names = ["wau", "mau", "spent", "visits"]
    assert query.names == [f"{name}: os=web,os=ios" for name in names]
    assert not query.percent
    first, _, spent, _ = query.sentences(record)
    assert first.startswith("wau: os=web,os=ios: ")
    assert "points more of os=web than of os=ios (" in first
    assert "points" not in spent
    web = np.array(["os=web" in row for row in job().domain.items or ()])
    values, errors = (
        np.where(web, np.nan, each) for each in (estimate.values, estimate.standard_errors)
    )
    hidden = record_of(replace(estimate, values=values, standard_errors=errors))
    ratios = derived_query(job(), everything, ratios=["wau/mau", "wau: os=ios+wau: os=web/mau"])
    assert isinstance(ratios, PairQuery)
    refused = {each.name: each.refused for each in ratios.answers_of(hidden)}
    why = "too few devices of the group answered"
    assert refused == {
        "wau/mau": None,
        "wau/mau: os=ios": None,
        "wau/mau: os=web": why,
        "wau: os=ios+wau: os=web/mau": why,
    }
    shares = derived_query(job(), everything, shares=True)
    assert shares is not None
    answers = {each.name for each in shares.answers_of(hidden)}
    assert "wau: os=ios" in answers
    assert not {"spent", "wau: os=web"} & answers
    for option, message in (
        (
            {"differences": ["os=mac,os=web"]},
            "two of the groups os=ios, os=web, plan=free",
        ),
        ({"ratios": ["wau/dau"]}, "--ratio: 'dau'"),
        ({"ratios": ["wau/mau", "mau/wau"], "differences": ["os=ios,os=web"]}, "exclusive"),
    ):
        with pytest.raises(QueryError, match=message):
            derived_query(job(), everything, **cast(Any, option))


def test_covariances_of_rows_follow_from_their_devices() -> None:
    record = runs()[0]
    estimate, cells = record.estimate, epoch_cells(job(), record, (), None)
    assert isinstance(estimate, PanelEstimates)
    assert cells is not None
    place = {label: number for number, label in enumerate(job().domain.items or (), start=1)}
    total, ios, web = place["wau"], place["wau: os=ios"], place["wau: os=web"]
    assert cells.covariance([total], [ios]) == pytest.approx(estimate.standard_errors[ios - 1] ** 2)
    assert cells.covariance([total], [place["mau"]]) == cells.covariance([ios], [web]) == 0
    both = cells.amount([ios, web])
    assert both.value == pytest.approx(estimate.values[total - 1])
    assert both.deviation == pytest.approx(estimate.standard_errors[total - 1])
    # Two labels of one question: the devices of one do not have the other.
    yes, no = place["wau: plan=pro"], place["wau=no: plan=pro"]
    expected = estimate.covariance(yes - 1, no - 1)
    assert cells.covariance([yes], [no]) == pytest.approx(expected)
    assert expected < 0
    # A mean is a sum over its users.
    spent, size = place["spent: os=ios"], estimate.sizes[place["spent: os=ios"] - 1]
    amount = cells.amount([spent])
    assert amount.value == pytest.approx(size * estimate.values[spent - 1])
    assert amount.deviation == pytest.approx(size * estimate.standard_errors[spent - 1])
    assert cells.users([ios, web]) == pytest.approx(USERS)
    assert (cells.users([total, ios]), cells.apart([ios], [web])) == (None, True)
    assert cells.apart([total], [ios]) is False


def test_sums_over_a_period_hold_and_would_not_with_independent_errors() -> None:
    """Thresholds and the sample are those of all epochs: the errors of a mean add up linearly."""
    rng, epochs, found = seeded_generator(9), 3, []
    for _ in range(50):
        devices, aggregator = job(epochs).randomizer(), job(epochs).aggregator()
        devices.enroll(USERS, rng, {"group": OF_GROUP})
        participation, records, errors = Participation.constant(epochs, USERS), [], []
        for epoch in range(1, epochs + 1):
            aggregator.add(epoch, written_out(devices.report(epoch, VALUES, None, rng)), None)
            estimate = aggregator.estimate(epoch, participation)
            assert isinstance(estimate, PanelEstimates)
            records.append(record_of(estimate, epoch))
            errors.append(estimate.standard_errors)
        (total,) = roll_ups(job(epochs), records, epochs, sums=True)
        assert isinstance(total.estimate, PanelEstimates)
        found.append((total.estimate, np.sqrt(np.square(errors).sum(axis=0))))
    domain = job().domain
    assert isinstance(domain, PanelDomain)
    truth = epochs * domain.ground_truth(VALUES, OF_GROUP)
    rows = [row.label.startswith("spent") for row in domain.rows]
    misses = np.abs([each.values - truth for each, _ in found])[:, rows]
    held = misses < 1.96 * np.array([each.standard_errors for each, _ in found])[:, rows]
    independent = misses < 1.96 * np.array([each for _, each in found])[:, rows]
    # The standard deviation of a coverage is .018, if rows are independent.
    assert 0.9 < held.mean() < 0.99
    assert independent.mean() < 0.89
