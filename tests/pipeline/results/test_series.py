"""Curves: what an estimate says of each, and what is true of it."""

from __future__ import annotations

import numpy as np
import pytest

from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.results.kinds.registry import kind_of
from dpstream.pipeline.results.questions import QUARTILES, Quantiles, Query
from dpstream.pipeline.results.series import QUARTILE_SERIES, triples_of, truth_of
from dpstream.pipeline.values.numbers import NumericDomain
from tests.support.shown_jobs import numbers


def test_ranges_all_at_once_are_those_one_by_one() -> None:
    job = parse_job(
        "name: h\nprotocol: range_values\n"
        "parameters: {epsilon: 8, changes: 1, low: 0, high: 80, buckets: 8}\nepochs: {count: 4}\n"
    )
    estimate = numbers(3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0)
    series = kind_of(job.domain).find_all(job.domain, ["r0:10", "r10:40", "r0:80"])
    rows = triples_of(series, estimate, np.zeros((3, 3)))
    for row, (start, end) in zip(rows, ((0, 1), (1, 4), (0, 8)), strict=True):
        one = estimate.range(start, end)
        assert row.tolist() == pytest.approx([one.value, one.low, one.high])


def test_true_quantiles_are_those_that_queries_tell() -> None:
    domain = NumericDomain(0, 80, 8)
    truth = np.array([3, 1, 4, 1, 5, 9, 2, 6])
    estimate = numbers(*map(float, truth))
    answers = Query(domain, Quantiles(QUARTILES)).answers(estimate, truth)
    found = [truth_of(each, domain, estimate, truth) for each in QUARTILE_SERIES]
    assert found == [answer.truth for answer in answers]
    # 14 of 31 users lie below 50, 9 between 50 and 60.
    assert found[1] == pytest.approx(50 + 10 * (15.5 - 14) / 9)
    assert truth_of(QUARTILE_SERIES[0], domain, estimate, 0 * truth) is None
