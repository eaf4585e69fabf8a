"""What readers are told of a job: words, which change nothing that is computed."""

from __future__ import annotations

import pytest

from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_differences import describe_difference
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.jobs.job_problems import JobError

PLAIN = """
name: students
protocol: future_rand
parameters: {epsilon: 4, changes: 4}
epochs: {count: 8}
"""
ITEMS = """
name: trips
protocol: hadamard_values
parameters: {epsilon: 4, changes: 4, domain: [walk, bus]}
epochs: {count: 8}
"""
WORDS = """
title: Students enrolled
description: From the day of registration on.
unit: students
labels: {1: enrolled}
"""


def test_a_job_has_the_words_of_its_file() -> None:
    job = parse_job(PLAIN + WORDS)
    assert (job.title, job.people) == ("Students enrolled", "students")
    assert (job.reads("1"), job.reads("0")) == ("enrolled", "0")
    assert parse_job(PLAIN).people == "users"


def test_words_are_kept_with_the_deployed_job_and_are_not_in_its_fingerprint() -> None:
    worded, plain = (
        deploy_job(parse_job(text), deployed_at=0, deployment=bytes(16))
        for text in (PLAIN + WORDS, PLAIN)
    )
    assert DeployedJob.from_bytes(worded.to_bytes()) == worded
    assert worded.fingerprint == plain.fingerprint
    assert b"labels" not in plain.to_bytes()
    assert b"timezone" not in plain.to_bytes()


def test_differences_name_the_words() -> None:
    other = PLAIN + WORDS.replace("enrolled}", "there}")
    assert describe_difference(parse_job(PLAIN + WORDS), parse_job(other)) == [
        'labels.1: "enrolled" -> "there"'
    ]


@pytest.mark.parametrize(
    ("text", "words", "problem"),
    [
        (PLAIN, "title: ' '", "title"),
        (PLAIN, 'title: "a\\nb"', "title"),
        (PLAIN, f"unit: {'x' * 41}", "at most 40 characters"),
        (PLAIN, "labels: {2: two}", "none of the job's values"),
        (ITEMS, "labels: {car: by car}", "none of the job's values"),
        (
            PLAIN.replace("future_rand", "range_values").replace(
                "changes: 4", "changes: 4, low: 0, high: 8, buckets: 8"
            ),
            "labels: {1: one}",
            "leave them out",
        ),
    ],
)
def test_words_that_cannot_be(text: str, words: str, problem: str) -> None:
    with pytest.raises(JobError, match=problem):
        parse_job(text + words)


def test_items_may_have_labels() -> None:
    assert parse_job(ITEMS + "labels: {walk: on foot}").reads("walk") == "on foot"
