"""``python -m experiments`` measures errors, and resumes where it stopped."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.results.smoothing import BIASED, NAMES, UNBIASED
from experiments.command import main
from experiments.evaluation import pending_trials
from experiments.evaluation.experiment import load_experiment
from experiments.evaluation.journal import Journal
from experiments.evaluation.results import CSV_COLUMNS
from experiments.evaluation.trial import run_trial
from tests.support.commands import Commands
from tests.support.small_run import EPOCHS, USERS, write_changes

pytestmark = pytest.mark.slow

EXPERIMENT = f"""\
name: small
data:
  - change_log: changes.csv
    epochs: {{count: {EPOCHS}}}
jobs:
  - protocol: future_rand
    parameters: {{epsilon: [2, 4], max_changes: 2}}
seeds: 3
"""


@pytest.fixture
def experiments(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("COLUMNS", "80")
    return Commands(capsys, ("--processes", "1"), main)


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_changes(tmp_path / "changes.csv")
    path = tmp_path / "small.yaml"
    path.write_text(EXPERIMENT)
    return path


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def of(estimate: str, rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [row for row in rows if row["estimate"] == estimate]


def stopping(after: int, error: type[BaseException]) -> Callable[..., Any]:
    left = [after]

    def run_or_stop(*arguments: Any) -> Any:
        if not left[0]:
            raise error
        left[0] -= 1
        return run_trial(*arguments)

    return run_or_stop


def test_results_have_a_row_per_trial_and_estimate(experiments: Commands, experiment: Path) -> None:
    said = experiments(experiment)
    assert (said.code, said.errors) == (0, "")
    rows = read_rows(Path("small-results/results.csv"))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert [(row["epsilon"], row["seed"], row["estimate"]) for row in rows] == [
        (epsilon, seed, estimate)
        for epsilon in ("2.0", "4.0")
        for seed in "123"
        for estimate in NAMES
    ]
    for row in rows:
        assert (row["experiment"], row["data"], row["label"]) == ("small", "changes", "future_rand")
        assert (row["n"], row["d"], row["k"]) == (str(USERS), str(EPOCHS), "2")
        assert float(row["epsilon_stream"]) == pytest.approx(float(row["epsilon"]), rel=1e-4)
        assert json.loads(row["parameters"])["epsilon"] == float(row["epsilon"])
        assert float(row["mean_abs_error"]) <= float(row["rmse"]) <= float(row["max_error"])
        assert (row["coverage"] == "") == row["estimate"].endswith("shrunk")
        assert (row["predicted_rmse"] == "") == (row["estimate"] in BIASED)
    errors = {
        name: np.array([float(row["rmse"]) for row in rows if row["estimate"] == name])
        for name in NAMES
    }
    for name in UNBIASED:
        assert (errors[f"{name} clipped"] <= errors[name]).all()
        assert (errors[f"{name} clipped"] < errors[name]).any()


def test_killed_experiment_loses_only_the_last_trial(
    experiments: Commands, experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert experiments(experiment).code == 0
    folder = Path("small-results")
    whole, journal = (folder / "results.csv").read_bytes(), folder / "trials.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])
    (folder / "results.csv").unlink()
    monkeypatch.setattr(pending_trials, "run_trial", stopping(1, AssertionError))
    assert experiments(experiment).errors == "5 of 6 trials are already in small-results\n"
    assert (folder / "results.csv").read_bytes() == whole
    assert len(journal.read_bytes().splitlines()) == 6


@pytest.mark.verify
def test_parallel_trials_match_serial_ones_and_leave_no_process(
    experiments: Commands, experiment: Path, tmp_path: Path
) -> None:
    fewer = (experiment, "--seeds", "1", "--output")
    assert experiments(*fewer, "one").code == 0
    planned = pending_trials.planned_trials(load_experiment(experiment))

    def stop() -> None:
        raise KeyboardInterrupt

    with Journal(tmp_path / "journal") as journal, pytest.raises(KeyboardInterrupt):
        pending_trials.run_pending(planned, journal, processes=2, on_trial=stop)
    assert active_children() == []
    assert sum(journal.get(one.key) is not None for one in planned) == 1

    two = Commands(experiments.capture, ("--processes", "2"), main)
    assert two(*fewer, "two").code == 0
    assert Path("one/results.csv").read_bytes() == Path("two/results.csv").read_bytes()
    assert active_children() == []


def test_invalid_experiment_is_rejected_in_one_line(
    experiments: Commands, experiment: Path
) -> None:
    said = experiments("nothing.yaml")
    assert said.code == 2
    assert said.errors.startswith("error: there is no file nothing.yaml; experiments: actcal, ")
    said = experiments("learn-mnist")
    assert (said.code, said.errors) == (
        2,
        "error: learn-mnist is a separate program. Run it: python -m experiments.learn_mnist "
        "FOLDER\n",
    )
    said = experiments("small.yaml", "--seed", "1")
    assert said.code == 2
    assert said.errors.splitlines()[-1] == "see python -m experiments --help"
    Path("changes.csv").write_text("user,epoch,value\nann,1,maybe\n")
    for processes in ("1", "2"):
        said = Commands(experiments.capture, program=main)(experiment, "--processes", processes)
        first, second = said.errors.splitlines()
        assert (said.code, first.endswith("changes.csv: 1 bad row; correct them")) == (2, True)
        assert second.endswith("changes.csv:2: value 'maybe' is not 0 or 1")
