"""What every kind of published numbers says of itself fits what is published."""

from __future__ import annotations

import numpy as np
import pytest

from dpstream.aggregators.published import Published
from dpstream.aggregators.smoothed_estimates import SmoothedEstimates
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.results.kinds.registry import kind_of
from dpstream.pipeline.results.questions import Boxes, Count, Items, Quantiles, Query, Top
from dpstream.pipeline.results.series import SeriesError, triples_of
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import Fate
from tests.support import shown_jobs
from tests.support.shown_jobs import COUNT, HOURS, LEARNING, MODES, WORDS

MODE_COUNTS = shown_jobs.items(40.0, 75.0, 30.0)
HOUR_COUNTS = shown_jobs.numbers(1, 5, 30, 20, 9, 3, 2, 1)
PUBLISHED = [
    pytest.param(COUNT, shown_jobs.count(40.0), "40 (95 %: 30 to 50)", id="count"),
    pytest.param(LEARNING, shown_jobs.count(40.0), "gradient, % of clip: 40.0 (95 %: 30.2 to 49.8)",
                 id="measure"),
    pytest.param(MODES, MODE_COUNTS, "bus, or tram: 75 (95 %: 65 to 85)", id="items"),
    pytest.param(HOURS, HOUR_COUNTS, "median 30 (95 %: 20 to 40)", id="numbers"),
    pytest.param(WORDS, shown_jobs.found(i17=40.0, i3=20.0), "16: 40 (95 %: 30 to 50)",
                 id="found"),
]  # fmt: skip


def deployed(text: str) -> DeployedJob:
    return deploy_job(parse_job(text), deployed_at=0, deployment=bytes(16))


def record(estimate: Published | None, epoch: int = 2) -> EstimateRecord:
    return EstimateRecord(bytes(16), epoch, Fate.RELEASED, 0, 90, 100, estimate, {"epsilon": 1.0})


@pytest.mark.parametrize(("text", "estimate", "headline"), PUBLISHED)
def test_a_headline_is_one_number_with_its_interval_or_says_that_there_is_none(
    text: str, estimate: Published, headline: str
) -> None:
    domain = deployed(text).domain
    kind = kind_of(domain)
    assert str(kind.headline(domain, record(estimate))) == headline
    assert str(kind.headline(domain, record(None))).endswith("no estimate")


@pytest.mark.parametrize(("text", "estimate", "headline"), PUBLISHED)
def test_all_that_was_published_is_asked_for(text: str, estimate: Published, headline: str) -> None:
    domain = deployed(text).domain
    answers = Query(domain, kind_of(domain).everything(domain)).answers(estimate)
    assert [answer.value for answer in answers] == estimate.intervals[0].tolist()


@pytest.mark.parametrize(("text", "estimate", "headline"), PUBLISHED)
def test_series_are_found_by_their_ids_and_have_numbers(
    text: str, estimate: Published, headline: str
) -> None:
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
    with pytest.raises(SeriesError, match="is none of this job's"):
        kind.find(domain, "q0.1")


@pytest.mark.parametrize(("text", "estimate", "headline"), PUBLISHED[:4])
def test_what_is_looked_back_at_is_of_the_kind_that_was_published(
    text: str, estimate: Published, headline: str
) -> None:
    kind = kind_of(deployed(text).domain)
    values = estimate.intervals[:1]
    smoothed = SmoothedEstimates(
        values, np.array([5.0]), np.array([9.8]), np.array([False]), np.array([100])
    )
    found = kind.looked_back(smoothed, 0, 80)
    assert type(found) is type(estimate)
    assert found.to_json() == estimate.to_json()


def test_an_overview_shows_the_largest_items_or_the_quartiles() -> None:
    later = shown_jobs.items(80.0, 0.0, 20.0)
    records = [record(MODE_COUNTS), record(None, 3), record(later, 4)]
    overviews = {
        text: kind_of(deployed(text).domain).overview(records, 2) for text in (MODES, COUNT)
    }
    assert overviews == {MODES: Items((1, 2)), COUNT: Count()}
    hours = kind_of(deployed(HOURS).domain)
    assert hours.overview([], 2) == Quantiles((0.25, 0.5, 0.75))


def test_a_question_is_steady_about_no_more_than_so_many() -> None:
    records = [record(MODE_COUNTS)]
    assert Top(2).steady(records, 3) == Items((2, 1))
    assert Top(3).steady(records, 1) == Items((2,))
    assert Items().steady(records, 2) == Items((1, 2))
    assert Items((3, 1, 2)).steady(records, 2) == Items((3, 1))
    assert Quantiles((0.1, 0.5)).steady(records, 1) == Quantiles((0.1,))
    domain = deployed(HOURS).domain
    every = kind_of(domain).everything(domain)
    assert isinstance(every, Boxes)
    assert every.steady(records, 2) == Boxes(every.boxes[:2])
    assert Count().steady(records, 1) == Count()


def test_more_numbers_than_may_be_watched_are_not_watched() -> None:
    modes, words = deployed(MODES).domain, deployed(WORDS).domain
    assert kind_of(modes).watched(modes, 3) == Items()
    assert kind_of(modes).watched(modes, 2) is None
    assert kind_of(words).watched(words, 20) is None


def test_only_items_of_a_list_are_the_same_at_every_epoch_and_have_places() -> None:
    modes, words = deployed(MODES), deployed(WORDS)
    assert kind_of(modes.domain).same_items
    assert kind_of(modes.domain).ranks(modes, record(MODE_COUNTS))[2] == (1, 1)
    assert not kind_of(words.domain).same_items
    assert kind_of(words.domain).ranks(words, record(shown_jobs.found(i17=40.0, i3=20.0))) == {}
    hours = deployed(HOURS)
    assert not kind_of(hours.domain).same_items
    assert kind_of(hours.domain).ranks(hours, record(HOUR_COUNTS)) == {}
