"""Test kinds of published numbers, and queries on them."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

from dpstream.aggregators.estimate import GAP, Published
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.range_estimates import RangeEstimates
from dpstream.aggregators.smoothed_estimates import SmoothedEstimates
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.results.counts_queries import Query
from dpstream.pipeline.results.kinds import kind_of
from dpstream.pipeline.results.query_options import QueryOptions, make_query
from dpstream.pipeline.results.series import SeriesError, triples_of
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.boxes import QueryError
from dpstream.pipeline.values.numeric_values import NumericDomain
from dpstream.pipeline.values.value_domains import BOOLEAN, CategoryDomain, ValueDomain
from dpstream.topics.manifests import WindowStatus
from tests.support import shown_jobs
from tests.support.shown_jobs import COUNT, HOURS, MODES, WORDS, numbers

MODE_COUNTS = shown_jobs.items(40.0, 75.0, 30.0)
HOUR_COUNTS = shown_jobs.numbers(1, 5, 30, 20, 9, 3, 2, 1)
PUBLISHED = [
    pytest.param(COUNT, shown_jobs.count(40.0), "40 (95 % CI 30 to 50)", id="count"),
    pytest.param(MODES, MODE_COUNTS, "bus, or tram: 75 (95 % CI 65 to 85)", id="items"),
    pytest.param(HOURS, HOUR_COUNTS, "median 30 (95 % CI 20 to 40)", id="numbers"),
    pytest.param(WORDS, shown_jobs.found(i17=40.0, i3=20.0), "16: 40 (95 % CI 30 to 50)",
                 id="heavy hitters"),
]  # fmt: skip


@cache
def deployed(text: str) -> DeployedJob:
    return deploy_job(parse_job(text), deployed_at=0, deployment=bytes(16))


def record(estimate: Published | None, epoch: int = 2) -> EstimateRecord:
    return EstimateRecord(
        bytes(16), epoch, WindowStatus.RELEASED, 0, 90, 100, estimate, {"epsilon": 1.0}
    )


@pytest.mark.parametrize(("text", "estimate", "headline"), PUBLISHED)
def test_headline_of_a_result_is_one_number_with_its_interval(
    text: str, estimate: Published, headline: str
) -> None:
    domain = deployed(text).domain
    kind = kind_of(domain)
    assert str(kind.headline(domain, record(estimate))) == headline
    assert str(kind.headline(domain, record(None))).endswith("no estimate")


@pytest.mark.parametrize(("text", "estimate", "headline"), PUBLISHED)
def test_query_without_restriction_returns_each_estimate(
    text: str, estimate: Published, headline: str
) -> None:
    domain = deployed(text).domain
    answers = Query(domain, kind_of(domain).everything(domain)).answers(estimate)
    assert [answer.value for answer in answers] == estimate.intervals[0].tolist()


@pytest.mark.parametrize(("text", "estimate", "headline"), PUBLISHED)
def test_series_are_selected_by_id(text: str, estimate: Published, headline: str) -> None:
    domain = deployed(text).domain
    kind = kind_of(domain)

    def ranked(count: int) -> list[int]:
        return [17, 3][:count] if text is WORDS else [2, 1, 3][:count]

    listed = kind.listed(domain, ranked)
    for series in (*listed, *kind.chosen(domain, ranked, 2), *kind.small(domain, ranked, 2)):
        assert kind.find_all(domain, [series.id, series.id]) == (series,)
    largest = kind.largest(domain, estimate, 2)
    assert len(largest) == (0 if kind.single else 2)
    quantiles = kind.quantiles_of(domain, estimate)
    assert quantiles.shape == (len(kind.quantiles), 3)
    assert np.isfinite(triples_of((*listed, *largest), estimate, quantiles)).all()
    assert not np.isfinite(kind.quantiles_of(domain, None)).any()
    with pytest.raises(SeriesError, match="expected "):
        kind.find(domain, "q0.1")


@pytest.mark.parametrize(("text", "estimate", "headline"), PUBLISHED[:3])
def test_smoothed_estimate_has_the_same_type_as_a_published_estimate(
    text: str, estimate: Published, headline: str
) -> None:
    kind = kind_of(deployed(text).domain)
    values = estimate.intervals[:1]
    smoothed = SmoothedEstimates(
        values, np.array([5.0]), np.array([9.8]), np.array([False]), np.array([100])
    )
    smoothed_one = kind.smoothed_estimate(smoothed, 0, 80)
    assert type(smoothed_one) is type(estimate)
    assert smoothed_one.to_json() == estimate.to_json()


def test_ranges_computed_together_match_ranges_computed_one_by_one() -> None:
    job = parse_job(
        "name: h\nprotocol: range_values\n"
        "parameters: {epsilon: 8, max_changes: 1, low: 0, high: 80, buckets: 8}\n"
        "epochs: {count: 4}\n"
    )
    estimate = numbers(3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0)
    series = kind_of(job.domain).find_all(job.domain, ["r0:10", "r10:40", "r0:80"])
    rows = triples_of(series, estimate, np.zeros((3, 3)))
    for row, (start, end) in zip(rows, ((0, 1), (1, 4), (0, 8)), strict=True):
        one = estimate.range(start, end)
        assert row.tolist() == pytest.approx([one.value, one.ci95_low, one.ci95_high])


MODE_DOMAIN = CategoryDomain(("walk", "bus", "car, own", "car, shared"))
ITEMS = ItemEstimates(np.array([40.0, 75.0, -25.0, 30.0]), 10.0, 19.6, 500, 100, (GAP,))
HOUR_DOMAIN = NumericDomain(0, 80, 4)
VALUES = RangeEstimates(
    np.array([10.0, 50.0, -20.0, 60.0]), 4.3, 8.5, 500, 100, level_variances=(math.inf, 25.0)
)
GROUND_TRUTH = np.array([20, 40, 0, 40])


def query_options(domain: ValueDomain, *, norm_sub: bool = False, **options: Any) -> Query:
    query = make_query(domain, QueryOptions(**options), norm_sub=norm_sub)
    assert query is not None
    return query


def test_norm_sub_estimates_are_nonnegative_and_sum_to_the_population() -> None:
    answers = query_options(MODE_DOMAIN, norm_sub=True).answers(ITEMS)
    fitted = [answer.norm_sub for answer in answers]
    assert [answer.value for answer in answers] == ITEMS.values.tolist()
    assert all(each is not None and each >= 0 for each in fitted)
    assert math.fsum(each or 0.0 for each in fitted) == pytest.approx(100)


def test_range_is_the_sum_of_its_buckets_with_its_own_error() -> None:
    answers = query_options(
        HOUR_DOMAIN, ranges=["0:40", " :20", "60:", "20:80"], norm_sub=True
    ).answers(VALUES, GROUND_TRUTH)
    assert [answer.name for answer in answers] == ["0:40", ":20", "60:", "20:80"]
    assert [answer.value for answer in answers] == [60, 10, 60, 90]
    assert [answer.ground_truth for answer in answers] == [60, 20, 40, 80]
    deviations = [VALUES.range(*ends).standard_error for ends in [(0, 2), (0, 1), (3, 4)]]
    assert [answer.standard_error for answer in answers[:3]] == deviations
    assert answers[0].norm_sub is not None
    assert 0 <= answers[0].norm_sub <= 100


def test_quantiles_are_values_with_intervals() -> None:
    low, median = query_options(HOUR_DOMAIN, quantiles=["0.1", "0.5"]).answers(VALUES, GROUND_TRUTH)
    assert (low.name, median.name) == ("0.1", "0.5")
    quantile = VALUES.quantile(0.5)
    assert median.value == HOUR_DOMAIN.edge(quantile.value)
    assert (median.ci95_low, median.ci95_high) == (
        HOUR_DOMAIN.edge(quantile.ci95_low),
        HOUR_DOMAIN.edge(quantile.ci95_high),
    )
    assert median.standard_error is None
    assert low.ground_truth == 10
    assert median.ground_truth == 35


@pytest.mark.parametrize(
    ("domain", "options", "message"),
    [
        (BOOLEAN, {"quantiles": ["0.5"]}, "requires a job over numbers; this job counts one value"),
        (
            HOUR_DOMAIN,
            {"items": ["bus"]},
            "--item requires a job over items; use --range or --quantile",
        ),
        (HOUR_DOMAIN, {"ranges": ["20"]}, "--range: '20' is not a range; expected LOW:HIGH"),
        (
            HOUR_DOMAIN,
            {"ranges": ["40:20"]},
            "--range: range '40:20' is empty; expected the lower end first",
        ),
        (HOUR_DOMAIN, {"ranges": ["20:90"]}, "90 is out of range; expected 0 to 80"),
        (
            HOUR_DOMAIN,
            {"ranges": ["20:50"]},
            "50 is inside a bucket; the nearest edges are 40 and 60",
        ),
        (HOUR_DOMAIN, {"quantiles": ["50"]}, "--quantile: got 50; expected"),
        (HOUR_DOMAIN, {"quantiles": ["0.5"], "norm_sub": True}, "not to --quantile"),
    ],
)
def test_invalid_query_is_explained_in_one_line(
    domain: ValueDomain, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(QueryError) as raised:
        query_options(domain, **options)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
