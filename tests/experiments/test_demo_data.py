"""The shipped demo data have the stated properties."""

from __future__ import annotations

import re

import pytest

from dpstream.pipeline.demo import demo_change_log, demo_job_file
from dpstream.pipeline.devices.change_log import ChangeLog, load_change_log
from dpstream.pipeline.jobs.job_files import load_job, parse_job


@pytest.fixture(scope="module")
def log() -> ChangeLog:
    job = load_job(demo_job_file())
    return load_change_log(demo_change_log(), last_epoch=job.last_epoch)


def test_demo_data_has_the_stated_users_and_weeks(log: ChangeLog) -> None:
    assert sorted(log.users, key=int) == [str(number) for number in range(1, 28_786)]
    assert log.last_epoch == log.epochs.max() == 170
    assert (log.warnings, log.bad_rows.total) == ((), 0)


def test_demo_job_file_sets_valid_keys() -> None:
    text = demo_job_file().read_text()
    short = parse_job(text)
    assert (short.name, short.protocol, short.last_epoch) == ("oulad-weekly", "future_rand", 170)
    assert (short.parameters.epsilon, short.parameters.max_changes) == (4, 4)

    keys = re.compile(r"(?m)^#(?=(?:  )*\w+:)")
    assert len(keys.findall(text)) >= 10
    toured = parse_job(keys.sub("", text))
    # Values shown for missing keys are their defaults.
    examples = {"timezone": None, "start": short.epochs.start}
    assert toured.epochs.model_copy(update=examples) == short.epochs
    assert toured.topics.model_copy(update={"replication": None}) == short.topics
    assert (toured.shuffle, toured.parameters) == (short.shuffle, short.parameters)
