"""What looks alike in an input is one: accents, numbers, marks between files, ends of days."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpstream.pipeline.devices.bad_rows import InputError
from dpstream.pipeline.devices.change_log import load_change_log
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.values.times import parse_time
from dpstream.randomizers.client.values import DeviceValues

_COMPOSED, _DECOMPOSED = "caf\u00e9", "cafe\u0301"
_JOB = """
name: drinks
protocol: hadamard_values
parameters: {{epsilon: 4, changes: 1, domain: [{labels}]}}
epochs: {{count: 2}}
"""


@pytest.mark.parametrize("label", [_COMPOSED, _DECOMPOSED])
def test_labels_are_the_same_with_either_accent(tmp_path: Path, label: str) -> None:
    domain = parse_job(_JOB.format(labels=f"tea, {label}")).domain
    (tmp_path / "drinks.csv").write_text(
        f"user,epoch,value\na,1,{_COMPOSED}\nb,1,{_DECOMPOSED}\n", encoding="utf-8"
    )
    log = load_change_log(tmp_path / "drinks.csv", domain=domain)
    assert log.values.tolist() == [2, 2]
    values = {"kind": "items", "size": 3, "slots": None, "labels": list(domain.items or ())}
    device = DeviceValues.from_statement(values)
    assert device.number(_COMPOSED) == device.number(_DECOMPOSED) == 2


def test_labels_that_look_alike_are_refused() -> None:
    with pytest.raises(JobError, match="twice"):
        parse_job(_JOB.format(labels=f"{_COMPOSED}, {_DECOMPOSED}"))


def test_json_numbers_are_one_user_and_nan_is_none(tmp_path: Path) -> None:
    path = tmp_path / "changes.json"
    path.write_text(
        '{"user": 1, "epoch": 1, "value": 1}\n{"user": 1.0, "epoch": 2.0, "value": 0}\n'
    )
    log = load_change_log(path)
    assert (log.users, log.epochs.tolist(), log.values.tolist()) == (("1",), [1, 2], [1, 0])
    with path.open("a") as file:
        file.write('{"user": NaN, "epoch": 1, "value": 1}\n')
    with pytest.raises(InputError, match="'user' is nan, which is no number in JSON"):
        load_change_log(path)


def test_mark_between_joined_files_is_no_part_of_a_user(tmp_path: Path) -> None:
    path = tmp_path / "changes.csv"
    path.write_text("\ufeffuser,epoch,value\na,1,1\n\ufeffa,2,0\n", encoding="utf-8")
    assert load_change_log(path).users == ("a",)


def test_ends_of_days_and_leap_seconds_are_times() -> None:
    assert parse_time("2024-05-01T24:00:00Z") == parse_time("2024-05-02T00:00:00Z")
    assert parse_time("2016-12-31T23:59:60Z") == parse_time("2017-01-01T00:00:00Z")
    assert parse_time("2024-05-01 24:00") == parse_time("2024-05-02")
    for wrong in (
        "2024-05-01T24:00:01",
        "2024-05-01T12:00:60",
        "2024-05-01T24:30",
        "9999-12-31T24",
    ):
        with pytest.raises(ValueError, match="time"):
            parse_time(wrong)
