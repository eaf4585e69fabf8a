"""Test sentences for readers: wording, dates, and no overstated precision."""

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
from dpstream.pipeline.results.kinds import kind_of
from dpstream.pipeline.results.known_digits import known_count
from dpstream.pipeline.results.phrases import flag_words
from dpstream.pipeline.results.sentences import (
    epoch_sentence,
)
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import WindowStatus

COUNT = "name: count\nprotocol: future_rand\nparameters: {epsilon: 2, max_changes: 2}\n"
FOLLOWED = "name: count\nprotocol: value_stream\nparameters: {epsilon: 1, max_changes: 2}\n"
WEEKS = "epochs: {count: 12, start: 2013-05-27, length: P1W}\n"
STUDENTS = "title: Students enrolled\nunit: students\n"


def deployed(text: str) -> DeployedJob:
    if "epochs:" not in text:
        text += "epochs: {count: 12}\n"
    return deploy_job(parse_job(text), deployed_at=0, deployment=bytes(16))


def record(
    estimate: Published | None,
    epoch: int = 2,
    window_status: WindowStatus = WindowStatus.RELEASED,
    closed_at: datetime = datetime(2013, 9, 1, tzinfo=UTC),
) -> EstimateRecord:
    moment = int(1000 * closed_at.timestamp())
    return EstimateRecord(bytes(16), epoch, window_status, moment, 20_000, 28_785, estimate, {})


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
            *("the week of June 3, 2013", "in the week of June 3, 2013"),
        ),
        ("{count: 12, start: 2013-06-02, length: P1D}", "June 3, 2013", "on June 3, 2013"),
        ("{count: 12, start: 2013-05-01, length: P1M}", "June 2013", "in June 2013"),
        (
            "{count: 12, start: 2013-06-03T13:00, length: PT1H}",
            "the hour from 14:00 UTC on June 3, 2013",
            "in the hour from 14:00 UTC on June 3, 2013",
        ),
        (
            "{count: 12, start: 2013-06-02T06:00, length: P1D, timezone: Europe/Berlin}",
            "the day from 06:00 CEST on June 3, 2013",
            "in the day from 06:00 CEST on June 3, 2013",
        ),
    ],
)  # fmt: skip
def test_epoch_names_follow_the_calendar(epochs: str, name: str, at: str) -> None:
    epoch = epoch_name(parse_job(f"{COUNT}epochs: {epochs}\n"), 2)
    assert (epoch.name, epoch.at) == (name, at)


def test_headline_states_no_number_below_zero() -> None:
    job = deployed(COUNT + WEEKS + STUDENTS)
    for value in (1_500.0, 0.0, -150.0, -4_000.0):
        sentence = str(epoch_sentence(job, record(estimate(value, 1_790))))
        assert sentence.startswith("Fewer than ")
        assert "-" not in sentence
        assert "%" not in sentence
    assert "Fewer than 1,700 students" in str(epoch_sentence(job, record(estimate(-150, 1_790))))
    assert "Fewer than 100 students" in str(epoch_sentence(job, record(estimate(-4_000, 1_790))))


def test_headline_states_no_number_above_the_population() -> None:
    job = deployed(COUNT + WEEKS + STUDENTS)
    few = Estimate.around(330, 66, 132, 13, 202)
    sentence = str(epoch_sentence(job, replace(record(few), population=202)))
    assert sentence == (
        "About 202 students enrolled in the week of June 3, 2013 (100 %; 95 % CI 190 to 202)."
    )
    nothing_known = Estimate.around(90, 200, 400, 2, 202)
    sentence = str(epoch_sentence(job, replace(record(nothing_known), population=202)))
    assert sentence.startswith("At most 202 students enrolled")
    headline = kind_of(job.domain).headline(job.domain, replace(record(few), population=202))
    assert str(headline) == "202 (95 % CI 198 to 202)"
    assert (headline.value, headline.ci95_high) == (330, 462), "the numbers stay what was published"


@pytest.mark.parametrize(
    ("title", "start"),
    [
        ("Students enrolled", "About 20,000 students enrolled in the week of June 3, 2013 ("),
        ("Enrolled students", "About 20,000 enrolled students in the week of June 3, 2013 ("),
        (
            'Students "enrolled". Really?',
            '“Students "enrolled". Really?”: About 20,000 students in ',
        ),
        ("Enrollments.", "Enrollments: About 20,000 students in the week of June 3, 2013 ("),
        (f"Students {'x' * 91}", f"About 20,000 students {'x' * 91} in the week of June 3, 2013 ("),
        ("...", "“...”: About 20,000 students in the week of June 3, 2013 ("),
    ],
)
def test_sentence_is_well_formed_for_any_job_title(title: str, start: str) -> None:
    job = deployed(f"{COUNT}{WEEKS}title: {title!r}\nunit: students\n")
    assert str(epoch_sentence(job, record(estimate(20_000, 600)))).startswith(start)


def test_suppressed_epochs_state_the_minimum() -> None:
    sentence = str(
        epoch_sentence(deployed(COUNT + WEEKS), record(None, window_status=WindowStatus.SUPPRESSED))
    )
    assert sentence == "No estimate for the week of June 3, 2013: fewer than 100 devices reported."


@given(
    st.floats(-1e6, 1e6),
    st.floats(0, 1e6),
    st.one_of(st.none(), st.integers(1, 2_000_000)),
)
def test_rounding_keeps_only_significant_digits(
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
    # Two digits of half the interval are shown: an end moves by at most a tenth of that, or by one.
    assert known.high - max(within, 0) <= max(half / 10, 1) + 1e-6


@given(st.lists(st.integers(0, 4_000), min_size=2, max_size=7))
def test_ranks_cover_all_possible_positions_of_an_item(values: list[int]) -> None:
    labels = [f"ward {n}" for n in range(len(values))]
    job = _clinic(tuple(labels))
    estimates = items(*map(float, values))
    wide = estimates.simultaneous_half_width
    ranks = kind_of(job.domain).ranks(job, record(estimates))
    assert list(ranks) == list(range(1, len(values) + 1))
    for place, value in enumerate(values):
        others = [other for at, other in enumerate(values) if at != place]
        above = sum(other - wide > value + wide for other in others)
        below = sum(other + wide < value - wide for other in others)
        assert ranks[place + 1] == (1 + above, len(values) - below)


_CLINICS: dict[tuple[str, ...], DeployedJob] = {}


def _clinic(labels: tuple[str, ...]) -> DeployedJob:
    if labels not in _CLINICS:
        text = "name: clinic\nprotocol: hadamard_values\n"
        parameters = f"{{epsilon: 8, max_changes: 1, domain: {list(labels)}}}"
        _CLINICS[labels] = deployed(f"{text}parameters: {parameters}\n")
    return _CLINICS[labels]


def test_every_flag_on_an_estimate_is_explained() -> None:
    job = deploy_job(parse_job(FOLLOWED + "epochs: {count: 64}\n"), deployed_at=0)
    assert (
        "the true number may be outside its 95 % interval: users' values have changed at least"
    ) in flag_words(job, CHANGES_USED)
    assert "a larger parameters.max_changes" in flag_words(job, CHANGES_USED)
    assert "no 95 % interval is claimed" in flag_words(job, GAP)
    assert "below 0 or above the population" in flag_words(job, OUTSIDE)
