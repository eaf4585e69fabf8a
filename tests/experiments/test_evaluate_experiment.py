"""Experiment files: expansion of a grid, and messages about invalid files."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpstream.pipeline.devices.rows import InputError
from dpstream.pipeline.jobs.job_problems import JobError
from experiments.evaluation.data import ChangeLogFile, SyntheticChanges
from experiments.evaluation.drawn_items import DrawnItems
from experiments.evaluation.experiment import Experiment, load_experiment, parse_experiment
from experiments.preparation import labels_path
from experiments.shipped import shipped_experiments

LARGE = (
    *("adult", "flights", "esa-camera", "esa-horse", "esa-night-lights"),
    *("selection", "oracles", "one-message", "statistical-queries"),
)


def synthetic(data: str, jobs: str) -> Experiment:
    return parse_experiment(
        f"name: grid\ndata: [{{synthetic: {{{data}}}}}]\njobs: [{jobs}]\nseeds: 2\n"
    )


def test_lists_in_an_experiment_file_form_a_grid_in_file_order() -> None:
    experiment = synthetic(
        "users: [100, 200], epochs: [4, 8], changes: 1",
        "{protocol: future_rand, parameters: {epsilon: [1, 2], max_changes: [1, 2]}},"
        "{protocol: future_rand, label: other, parameters: {epsilon: 3, max_changes: 1}}",
    )
    cases = experiment.cases
    assert (experiment.name, experiment.seeds, len(cases)) == ("grid", 2, 2 * 2 * (2 * 2 + 1))
    assert [(case.epsilon, case.max_changes, case.job.epochs.count) for case in cases[:8:2]] == [
        (1, 1, 4),
        (1, 1, 8),
        (1, 2, 4),
        (1, 2, 8),
    ]
    assert {(case.source, case.job.epochs.count) for case in cases} == {
        (SyntheticChanges(users, epochs, 1, 1), epochs) for users in (100, 200) for epochs in (4, 8)
    }
    assert [case.label for case in cases[-5:]] == ["future_rand", *["other"] * 4]


@pytest.mark.parametrize(("users", "changes"), [(2_000_000, 200), (1 << 28, 2), (1 << 29, 0)])
def test_synthetic_data_beyond_memory_is_rejected(users: int, changes: int) -> None:
    (case,) = synthetic(
        "users: 100, epochs: 4, changes: 1",
        "{protocol: future_rand, parameters: {epsilon: 1, max_changes: 1}}",
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
        # Large noise tables, and large domains, take a minute to build.
        pytest.param(name, marks=pytest.mark.verify) if name in LARGE else name
        for name in shipped_experiments()
    ],
)
def test_shipped_experiments_can_be_run(name: str, tmp_path: Path) -> None:
    path = shipped_experiments()[name]
    try:
        experiment = load_experiment(path)
    except JobError as error:
        # Its data cannot be redistributed: one line states how to prepare them.
        (problem,) = error.problems
        assert ". To make it: python -m experiments." in problem.message
        log = tmp_path / Path(problem.message.partition(" does not exist")[0]).name
        log.touch()
        labels_path(log).write_text("".join(f"label {number}\n" for number in range(100)))
        experiment = parse_experiment(path.read_text(), folder=tmp_path)
    assert experiment.name == name
    assert experiment.seeds >= 20
    for case in experiment.cases:
        assert isinstance(case.source, ChangeLogFile | SyntheticChanges | DrawnItems)
