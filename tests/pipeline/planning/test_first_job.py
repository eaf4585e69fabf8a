"""Job files that are written for an input read that input, and count what it has."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpstream.pipeline.devices.event_log import load_event_log
from dpstream.pipeline.jobs.input_formats import AS_IT_IS
from dpstream.pipeline.jobs.job_files import Job, load_job
from dpstream.pipeline.jobs.measure_keys import Trust
from dpstream.pipeline.planning.first_epochs import period_of
from dpstream.pipeline.planning.first_job import FirstJob, first_job
from dpstream.pipeline.planning.first_questions import FirstAnswers
from dpstream.pipeline.planning.input_profile import profile_input
from dpstream.pipeline.values.durations import parse_duration
from tests.support.event_files import NAMES, START, TIMES, LoggedEvent, made_events, write_events

EVENTS = made_events(users=120, weeks=9)
OUTLIER = LoggedEvent("u00001", datetime(1999, 3, 1, tzinfo=UTC), "open", "ios", None)


def made(path: Path, answers: FirstAnswers, **stated: str) -> FirstJob:
    return first_job(profile_input(str(path), AS_IT_IS.with_changes(stated)), answers, "first")


def active(job: Job, path: Path) -> list[int]:
    """Return the number of users with an answer 1 at each epoch of a job with one question."""
    log = load_event_log(job, path, last_epoch=job.last_epoch)
    values = [log.values_at(epoch) for epoch in range(1, log.last_epoch + 1)]
    return [int(np.count_nonzero(each == 1)) for each in values]


def weekly(events: list[LoggedEvent], weeks: int) -> list[int]:
    users = defaultdict(set)
    for each in events:
        users[(each.time - START) // timedelta(weeks=1)].add(each.user)
    return [len(users[week]) for week in range(weeks)]


@settings(max_examples=15)
@given(
    names=st.sampled_from(NAMES),
    times=st.sampled_from(sorted(TIMES)),
    form=st.sampled_from(
        [("csv", ";"), ("csv", ","), ("txt", "\t"), ("csv.gz", "|"), ("jsonl", ""), ("parquet", "")]
    ),
    trust=st.sampled_from(get_args(Trust)),
)
def test_a_job_counts_the_active_users_of_an_input_in_any_form(
    names: tuple[str, ...], times: str, form: tuple[str, str], trust: Trust
) -> None:
    with TemporaryDirectory() as folder:
        path = write_events(
            Path(folder) / f"log.{form[0]}", EVENTS, names=names, times=times, separator=form[1]
        )
        written = made(path, FirstAnswers(("active",), trust=trust)).text
        written = written.replace("  mau:", "# mau:").replace("  stickiness:", "# stickiness:")
        written = written.replace("ratios:", "# ratios:")
        file = Path(folder) / "job.yaml"
        file.write_text(written)
        assert active(load_job(file), path) == weekly(EVENTS, 9)


def test_epochs_cover_all_rows_but_few_far_away(tmp_path: Path) -> None:
    path = write_events(tmp_path / "log.csv", [OUTLIER, *made_events(users=1_000)])
    profile = profile_input(str(path))
    period = period_of(profile)
    assert period.calendar is not None
    assert (period.calendar.start, period.count, period.outside) == (START, 12, 1)
    many = [OUTLIER, *EVENTS[:40]]
    period = period_of(profile_input(str(write_events(tmp_path / "few.csv", many))))
    assert period.outside == 0


@pytest.mark.parametrize(("weeks", "length"), [(1, "P1D"), (3, "P1D"), (12, "P7D"), (105, "P1M")])
def test_epochs_suit_the_span(tmp_path: Path, weeks: int, length: str) -> None:
    path = write_events(tmp_path / "log.csv", made_events(users=20, weeks=weeks, rate=0.9))
    calendar = period_of(profile_input(str(path))).calendar
    assert calendar is not None
    assert str(calendar.length) == length


def test_epochs_begin_with_days_of_the_zone(tmp_path: Path) -> None:
    path = write_events(tmp_path / "log.csv", EVENTS, times="space")
    for length, start in (("P1M", "2026-01-01"), ("P1W", "2026-01-05"), ("PT6H", "2026-01-05")):
        answers = FirstAnswers(("active",), length=parse_duration(length))
        text = made(path, answers, timezone="America/Lima").text
        assert f"start: {start}" in text
        assert "timezone: America/Lima" in text
        assert "input: {columns: {user: user_id, time: ts}}" in text


def test_rows_before_the_epochs_of_a_zone_are_few(tmp_path: Path) -> None:
    path = write_events(tmp_path / "log.csv", EVENTS)
    job = made(path, FirstAnswers(("active",), trust="shuffle"), timezone="Asia/Tokyo").job
    log = load_event_log(job, path, last_epoch=job.last_epoch)
    assert not any(
        "after epoch" in warning or "rows before epoch" in warning for warning in log.warnings
    )


def test_changes_suffice_for_nineteen_of_twenty_users(tmp_path: Path) -> None:
    for rate, expected in ((0.02, 4), (0.5, 8)):
        path = write_events(tmp_path / "log.csv", made_events(users=300, weeks=9, rate=rate))
        written = made(path, FirstAnswers(("active",)))
        job = written.job
        log = load_event_log(job, path, last_epoch=job.last_epoch)
        paths = np.stack([log.values_at(epoch).copy() for epoch in range(log.last_epoch + 1)])
        changes = np.count_nonzero(np.diff(paths, axis=0), axis=0)
        assert np.mean(changes.max(axis=1) <= expected) >= 0.95
        assert np.mean(changes.max(axis=1) <= expected // 2) < 0.95
        assert f"max_changes: {expected}}}" in written.text


def test_a_sum_has_a_range_and_the_events_that_have_it(tmp_path: Path) -> None:
    path = write_events(tmp_path / "log.csv", EVENTS)
    written = made(path, FirstAnswers(("seconds",)))
    (seconds, events) = (written.job.measures or {}).values()
    assert seconds.event == events.event == ("leave",)
    assert seconds.mean is not None
    sums: defaultdict[tuple[str, int], float] = defaultdict(float)
    for each in EVENTS:
        if each.seconds is not None:
            sums[each.user, (each.time - START) // timedelta(weeks=1)] += each.seconds
    above = sum(each > seconds.mean.high for each in sums.values()) / len(sums)
    assert above <= 0.01
    assert seconds.mean.high <= 2 * sorted(sums.values())[int(0.99 * len(sums))]
    assert written.job.ratios is not None
    assert any("a look at values" in note for note in written.notes)


def test_rare_values_are_other(tmp_path: Path) -> None:
    odd = [LoggedEvent(f"x{n}", START, "open", "a=b" if n else "rare", None) for n in range(9)]
    path = write_events(tmp_path / "log.csv", [*EVENTS, *odd])
    written = made(path, FirstAnswers(("active",), ("os",), frozenset({"os"})))
    assert written.job.attributes is not None
    assert set(written.job.attributes["os"].values) == {"android", "ios", "web"}
    assert any("2 rare or unusable values count as other: " in note for note in written.notes)


def test_large_errors_are_named_with_a_remedy(tmp_path: Path) -> None:
    path = write_events(tmp_path / "log.csv", made_events(users=60))
    notes = " ".join(made(path, FirstAnswers(("active",), ("os",))).notes)
    assert "this is a large error" in notes
    assert "--trust shuffle" in notes
    assert "few" in notes
