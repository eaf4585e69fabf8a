"""The demonstration's story: four screens that fit a terminal, and say what is so."""

from __future__ import annotations

import pytest

from dpstream.aggregators.estimate import Estimate
from dpstream.pipeline.demo import (
    demo_change_log,
    demo_job_file,
    demo_shuffled_job_file,
    demo_stream_job_file,
)
from dpstream.pipeline.demo.story import (
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
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import load_job
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import Fate

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


@pytest.mark.parametrize("width", [80, 120])
def test_it_has_four_screens_that_fit_a_terminal(story: list[ScreenOfStory], width: int) -> None:
    assert [screen.number for screen in story] == [1, 2, 3, 4]
    for screen in story:
        lines = screen.folded(width)
        assert len(lines) <= 18
        # But for the address, which is to be copied whole.
        folded = [line for line in lines if "http" not in line]
        assert len(lines) - len(folded) == (screen.number == 3)
        assert all(len(line) <= min(width, WIDTH) for line in folded)
        assert not any(line.lstrip().startswith("%") for line in folded)


@pytest.mark.parametrize("width", range(20, 40))
def test_a_percent_sign_stays_with_its_number(width: int) -> None:
    told = ScreenOfStory(1, "", ("  of all: about 14,034 students enrolled (48.8 %), or so",))
    lines = told.folded(width)
    assert " ".join(line.strip() for line in lines) == told.lines[0].strip()
    assert not any(line.lstrip().startswith("%") for line in lines)


def test_it_says_what_is_asked_of_whom(story: list[ScreenOfStory]) -> None:
    said = " ".join(line.strip() for line in story[0].lines)
    assert "28,785 students took courses" in said
    assert "the week of 28 March 2012" in said
    assert "oulad-weekly-stream: trusted is nobody (epsilon 4)" in said
    assert "oulad-weekly-shuffled: trusted is the shuffle stage to shuffle (epsilon 1)" in said


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
    assert "the highest bar is about 13,000 students" in said
    bars = story[2].lines[1].strip()
    assert (len(bars), bars[-1]) == (74, "█")


def test_it_says_how_far_a_guess_can_come(story: list[ScreenOfStory]) -> None:
    said = " ".join(line.strip() for line in story[3].lines)
    assert "oulad-weekly: a guess that was 50 % likely becomes at most 98.3 % likely." in said
    assert (
        "oulad-weekly-shuffled: a guess that was 50 % likely becomes at most 73.2 % likely, but "
        "for a chance of 1 in 1,000,000." in said
    )
    # Of the three together epsilon is 9.
    assert "all 3 put together: a guess that was 50 % likely becomes at most 99.99 %" in said
    assert "Only oulad-weekly-shuffled rests on others: on the shuffle stage" in said
    assert "20,000 students each week" in said
    assert said.count("rests on others") == 1
