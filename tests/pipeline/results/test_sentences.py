"""Sentences for readers: words, dates, and no more than is known."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpstream.aggregators.estimate import CHANGES_USED, GAP, OUTSIDE, Estimate, Published
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.epoch_words import epoch_name
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.results.changes import changes
from dpstream.pipeline.results.kinds.registry import kind_of
from dpstream.pipeline.results.known_digits import known_count
from dpstream.pipeline.results.phrases import flag_words
from dpstream.pipeline.results.sentences import (
    change_words,
    epoch_sentence,
    hero_of,
    sentence_of,
)
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import Fate

COUNT = "name: count\nprotocol: future_rand\nparameters: {epsilon: 2, changes: 2}\n"
FOLLOWED = "name: count\nprotocol: value_stream\nparameters: {epsilon: 1, changes: 2}\n"
ITEMS = (
    "name: clinic\nprotocol: hadamard_values\n"
    "parameters: {epsilon: 8, changes: 1, domain: [chir, kard, uro]}\n"
)
WEEKS = "epochs: {count: 12, start: 2013-05-27, length: P1W}\n"
STUDENTS = "title: Students enrolled\nunit: students\n"


def deployed(text: str) -> DeployedJob:
    if "epochs:" not in text:
        text += "epochs: {count: 12}\n"
    return deploy_job(parse_job(text), deployed_at=0, deployment=bytes(16))


def record(
    estimate: Published | None,
    epoch: int = 2,
    fate: Fate = Fate.RELEASED,
    closed_at: datetime = datetime(2013, 9, 1, tzinfo=UTC),
) -> EstimateRecord:
    moment = int(1000 * closed_at.timestamp())
    return EstimateRecord(bytes(16), epoch, fate, moment, 20_000, 28_785, estimate, {})


def estimate(value: float, half: float, *flags: str) -> Estimate:
    return Estimate.around(value, half / 1.96, half, 20_000, 28_785, flags)


def items(*values: float, half: float = 300.0) -> ItemEstimates:
    return ItemEstimates(np.array(values, np.float64), half / 1.96, half, 20_000, 28_785)


@pytest.mark.parametrize(
    ("epochs", "name", "at"),
    [
        ("{count: 12}", "epoch 2", "at epoch 2"),
        (
            "{count: 12, start: 2013-05-27, length: P1W}",
            *("the week of 3 June 2013", "in the week of 3 June 2013"),
        ),
        ("{count: 12, start: 2013-06-02, length: P1D}", "3 June 2013", "on 3 June 2013"),
        ("{count: 12, start: 2013-05-01, length: P1M}", "June 2013", "in June 2013"),
        (
            "{count: 12, start: 2013-06-03T13:00, length: PT1H}",
            "the hour from 14:00 UTC on 3 June 2013",
            "in the hour from 14:00 UTC on 3 June 2013",
        ),
        (
            "{count: 12, start: 2013-06-02T06:00, length: P1D, timezone: Europe/Berlin}",
            "the day from 06:00 CEST on 3 June 2013",
            "in the day from 06:00 CEST on 3 June 2013",
        ),
    ],
)  # fmt: skip
def test_epochs_are_called_by_their_calendar(epochs: str, name: str, at: str) -> None:
    found = epoch_name(parse_job(f"{COUNT}epochs: {epochs}\n"), 2)
    assert (found.name, found.at) == (name, at)


def test_nobody_is_counted_below_zero() -> None:
    job = deployed(COUNT + WEEKS + STUDENTS)
    for value in (1_500.0, 0.0, -150.0, -4_000.0):
        told = str(epoch_sentence(job, record(estimate(value, 1_790))))
        assert told.startswith("Fewer than ")
        assert "-" not in told
        assert "between" not in told
        assert "%" not in told
    assert "Fewer than 1,700 students" in str(epoch_sentence(job, record(estimate(-150, 1_790))))
    assert "Fewer than 100 students" in str(epoch_sentence(job, record(estimate(-4_000, 1_790))))


def test_more_than_there_are_are_not_counted() -> None:
    job = deployed(COUNT + WEEKS + STUDENTS)
    few = Estimate.around(330, 66, 132, 13, 202)
    told = str(epoch_sentence(job, replace(record(few), population=202)))
    assert told.startswith("About 202 students enrolled in the week of 3 June 2013 (100 %), ")
    assert told.endswith("between 190 and 202.")
    nothing_known = Estimate.around(90, 200, 400, 2, 202)
    told = str(epoch_sentence(job, replace(record(nothing_known), population=202)))
    assert told.startswith("At most 202 students enrolled")
    headline = kind_of(job.domain).headline(job.domain, replace(record(few), population=202))
    assert str(headline) == "202 (95 %: 198 to 202)"
    assert (headline.value, headline.high) == (330, 462), "the numbers stay what was published"


@given(
    st.floats(-1e6, 1e6),
    st.floats(0, 1e6),
    st.one_of(st.none(), st.integers(1, 2_000_000)),
)
def test_rounding_claims_no_more_than_is_known(
    value: float, half: float, people: int | None
) -> None:
    known = known_count(value, value - half, value + half, people)
    assert 0 <= known.low <= known.high
    assert known.low <= max(value - half, 0) + 0.001
    within = value + half if people is None else min(value + half, people)
    assert people is None or known.high <= people
    assert known.high >= within - 0.001
    if not known.may_be_none:
        assert known.low <= known.value <= known.high
    # Two digits of half the interval are kept: an end moves by less than a tenth of it, or by one.
    assert known.high - max(within, 0) <= max(half / 10, 1) + 1e-6


def test_items_that_cannot_be_told_apart_are_said_to_be_alike() -> None:
    job = deployed(ITEMS + WEEKS + "unit: patients\nlabels: {chir: Chirurgie, kard: Kardiologie}\n")
    apart = str(epoch_sentence(job, record(items(9_000, 5_000, 800))))
    assert apart == (
        "Most often in the week of 3 June 2013: Chirurgie, with about 9,000 patients (31 %)."
    )
    # 600 apart: each by itself is outside the other's interval, and both may be equal all the same.
    alike = str(epoch_sentence(job, record(items(5_000, 5_600, 800))))
    assert alike == (
        "Most often in the week of 3 June 2013: Kardiologie or Chirurgie; they cannot be told "
        "apart. Kardiologie: about 5,600 patients (19 %)."
    )
    none = str(epoch_sentence(job, record(items(-200, 100, 50))))
    assert none == (
        "No item can be told from none in the week of 3 June 2013; each is of fewer than 470 "
        "patients."
    )
    many = "name: clinic\nprotocol: hadamard_values\n" + (
        f"parameters: {{epsilon: 8, changes: 1, domain: {[f'ward {n}' for n in range(9)]}}}\n"
    )
    said = str(epoch_sentence(deployed(many), record(items(*[5_000.0] * 8, 700.0))))
    assert "ward 0, ward 1 or one of 6 others; they cannot be told apart" in said


@given(st.lists(st.integers(0, 4_000), min_size=2, max_size=7))
def test_ranks_are_all_places_that_an_item_may_have(values: list[int]) -> None:
    labels = [f"ward {n}" for n in range(len(values))]
    job = _clinic(tuple(labels))
    found = items(*map(float, values))
    wide = found.simultaneous_half_width
    said = kind_of(job.domain).ranks(job, record(found))
    assert list(said) == list(range(1, len(values) + 1))
    for place, value in enumerate(values):
        others = [other for at, other in enumerate(values) if at != place]
        above = sum(other - wide > value + wide for other in others)
        below = sum(other + wide < value - wide for other in others)
        assert said[place + 1] == (1 + above, len(values) - below)


_CLINICS: dict[tuple[str, ...], DeployedJob] = {}


def _clinic(labels: tuple[str, ...]) -> DeployedJob:
    if labels not in _CLINICS:
        text = "name: clinic\nprotocol: hadamard_values\n"
        parameters = f"{{epsilon: 8, changes: 1, domain: {list(labels)}}}"
        _CLINICS[labels] = deployed(f"{text}parameters: {parameters}\n")
    return _CLINICS[labels]


def test_the_hero_is_the_last_complete_epoch() -> None:
    job = deployed(COUNT + WEEKS + STUDENTS)
    whole = record(estimate(7_264, 1_790), 2)
    # The third week ends when the 17th of June begins.
    cut = record(estimate(113, 1_790), 3, closed_at=datetime(2013, 6, 16, 23, 59, tzinfo=UTC))
    ended = record(estimate(113, 1_790), 3, closed_at=datetime(2013, 6, 17, tzinfo=UTC))
    small = record(None, 3, Fate.TOO_SMALL)
    assert hero_of(job, [whole, cut]) is whole
    assert hero_of(job, [whole, ended]) is ended
    assert hero_of(job, [whole, small]) is whole
    assert hero_of(job, [small]) is small
    assert hero_of(job, [cut]) is cut
    first = "About 7,300 students enrolled in the week of 3 June 2013 (25 %), between 5,400 and"
    assert str(sentence_of(job, [whole, cut])) == (
        f"{first} 9,100. The week of 10 June 2013 is not over yet."
    )
    assert str(sentence_of(job, [whole, small])) == (
        f"{first} 9,100. Nothing can be said about the week of 10 June 2013: too few devices took "
        "part, so nothing was released."
    )
    assert len(sentence_of(job, [whole, small]).parts) == 3
    assert hero_of(deployed(COUNT), [whole, cut]) is cut


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (5_100.0, "cannot be told from no change since the week before"),
        (9_000.0, "more than the week before"),
    ],
)
def test_a_change_is_told_with_an_interval_of_its_own(now: float, said: str) -> None:
    job = deployed(FOLLOWED + WEEKS)
    records = [record(estimate(5_000.0, 200), 1), record(estimate(now, 200), 2)]
    (change,) = changes(job, records, 1)
    words = change_words(job, change)
    assert words is not None
    number, what = words
    assert what == said
    assert change.headline is not None
    low, high = change.headline.low, change.headline.high
    assert low is not None
    assert high is not None
    value, _, half = number.replace("\N{MINUS SIGN}", "-").replace(",", "").partition(" ± ")
    assert float(value) == pytest.approx(now - 5_000, abs=50)
    assert what.startswith("cannot") or value[0].isdigit()
    assert (high - low) / 2 <= float(half) <= (high - low) / 2 + 100


def test_every_flag_of_an_estimate_is_explained() -> None:
    job = deploy_job(parse_job(FOLLOWED + "epochs: {count: 64}\n"), deployed_at=0)
    assert "people have changed at least once" in flag_words(job, CHANGES_USED)
    assert "a larger parameters.changes" in flag_words(job, CHANGES_USED)
    assert "claims nothing" in flag_words(job, GAP)
    assert "below 0 or above the population" in flag_words(job, OUTSIDE)
