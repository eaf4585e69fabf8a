"""The demonstration's data: the stated facts hold of the file that is shipped."""

from __future__ import annotations

import csv
import gzip
import hashlib
import re
from pathlib import Path

import numpy as np
import pytest

from dpstream.pipeline.demo import demo_change_log, demo_job_file, demo_run
from dpstream.pipeline.devices.change_log import ChangeLog, load_change_log
from dpstream.pipeline.jobs.job_files import load_job, make_job, parse_job
from experiments.preparation import write_change_log
from experiments.prepare_oulad import enrolments, main, weekly_changes
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


COURSES = [
    ("code_module", "code_presentation", "module_presentation_length"),
    ("AAA", "2013B", "20"),
    ("BBB", "2013B", "10"),
    ("CCC", "2013J", "7"),
]
REGISTRATIONS = [
    ("code_module", "code_presentation", "id_student", "date_registration", "date_unregistration"),
    # Friday 1 February 2013 is day 0 of both courses, and of week 1.
    ("AAA", "2013B", "500", "0", ""),  # to day 20: at the ends of weeks 1 and 2
    ("AAA", "2013B", "7", "6", "7"),  # over the end of week 1
    ("AAA", "2013B", "8", "7", "13"),  # within week 2: never at the end of a week
    ("BBB", "2013B", "9", "", "7"),  # no day of registration: day 0
    ("AAA", "2013B", "9", "13", ""),  # again in week 2
    ("BBB", "2013B", "10", "3", "-5"),  # left before registering
    ("CCC", "2013J", "11", "-1", ""),  # from 30 September, day 241, to 8 October
    ("BBB", "2013B", "12", "0", ""),  # two courses at a time
    ("AAA", "2013B", "12", "5", "19"),
]
CHANGES = [
    # By week, then by user; users 7 8 9 10 11 12 500 are 1 to 7.
    ("1", "1", "1"),
    ("2", "1", "0"),
    ("3", "1", "1"),
    ("4", "1", "0"),
    ("6", "1", "1"),
    ("7", "1", "1"),
    ("1", "2", "0"),
    ("3", "3", "0"),
    ("6", "3", "0"),
    ("7", "3", "0"),
    ("5", "35", "1"),
    ("5", "36", "0"),
]


def write_tables(folder: Path, *, packed: bool) -> None:
    for name, table in (("courses", COURSES), ("studentRegistration", REGISTRATIONS)):
        path = folder / (f"{name}.csv.gz" if packed else f"{name}.csv")
        with gzip.open(path, "wt", newline="") if packed else path.open("w", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows(table)


@pytest.mark.parametrize("packed", [False, True])
def test_weeks_are_cut_as_stated(
    tmp_path: Path, packed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tables(tmp_path, packed=packed)
    output = tmp_path / "log.csv.gz"
    main([str(tmp_path), "--output", str(output)])
    with gzip.open(output, "rt", newline="") as file:
        header, *rows = (tuple(row) for row in csv.reader(file))
    assert header == ("user", "epoch", "value")
    assert rows == CHANGES
    assert "12 rows" in capsys.readouterr().out


def test_the_same_tables_give_the_same_bytes(tmp_path: Path) -> None:
    write_tables(tmp_path, packed=False)
    digests = set()
    for name in ("one.csv.gz", "another.csv.gz"):
        write_change_log(weekly_changes(enrolments(tmp_path)), tmp_path / name)
        digests.add(hashlib.sha256((tmp_path / name).read_bytes()).digest())
    assert len(digests) == 1


def test_without_the_tables_the_command_says_which_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        main([str(tmp_path), "--output", str(tmp_path / "log.csv.gz")])
    assert leaving.value.code == 1
    assert capsys.readouterr().err.endswith("courses.csv.gz: No such file or directory\n")
