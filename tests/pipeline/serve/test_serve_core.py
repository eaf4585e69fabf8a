"""Test the pure functions of the live page: histories, reduced curves and texts."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Published
from dpstream.aggregators.heavy_hitters import HeavyHitters
from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.results.privacy_sentences import (
    budget_line,
    budget_of,
    posterior_odds,
)
from dpstream.pipeline.results.series import VALUE
from dpstream.pipeline.serve.history import History, Point
from dpstream.pipeline.serve.reduction import reduce_curve
from dpstream.pipeline.serve.views import JobState, top
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.value_domains import BOOLEAN
from dpstream.topics.manifests import WindowStatus
from tests.support.shown_jobs import MODES, count, gap

values = st.lists(
    st.one_of(st.none(), st.floats(-1e6, 1e6, allow_nan=False)), min_size=1, max_size=400
)


def as_array(known: list[float | None]) -> NDArray[np.float64]:
    return np.array([math.nan if each is None else each for each in known])


@given(values, st.integers(1, 20))
def test_downsampled_curve_keeps_extremes_and_gaps(known: list[float | None], columns: int) -> None:
    curve = as_array(known)
    epochs = np.arange(3, 3 + len(curve))
    reduction = reduce_curve(epochs, [curve], columns)
    kept = reduction.kept
    assert len(kept) <= 3 * columns + 2
    assert kept[[0, -1]].tolist() == [0, len(curve) - 1]
    assert (np.diff(kept) > 0).all()
    shown = curve[kept]
    if not np.isnan(curve).all():
        assert np.nanmin(shown) == np.nanmin(curve)
        assert np.nanmax(shown) == np.nanmax(curve)
    # The reduced curve hides no gap between two of its gaps.
    if reduction.columns is not None:
        column = (epochs - epochs[0]) * columns // (epochs[-1] - epochs[0] + 1)
        with_gap = set(column[np.isnan(curve)].tolist())
        assert with_gap == set(reduction.columns[np.isnan(shown)].tolist())


def point(
    epoch: int, estimate: Published | None, window_status: WindowStatus = WindowStatus.RELEASED
) -> Point:
    return Point(b"", epoch, window_status, 1_000 * epoch, 90, 100, estimate, {}, np.zeros((0, 3)))


def test_history_accepts_each_epoch_once_in_order() -> None:
    history = History(BOOLEAN)
    assert [history.append(point(epoch, count(1.0))) for epoch in (3, 4, 4, 2, 7)] == [
        *(True, True, False, False, True)
    ]
    assert history.epochs().tolist() == [3, 4, 7]
    assert [each.epoch for each in history.after(3)] == [4, 7]
    assert history.at(5) is None
    assert history.part(4, 6) == slice(1, 2)
    assert history.part(None, None) == slice(0, 3)
    assert history.part(9, 3) == slice(3, 3)


def test_columns_of_estimates_get_a_row_per_epoch_of_the_history() -> None:
    history = History(BOOLEAN)
    for epoch in range(1, 201):
        history.append(point(epoch, gap(5.0) if epoch == 100 else count(float(epoch))))
    (column,) = history.triples([VALUE])
    assert column.shape == (200, 3)
    assert np.isnan(column[99]).all()
    assert np.isnan(column).sum() == 3
    history.append(point(201, count(None)))
    history.append(point(202, None, WindowStatus.EMPTY))
    assert np.isnan(history.triples([VALUE])[0][200:]).all()
    assert history.triples([VALUE])[0][198].tolist() == pytest.approx([199, 189.2, 208.8])


@pytest.mark.parametrize("epsilon", [0.001, 0.1, 1.0, 2.0, 4.0, 9.1, 13.5])
def test_posterior_odds_are_never_understated(epsilon: float) -> None:
    sentence = posterior_odds(epsilon)
    factor, stated, likely = (
        float(each.replace(",", ""))
        for each in re.findall(
            r"factor of ([\d,.]+) \(epsilon ([\d.]+)\).* ([\d.]+) % of cases", sentence
        )[0]
    )
    assert factor >= math.exp(epsilon)
    assert stated >= epsilon
    assert likely >= 100 * math.exp(epsilon) / (1 + math.exp(epsilon))
    assert factor <= 1.05 * math.exp(epsilon)
    assert likely < 100


def deployed(text: str, deployment: bytes = bytes(16)) -> DeployedJob:
    return deploy_job(parse_job(text), deployed_at=0, deployment=deployment)


def test_budget_sums_the_charges_of_all_deployments() -> None:
    job = deployed(MODES, b"1" * 16)
    own = Charge.of(job)
    earlier = replace(own, deployment="e" * 32, job="other", epsilon=0.1)
    stranger = replace(own, deployment="f" * 32, population="village", epsilon=100.0)
    body = budget_of(job, [own, *[earlier] * 2, stranger])
    assert body["charged"]["epsilon"] == 8.2
    assert body["remaining"]["epsilon"] == 11.8
    assert budget_line(body) == "epsilon 8.2 of 20 charged in total"
    assert any("3 deployments have charged" in words for words in body["description"])


def test_page_states_how_many_epochs_an_estimate_covers() -> None:
    job = deploy_job(
        parse_job(
            "name: words\nprotocol: sampled_response\nepochs: {count: 4}\n"
            "parameters: {epsilon: 4, domain: {bits: 24}}\n"
        ),
        deployed_at=0,
    )
    items, values = np.array([7, 9]), np.array([80.0, 50.0])
    for averaged, stated in ((None, False), (1, False), (3, True)):
        found = HeavyHitters(items, values, 5.0, 9.8, 20.0, 90, 100, averaged=averaged)
        point = Point.of(record_of(found), job.domain)
        history = History(job.domain)
        history.append(point)
        notes = top(JobState(job, history), point, 5)["notes"]
        assert any("means over 3 epochs" in note for note in notes) == stated
        assert len(notes) == 1 + stated


def record_of(found: HeavyHitters) -> EstimateRecord:
    return EstimateRecord(bytes(16), 3, WindowStatus.RELEASED, 0, 90, 100, found, {"epsilon": 4})
