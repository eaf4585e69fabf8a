"""Experiment files: what a grid expands to, and what is said about one that cannot be run."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from dpstream.pipeline.devices.change_log import ChangeLog
from dpstream.pipeline.devices.rows import InputError
from dpstream.pipeline.jobs.job_problems import JobError
from experiments.evaluation.data import ChangeLogFile, SyntheticChanges
from experiments.evaluation.drawn_items import DrawnItems
from experiments.evaluation.experiment import Experiment, load_experiment, parse_experiment
from experiments.preparation import labels_path
from experiments.shipped import shipped_experiments
from tests.support.changes_per_user import changes_per_user

LARGE = (
    *("adult", "flights", "esa-camera", "esa-horse", "esa-night-lights"),
    *("selection", "oracles", "one-message", "statistical-queries"),
)


def synthetic(data: str, jobs: str) -> Experiment:
    return parse_experiment(
        f"name: grid\ndata: [{{synthetic: {{{data}}}}}]\njobs: [{jobs}]\nseeds: 2\n"
    )


def test_a_list_is_a_grid_in_the_order_of_the_file() -> None:
    experiment = synthetic(
        "users: [100, 200], epochs: [4, 8], changes: 1",
        "{protocol: future_rand, parameters: {epsilon: [1, 2], changes: [1, 2]}},"
        "{protocol: future_rand, label: other, parameters: {epsilon: 3, changes: 1}}",
    )
    cases = experiment.cases
    assert (experiment.name, experiment.seeds, len(cases)) == ("grid", 2, 2 * 2 * (2 * 2 + 1))
    assert [(case.epsilon, case.changes, case.job.epochs.count) for case in cases[:8:2]] == [
        (1, 1, 4),
        (1, 1, 8),
        (1, 2, 4),
        (1, 2, 8),
    ]
    assert {(case.source, case.job.epochs.count) for case in cases} == {
        (SyntheticChanges(users, epochs, 1, 1), epochs) for users in (100, 200) for epochs in (4, 8)
    }
    assert [case.label for case in cases[-5:]] == ["future_rand", *["other"] * 4]


def test_a_parameter_that_is_a_list_is_one_value_and_a_list_of_lists_is_a_grid(
    tmp_path: Path,
) -> None:
    (tmp_path / "log.csv").write_text("user,epoch,value\nann,1,a\n")
    domains = []
    for domain in ("[a, b]", "[[a, b], [a, b, c]]"):
        experiment = parse_experiment(
            "name: items\ndata: [{change_log: log.csv, epochs: {count: 4}}]\n"
            "jobs: [{protocol: hadamard_values, "
            f"parameters: {{epsilon: 1, changes: 1, domain: {domain}}}}}]\nseeds: 1\n",
            folder=tmp_path,
        )
        domains.append([case.parameters["domain"] for case in experiment.cases])
    assert domains == [[["a", "b"]], [["a", "b"], ["a", "b", "c"]]]


def test_synthetic_users_change_at_most_so_often_at_epochs_uniformly_drawn() -> None:
    (case,) = synthetic(
        "users: 20000, epochs: 16, changes: 3",
        "{protocol: future_rand, parameters: {epsilon: 1, changes: 3}}",
    ).cases
    log = case.source.load(case.job)
    assert isinstance(log, ChangeLog)
    assert list(log.users) == sorted(log.users)
    assert (len(log.users), log.last_epoch, log.initial) == (20_000, 16, 0)
    changes = changes_per_user(log)
    assert len(changes) == 4
    # Three draws out of 16 epochs are all different with probability 15/16 * 14/16.
    assert changes[3] == pytest.approx(20_000 * 15 / 16 * 14 / 16, abs=6 * 60)
    at = np.bincount(log.epochs, minlength=17)[1:]
    assert at == pytest.approx([20_000 * (1 - (15 / 16) ** 3)] * 16, abs=6 * 60)
    values = np.zeros(20_000, np.int8)
    for epoch in range(1, 17):
        users, new = log.changes_at(epoch)
        assert (values[users] != new).all()
        values[users] = new
    again = case.source.load(case.job)
    assert isinstance(again, ChangeLog)
    assert (again.epochs == log.epochs).all()
    other = SyntheticChanges(20_000, 16, 3, 2).load(case.job)
    assert len(other.epochs) != len(log.epochs) or (other.epochs != log.epochs).any()


@pytest.mark.parametrize(
    ("job", "initial", "size"),
    [
        ("protocol: hadamard_values, parameters: {epsilon: 1, changes: 1, domain: [a, b]}", 0, 2),
        (
            "protocol: range_values, "
            "parameters: {epsilon: 1, changes: 1, low: 0, high: 8, buckets: 8}",
            1,
            8,
        ),
    ],
)
def test_synthetic_items_and_numbers_are_drawn_uniformly(job: str, initial: int, size: int) -> None:
    (case,) = synthetic("users: 20000, epochs: 4, changes: 2", f"{{{job}}}").cases
    assert case.source.check(case.job) == ()
    log = case.source.load(case.job)
    assert isinstance(log, ChangeLog)
    assert log.initial == initial
    counts = np.bincount(log.values, minlength=1 + size)
    assert counts[0] == 0
    mean = len(log.values) / size
    assert counts[1:] == pytest.approx([mean] * size, abs=7 * math.sqrt(mean))
    # At each of two of four epochs.
    at = np.bincount(log.epochs, minlength=5)[1:]
    assert at == pytest.approx([20_000 * 7 / 16] * 4, abs=7 * 71)
    assert (log.truth(case.job.domain).sum(axis=1) == 20_000).all() or initial == 0


@pytest.mark.parametrize(("users", "changes"), [(2_000_000, 200), (1 << 28, 2), (1 << 29, 0)])
def test_synthetic_data_beyond_memory_are_refused_in_a_line(users: int, changes: int) -> None:
    (case,) = synthetic(
        "users: 100, epochs: 4, changes: 1",
        "{protocol: future_rand, parameters: {epsilon: 1, changes: 1}}",
    ).cases
    assert SyntheticChanges(1 << 28, 4, 1, 1).check(case.job) == ()
    with pytest.raises(InputError, match="do not fit in memory: users times changes must") as told:
        SyntheticChanges(users, 4, changes, 1).check(case.job)
    assert "\n" not in str(told.value)


def problems(text: str, folder: Path) -> list[str]:
    with pytest.raises(JobError) as caught:
        parse_experiment(text, "e.yaml", folder)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    "name",
    [
        # Large noise tables, and large domains, take a minute to make.
        pytest.param(name, marks=pytest.mark.verify) if name in LARGE else name
        for name in shipped_experiments()
    ],
)
def test_shipped_experiments_can_be_run(name: str, tmp_path: Path) -> None:
    path = shipped_experiments()[name]
    try:
        experiment = load_experiment(path)
    except JobError as error:
        # Its data are not ours to pass on: one line says how they are made.
        (problem,) = error.problems
        assert ": make it by python -m experiments." in problem.message
        log = tmp_path / Path(problem.message.partition(" is not there")[0]).name
        log.touch()
        labels_path(log).write_text("".join(f"label {number}\n" for number in range(100)))
        experiment = parse_experiment(path.read_text(), folder=tmp_path)
    assert experiment.name == name
    assert experiment.seeds >= 20
    for case in experiment.cases:
        assert isinstance(case.source, ChangeLogFile | SyntheticChanges | DrawnItems)
