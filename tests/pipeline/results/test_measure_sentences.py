"""Test the sentences on an epoch of a job with measures."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.results.measure_rows import rows_of
from dpstream.pipeline.results.measure_sentences import other_warnings
from dpstream.pipeline.results.measure_words import measure_label
from dpstream.pipeline.results.sentences import epoch_sentence, headline_of
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import WindowStatus
from tests.support.shown_jobs import MEASURED, panels

GROUPS = {"wau: platform=ios": 200.0, "wau: platform=android": 60.0, "wau: platform=other": 30.0}
FORTNIGHTS = ("2026-06-01", "2026-06-15", "2026-06-29", "2026-07-13", "2026-07-27", "2026-08-10")
LIFE = "wau: {type: active}"


def record_of(values: dict[str, float], text: str = MEASURED) -> tuple[Any, EstimateRecord]:
    job = deploy_job(parse_job(text), deployed_at=0)
    estimate = panels(job, values)
    return job, EstimateRecord(bytes(16), 1, WindowStatus.RELEASED, 0, 900, 1_000, estimate, {})


def test_sentence_has_the_total_and_the_groups() -> None:
    values = {"wau": 290.0, **GROUPS, "wau: platform=web": math.nan}
    job, record = record_of(values)
    assert str(epoch_sentence(job, record, titled=False)) == (
        "About 290 users were active in the week of June 1, 2026 (29 %; 95 % CI 270 to 310): 200 "
        "with platform ios (40 % of ios users), 60 with android (12 % of android users), 30 with "
        "other (6 % of other users); no number for platform web: "
        "fewer than 100 devices answered."
    )
    assert str(headline_of(job, record)) == "wau: 290 (95 % CI 270 to 310)"


def test_sentence_omits_groups_without_users() -> None:
    values = {"wau": 290.0, **GROUPS, "wau: platform=web": math.nan}
    job, record = record_of(values)
    place = next(at for at, row in enumerate(rows_of(job)) if row.label == "wau: platform=web")
    record.estimate.sizes[place] = 0  # type: ignore[union-attr]
    sentence = str(epoch_sentence(job, record, titled=False))
    assert sentence.endswith(
        "60 with android (12 % of android users), 30 with other (6 % of other users)."
    )


def test_sentence_omits_users_who_are_not_enrolled_yet() -> None:
    text = MEASURED.replace("platform: {values: [ios, android, web]", "platform: {enrolled: P14D")
    missing = {f"wau: platform={value}": math.nan for value in ("earlier", *FORTNIGHTS[1:])}
    job, record = record_of({"wau": 290.0, "wau: platform=2026-06-01": 280.0, **missing}, text)
    sentence = str(epoch_sentence(job, record, titled=False))
    assert sentence.endswith(
        "280 with platform 2026-06-01 (56 % of these users); no number for platform earlier: "
        "fewer than 100 devices answered."
    )


@pytest.mark.parametrize(
    ("measure", "values", "sentence"),
    [
        (
            "{type: sum, number: duration, event: [end], mean: {low: 0, high: 60}}",
            {"wau": 14.52},
            # The interval is within the range.
            "Total duration of events “end” per user in the week of June 1, 2026: mean 15 (95 % CI "
            "0 to 34), 15,000 in all (0 to 34,000): ",
        ),
        (
            "{type: max, number: duration, mean: {low: 0, high: 60}}",
            {"wau": 14.52},
            # Largest numbers have no total over users.
            "Largest duration per user in the week of June 1, 2026: mean 15 (95 % CI 0 to 34): ",
        ),
        (
            "{type: lifecycle, within: 4}",
            {"wau=new": 100.0, "wau=retained": 250.0},
            "Users by life cycle in the 4 weeks that ended with the week of June 1, 2026: new 100, "
            "retained 250, resurrected fewer than 20, dormant fewer than 20.",
        ),
        (
            "{type: count, event: search, at_least: 5}",
            {"wau": 290.0},
            "About 290 users had at least 5 events “search” in the week of June 1, 2026 (29 %",
        ),
    ],
)
def test_sentence_names_what_a_measure_is(
    measure: str, values: dict[str, float], sentence: str
) -> None:
    job, record = record_of(values, MEASURED.replace(LIFE, f"wau: {measure}"))
    assert str(epoch_sentence(job, record, titled=False)).startswith(sentence)


@pytest.mark.parametrize(("other", "warned"), [(30.0, False), (45.0, False), (80.0, True)])
def test_many_users_with_undeclared_values_cause_a_warning(other: float, warned: bool) -> None:
    """45 users of 305 are a share whose interval starts below 10 %."""
    job, record = record_of({"wau": 305.0, **GROUPS, "wau: platform=other": other})
    warnings = list(other_warnings(job, record))
    assert bool(warnings) == warned
    if warned:
        assert warnings == [
            "At least 18 % of the users who are counted in the week of June 1, 2026 have a "
            "platform that the job file does not list. Their number is in the group other"
        ]


def test_labels_of_measures_are_phrases() -> None:
    text = MEASURED.replace(LIFE, "wau: {type: days, event: [a, b], within: 4, at_least: 3}")
    job, _ = record_of({}, text)
    assert measure_label(job, "wau") == (
        "users who had events “a” or “b” on at least 3 days within 4 weeks"
    )
    assert measure_label(job, "minutes") == "mean total duration per user"


def test_nothing_published_causes_no_warning() -> None:
    job, _ = record_of({"wau": 305.0, **GROUPS})
    assert list(other_warnings(job, None)) == []
