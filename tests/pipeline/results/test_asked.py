"""Questions about estimates: how they are written, what they answer, and what cannot be asked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dpstream.aggregators.estimate import GAP, NORMAL_95, Estimate
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.range_estimates import RangeEstimates
from dpstream.pipeline.results.asked import Asked, make_query
from dpstream.pipeline.results.questions import Boxes, Query
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.boxes import Box, QueryError
from dpstream.pipeline.values.numbers import NumericDomain
from dpstream.pipeline.values.value_domains import BOOLEAN, CategoryDomain, ValueDomain
from dpstream.topics.manifests import Fate

MODES = CategoryDomain(("walk", "bus", "car, own", "car, shared"))
ITEMS = ItemEstimates(np.array([40.0, 75.0, -25.0, 30.0]), 10.0, 19.6, 500, 100, (GAP,))
HOURS = NumericDomain(0, 80, 4)
VALUES = RangeEstimates(
    np.array([10.0, 50.0, -20.0, 60.0]), 4.3, 8.5, 500, 100, level_variances=(math.inf, 25.0)
)
TRUTH = np.array([20, 40, 0, 40])


def asked(domain: ValueDomain, *, norm_sub: bool = False, **options: Any) -> Query:
    query = make_query(domain, Asked(**options), norm_sub=norm_sub)
    assert query is not None
    return query


def record(estimate: Estimate | ItemEstimates | None, epoch: int = 3) -> EstimateRecord:
    return EstimateRecord(bytes(16), epoch, Fate.RELEASED, 0, 90, 100, estimate, {"epsilon": 1.0})


def test_items_come_in_the_order_in_which_they_were_asked_for() -> None:
    query = asked(MODES, items=["bus", "car, own", "walk", "bus"])
    answers = query.answers(ITEMS, TRUTH)
    assert [answer.name for answer in answers] == ["bus", "car, own", "walk"]
    assert [answer.value for answer in answers] == [75, -25, 40]
    assert [answer.truth for answer in answers] == [40, 0, 20]
    assert (answers[0].low, answers[0].high) == (75 - 19.6, 75 + 19.6)
    assert answers[0].norm_sub is None


def test_the_largest_items_come_with_their_simultaneous_interval() -> None:
    query = asked(MODES, top=2)
    assert [answer.name for answer in query.answers(ITEMS)] == ["bus", "walk"]
    body = query.to_json(record(ITEMS))
    assert body["simultaneous_half_width"] == pytest.approx(19.6 / NORMAL_95 * 2.4977, rel=1e-4)
    assert [each["name"] for each in body["items"]] == ["bus", "walk"]
    assert body["flags"] == [GAP]


def test_norm_sub_stands_beside_the_estimates_and_adds_up() -> None:
    answers = asked(MODES, norm_sub=True).answers(ITEMS)
    fitted = [answer.norm_sub for answer in answers]
    assert [answer.value for answer in answers] == ITEMS.values.tolist()
    assert all(each is not None and each >= 0 for each in fitted)
    assert math.fsum(each or 0.0 for each in fitted) == pytest.approx(100)


def test_ranges_are_sums_of_buckets_with_their_own_deviation() -> None:
    answers = asked(HOURS, ranges=["0:40", " :20", "60:", "20:80"], norm_sub=True).answers(
        VALUES, TRUTH
    )
    assert [answer.name for answer in answers] == ["0:40", ":20", "60:", "20:80"]
    assert [answer.value for answer in answers] == [60, 10, 60, 90]
    assert [answer.truth for answer in answers] == [60, 20, 40, 80]
    deviations = [VALUES.range(*ends).standard_deviation for ends in [(0, 2), (0, 1), (3, 4)]]
    assert [answer.standard_deviation for answer in answers[:3]] == deviations
    assert answers[0].norm_sub is not None
    assert 0 <= answers[0].norm_sub <= 100


def test_ends_of_buckets_may_be_written_as_decimals() -> None:
    domain = NumericDomain(0, 1, 8)
    assert asked(domain, ranges=["0.125:0.375"]).question == Boxes(
        (Box("0.125:0.375", (1,), (3,)),)
    )
    assert asked(NumericDomain(-1, 1, 10), ranges=["-0.8:-0.2"]).question == Boxes(
        (Box("-0.8:-0.2", (1,), (4,)),)
    )


def test_quantiles_are_values_with_intervals() -> None:
    low, median = asked(HOURS, quantiles=["0.1", "0.5"]).answers(VALUES, TRUTH)
    assert (low.name, median.name) == ("0.1", "0.5")
    found = VALUES.quantile(0.5)
    assert median.value == HOURS.edge(found.value)
    assert (median.low, median.high) == (HOURS.edge(found.low), HOURS.edge(found.high))
    assert median.standard_deviation is None
    assert low.truth == 10
    assert median.truth == 35


def test_where_there_is_no_estimate_there_is_no_answer() -> None:
    query = asked(HOURS, quantiles=["0.5"])
    assert query.answers(None) == ()
    body = query.to_json(record(None))
    assert body["quantiles"] == []
    empty = RangeEstimates(np.zeros(4), 0.0, 0.0, 0, 0, level_variances=(0.0, 0.0))
    assert query.answers(empty) == ()


@pytest.mark.parametrize(
    ("domain", "options", "message"),
    [
        (MODES, {"items": ["bus"], "top": 2}, "--item and --top do not go together"),
        (BOOLEAN, {"quantiles": ["0.5"]}, "for jobs over numbers; this one counts one value"),
        (MODES, {"items": ["buss"]}, "--item: 'buss' is not in the domain; did you mean 'bus'?"),
        (HOURS, {"items": ["bus"]}, "--item is for jobs over items; of numbers give --range or"),
        (HOURS, {"ranges": ["20"]}, "--range: '20' is no range: give LOW:HIGH"),
        (HOURS, {"ranges": ["40:20"]}, "--range: '40:20' is empty: give the lower end first"),
        (HOURS, {"ranges": ["20:90"]}, "90 lies outside of the values, 0 to 80"),
        (HOURS, {"ranges": ["20:50"]}, "50 lies within a bucket; the nearest edges are 40 and 60"),
        (HOURS, {"quantiles": ["50"]}, "--quantile: 50 does not lie between 0 and 1"),
        (HOURS, {"quantiles": ["0.5"], "norm_sub": True}, "not with --quantile"),
    ],
)
def test_what_cannot_be_asked_is_one_line_that_says_what_can(
    domain: ValueDomain, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(QueryError) as raised:
        asked(domain, **options)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
