"""The demonstration's story: four screens that fit a terminal, and say what is so."""

from __future__ import annotations

import pytest

from aggregators.estimate import Estimate
from pipeline.demo import (
    demo_change_log,
    demo_job_file,
    demo_shuffled_job_file,
    demo_stream_job_file,
)
from pipeline.demo.story import (
    PEOPLE,
    STUDENT,
    WIDTH,
    ScreenOfStory,
    values_of,
    what_a_device_sends,
    what_everyone_sees,
    what_is_asked,
    what_it_would_take,
)
from pipeline.jobs.deployed_job import DeployedJob, deploy_job
from pipeline.jobs.job_files import load_job
from pipeline.stages.estimate_records import EstimateRecord
from topics.manifests import Fate

WEEKS = 170


@pytest.fixture(scope="module")
def jobs() -> list[DeployedJob]:
    files = demo_job_file(), demo_stream_job_file(), demo_shuffled_job_file()
    return [deploy_job(load_job(file), deployed_at=0, deployment=bytes(16)) for file in files]


def records(job: DeployedJob) -> list[EstimateRecord]:
    def estimate(epoch: int) -> Estimate:
        return Estimate.around(7_000.0 + 60 * min(epoch, 100), 100.0, 196.0, PEOPLE, PEOPLE)

    return [
        EstimateRecord(
            job.deployment, epoch, Fate.RELEASED, 1 << 41, PEOPLE, PEOPLE, estimate(epoch), {}
        )
        for epoch in range(1, WEEKS + 1)
    ]


@pytest.fixture(scope="module")
def story(jobs: list[DeployedJob]) -> list[ScreenOfStory]:
    return [
        what_is_asked(jobs, PEOPLE),
        what_a_device_sends(jobs[1], values_of(demo_change_log(), STUDENT, WEEKS)),
        what_everyone_sees([(job, records(job)) for job in jobs], "http://127.0.0.1:8765/"),
        what_it_would_take(jobs),
    ]


def test_it_has_four_screens_that_fit_a_terminal(story: list[ScreenOfStory]) -> None:
    assert [screen.number for screen in story] == [1, 2, 3, 4]
    for screen in story:
        assert len(screen.lines) <= 18
        assert all(len(line) <= WIDTH for line in screen.lines)


def test_it_says_what_is_asked_of_whom(story: list[ScreenOfStory]) -> None:
    said = " ".join(line.strip() for line in story[0].lines)
    assert "28,785 students took courses" in said
    assert "the week of 28 March 2012" in said
    assert "oulad-weekly-shuffled: epsilon 1; to be trusted: the shuffle stage" in said


def test_a_device_sends_a_byte_a_week_of_a_student_who_came_and_went(
    jobs: list[DeployedJob], story: list[ScreenOfStory]
) -> None:
    lines = story[1].lines
    known = lines[1].strip()
    assert known.startswith("·" * 10 + "█")
    assert known.strip("·█") == ""
    assert "·█" in known.lstrip("·")
    values = values_of(demo_change_log(), STUDENT, WEEKS)
    assert [week for week in range(1, WEEKS) if values[week] != values[week - 1]] == [
        28,
        37,
        51,
        78,
    ]
    sent = bytes.fromhex("".join(lines[3:6]))
    assert len(sent) == len(known) == 60
    # Drawn anew each time.
    again = what_a_device_sends(jobs[1], values)
    assert again.lines[3:6] != lines[3:6]
    assert again.lines[:3] == lines[:3]


def test_everyone_sees_sentences_of_the_fullest_week(story: list[ScreenOfStory]) -> None:
    said = " ".join(line.strip() for line in story[2].lines)
    # The hundredth, the first of the fullest.
    assert said.count("in the week of 19 February 2014") == 3
    assert "About 13,000 students enrolled" in said
    assert "http://127.0.0.1:8765/" in said


def test_it_says_how_far_a_guess_can_come(story: list[ScreenOfStory]) -> None:
    said = " ".join(line.strip() for line in story[3].lines)
    assert "oulad-weekly: a guess that was 50 % likely becomes at most 98.3 % likely." in said
    assert (
        "oulad-weekly-shuffled: a guess that was 50 % likely becomes at most 73.2 % likely" in said
    )
    assert "who has to be trusted: the shuffle stage" in said
