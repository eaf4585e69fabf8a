"""The demonstration's data: the stated facts hold of the file that is shipped."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dpstream.pipeline.demo import demo_change_log, demo_job_file, demo_run
from dpstream.pipeline.devices.change_log import ChangeLog, load_change_log
from dpstream.pipeline.jobs.job_files import load_job, make_job, parse_job
from tests.support.changes_per_user import changes_per_user


@pytest.fixture(scope="module")
def log() -> ChangeLog:
    job = load_job(demo_job_file())
    return load_change_log(demo_change_log(), last_epoch=job.last_epoch)


def test_students_and_weeks(log: ChangeLog) -> None:
    assert sorted(log.users, key=int) == [str(number) for number in range(1, 28_786)]
    assert log.last_epoch == log.epochs.max() == 170
    assert (log.notices, log.bad_rows.total) == ((), 0)


def test_the_count_runs_from_0_to_14068(log: ChangeLog) -> None:
    truth = log.truth()
    assert (truth.min(), truth.max()) == (0, 14_068)
    assert (truth[0], truth[-1]) == (4, 0)


def test_shares_of_students_by_changes_are_as_stated(log: ChangeLog) -> None:
    students = changes_per_user(log)
    at_most = np.cumsum(students) / students.sum()
    assert f"{at_most[2]:.1%} {at_most[4]:.1%}" == "94.6% 99.8%"


def test_a_run_ends_where_there_is_something_to_see(log: ChangeLog) -> None:
    """The last week of the log is empty, and of the one before a third is gone."""
    truth, file = log.truth(), load_job(demo_job_file())
    job, again = demo_run()(file), demo_run()(file)
    assert job.last_epoch == 168
    assert truth[167] > 7_000
    assert truth[167] == truth[166] > truth[168] > truth[169]
    assert make_job(job.to_json()) == job
    assert len({file.population, job.population, again.population}) == 3


def test_the_file_is_small_and_holds_neither_name_nor_time() -> None:
    data = demo_change_log().read_bytes()
    assert len(data) < 200_000
    assert data[:2] == b"\x1f\x8b"
    assert data[3:8] == bytes(5), "no flags (such as a file name), time 0"


def test_the_credit_stands_beside_the_file(log: ChangeLog) -> None:
    credit = (demo_change_log().parent / "README.md").read_text()
    for words in (
        "Kuzilek, J., Hlosta, M. and Zdrahal, Z. (2017)",
        "CC BY 4.0",
        "What was changed",
        f"{len(log.users):,} students and {log.last_epoch} weeks",
    ):
        assert words in credit


def test_the_job_file_is_a_tour_of_keys_that_all_work() -> None:
    text = demo_job_file().read_text()
    short = parse_job(text)
    assert (short.name, short.protocol, short.last_epoch) == ("oulad-weekly", "future_rand", 170)
    assert (short.parameters.epsilon, short.parameters.changes) == (4, 4)

    keys = re.compile(r"(?m)^#(?=(?:  )*\w+:)")
    assert len(keys.findall(text)) >= 10
    toured = parse_job(keys.sub("", text))
    # What is shown as the value of a key left out is that value.
    examples = {"timezone": None, "start": short.epochs.start}
    assert toured.epochs.model_copy(update=examples) == short.epochs
    assert toured.topics.model_copy(update={"replication": None}) == short.topics
    assert (toured.shuffle, toured.parameters) == (short.shuffle, short.parameters)
