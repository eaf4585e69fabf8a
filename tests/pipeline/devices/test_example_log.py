"""Test labeled examples from files: a training set and a test set."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.devices.example_log import ExampleLog, load_example_log
from dpstream.pipeline.devices.item_log import load_value_log
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.devices.producer_input import LiveProducer
from dpstream.pipeline.devices.rows import BadRowsError, InputError
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.pipeline.results.kinds import kind_of
from dpstream.pipeline.simulation.simulated_job import simulate
from dpstream.pipeline.values.examples import ExampleDomain
from dpstream.randomizers.labeled_examples import unpacked_examples
from tests.support.new_jobs import new_job

DOMAIN = ExampleDomain(2, 3)
HEADER = "user,x,class,one\n"


def load(folder: Path, text: str, **options: Any) -> ExampleLog:
    path = folder / "examples.csv"
    path.write_text(text)
    return load_example_log(path, domain=DOMAIN, **{"last_epoch": 3, **options})


def test_training_example_of_a_user_is_the_same_at_every_epoch(tmp_path: Path) -> None:
    log = load(tmp_path, HEADER + "b,-0.5,2,1\na,0.25,0,1\n\n")
    assert log.users == ("a", "b")
    assert log.examples.tolist() == [[1, 1024, 4096], [3, -2048, 4096]]
    assert [values.tolist() for values in log.values_by_epoch()] == [log.examples.tolist()] * 3
    assert log.ground_truth(DOMAIN).shape == (3, 0)
    packed = tmp_path / "examples.csv.gz"
    packed.write_bytes(gzip.compress((tmp_path / "examples.csv").read_bytes()))
    again = load_value_log(packed, domain=DOMAIN, last_epoch=3)
    assert isinstance(again, ExampleLog)
    assert np.array_equal(again.examples, log.examples)


def test_users_outside_the_user_list_are_ignored(tmp_path: Path) -> None:
    log = load(tmp_path, HEADER + "b,-0.5,2,1\na,0.25,0,1\n", users=["c", "b"])
    assert (log.users, log.on_user_list, log.unknown_users) == (("b", "c"), True, 1)
    assert log.examples.tolist() == [[3, -2048, 4096], [0, 0, 0]]
    assert "not on the user list: 1 user" in log.warnings[0]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("a,0,3,0", "class '3' is invalid; expected a whole number from 0 to"),
        ("a,8,1,0", "a feature is out of range; expected -7.999 to 7.999"),
        (",0,1,0", "the user is empty"),
        ("z,0,1,0", "second row for user 'z'; expected one"),
    ],
)
def test_bad_rows_are_reported_or_skipped(tmp_path: Path, row: str, reason: str) -> None:
    text = f"{HEADER}z,0,0,0\n{row}\n"
    with pytest.raises(BadRowsError, match=f":3: {reason}"):
        load(tmp_path, text)
    log = load(tmp_path, text, users=["a", "z"], skip_bad_rows=True)
    assert log.bad_rows.total == 1
    assert log.examples.tolist() == [[0, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user,x,one\na,1,1\n", "it contains column class 0 times"),
        ("user,class,x\n", "got 1 columns other than user and class; expected 2, one per feature"),
        (HEADER, "no usable rows"),
    ],
)
def test_files_without_examples_are_rejected(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(tmp_path, text)


def deployed(folder: Path, test_set: object, **changed: object) -> DeployedJob:
    parameters = {"epsilon": 6, "delta": 1e-3, "features": 2, "classes": 3, "test_set": test_set}
    made = new_job("flowers", "ldp_sgd", {**parameters, **changed}, folder, count=2, minimum=20)
    return deploy_job(made, deployed_at=0)


def test_accuracy_on_the_test_set_is_published(
    tmp_path: Path,
) -> None:
    (tmp_path / "test.csv").write_text("class,x,one\n0,0.5,1\n2,-0.5,1\n")
    job = DeployedJob.from_bytes(deployed(tmp_path, {"file": "test.csv"}).to_bytes())
    packed = job.parameters.test_set
    assert unpacked_examples(packed, 2, 3).tolist() == [[1, 2048, 4096], [3, -2048, 4096]]
    without = deployed(tmp_path, None)
    assert without.fingerprint == job.fingerprint, "reports have the same meaning"
    rows = "".join(f"u{user},{1 - user % 2},{user % 2 * 2},1\n" for user in range(60))
    log = load(tmp_path, HEADER + rows, last_epoch=2)
    for tested, measure in ((job, "accuracy on the test set, %"), (without, "gradient norm, %")):
        record = simulate(tested, log, seed=1).records[-1]
        assert record.summary.reports == 60
        headline = kind_of(tested.domain).headline(tested.domain, record)
        assert str(headline).startswith(measure)
        assert (record.summary.value in (0, 50, 100)) == (tested is job)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read the test set"),
        ("x,one\n1,1\n", "1: expected one column class and 2 distinct feature columns"),
        ("class,x,one\n3,1,1\n", "test.csv:2: class '3' is invalid; expected a whole number"),
    ],
)
def test_invalid_test_sets_are_rejected(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "test.csv").write_text(text)
    with pytest.raises(JobError, match=message):
        deployed(tmp_path, {"file": "test.csv"})
    with pytest.raises(JobError, match=r"expected \{file: NAME\}"):
        deployed(tmp_path, ["test.csv"])


def test_live_input_with_training_examples_is_rejected(tmp_path: Path) -> None:
    job, log = deployed(tmp_path, None), MemoryLog()
    with (
        Producer(job, None, name="p", transport=MemoryDriver(log)) as producer,
        pytest.raises(InputError, match=r"collects examples, which do not change\. Pass them with"),
    ):
        LiveProducer(producer, None)
