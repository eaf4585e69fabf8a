"""``python -m experiments``: accepted files, and sets of items with queries and charts."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.cell_window import CellWindow
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.pipeline.devices.item_log import ItemLog
from dpstream.pipeline.devices.rows import InputError
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.cell_codes.codes import CellCode
from dpstream.randomizers.cell_codes.grid import Grid
from dpstream.randomizers.cell_codes.levels import Levels
from experiments.evaluation import pictures
from experiments.evaluation.counted import CountedEpoch, counted_epochs
from experiments.evaluation.counted_answers import (
    BOX_COUNTS,
    QUANTILES,
    SHARES,
    ask,
)
from experiments.evaluation.data import ChangeLogFile, SyntheticChanges
from experiments.evaluation.drawn_items import DrawnItems
from experiments.evaluation.experiment import Case, Experiment, load_experiment, parse_experiment
from experiments.evaluation.trial import run_trial
from experiments.preparation import labels_path
from experiments.shipped import shipped_experiments

USERS = 400

EXPERIMENT = f"""\
name: sets
data:
  - change_log: log.csv
    epochs: {{count: 1}}
    axes: [letter, number]
jobs:
  - protocol: count_min
    parameters: {{epsilon: 2, delta: 0.001, items: ITEMS, domain: DOMAIN}}
    shuffle: {{minimum: {USERS}}}
seeds: 2
"""

LABELS = [f"i{number}" for number in range(120)]


def window(
    code: CellCode, ground_truth: NDArray[np.int64], noise: NDArray[np.float64] | float = 0.0
) -> CellWindow:
    items = np.repeat(np.arange(1, ground_truth.size + 1), ground_truth.reshape(-1))
    raised = code.encode(items)
    cells = np.bincount(raised[raised >= 0], minlength=code.cells) + noise
    return CellWindow(code, cells.astype(np.float64), 4.0, len(items), len(items))


def requested(epoch: CountedEpoch) -> dict[str, tuple[float, float]]:
    found = ask(epoch, 3.0, np.random.default_rng(1))
    return {
        name: (float(np.abs(each.series.values - each.ground_truth).max()), len(each.ground_truth))
        for name, each in found.items()
    }


def test_evaluation_covers_frequent_items_and_random_items_and_all_items() -> None:
    ground_truth = np.arange(600)[::-1].copy()
    values = ground_truth.astype(np.float64) + np.where(ground_truth >= 500, 2.0, -1.0)
    epoch = CountedEpoch(ItemEstimates(values, 1.0, 1.5, 600, 600), ground_truth)
    assert requested(epoch) == {
        "top 100": (2.0, 100),
        "random 400": (1.0, 400),
        "all items": (2.0, 600),
    }
    found = ask(epoch, 3.0, np.random.default_rng(1))
    assert {each.predicted for each in found.values()} == {3.0}
    assert sorted(found["top 100"].ground_truth) == list(range(500, 600))
    covered = {
        name: bool(
            ((each.series.low <= each.ground_truth) & (each.ground_truth <= each.series.high)).any()
        )
        for name, each in found.items()
    }
    assert covered == {"top 100": False, "random 400": True, "all items": True}


def test_quantile_errors_are_measured_in_ranks() -> None:
    code, ground_truth = Levels(8, (4, 2)), np.array([10, 10, 10, 10, 10, 10, 10, 30])
    right = ask(
        CountedEpoch(window(code, ground_truth), ground_truth), None, np.random.default_rng(1)
    )[QUANTILES]
    assert right.series.values == pytest.approx(right.ground_truth)
    assert right.ground_truth == pytest.approx(np.array(SHARES) * 100)
    assert (
        (right.series.low <= right.ground_truth) & (right.ground_truth <= right.series.high)
    ).all()
    # All users are counted at the last value, below which 70 users truly are.
    others = window(code, np.array([0, 0, 0, 0, 0, 0, 0, 100]))
    wrong = ask(CountedEpoch(others, ground_truth), None, np.random.default_rng(1))[QUANTILES]
    assert wrong.series.values == pytest.approx([70, 70, 70, 70, 70, 70, 70, 80, 90])


def test_boxes_of_a_grid_are_queried() -> None:
    code = Grid((Levels(4, (2, 2)), Levels(6, (3, 2))))
    ground_truth = np.arange(24)
    found = requested(CountedEpoch(window(code, ground_truth), ground_truth))
    assert list(found) == [BOX_COUNTS]
    largest, answers = found[BOX_COUNTS]
    assert (round(largest, 9), answers) == (0.0, 1000)


def write_items(path: Path) -> None:
    rows = [
        f"{user},1,{LABELS[(user * (user + 7 * which)) % (20 + 100 * which)]}\n"
        for user in range(USERS)
        for which in range(2)
    ]
    path.write_text("user,epoch,value\n" + "".join(rows))


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_items(tmp_path / "log.csv")
    path = tmp_path / "sets.yaml"
    labels = f"[{', '.join(LABELS)}]"
    path.write_text(EXPERIMENT.replace("ITEMS", "2").replace("DOMAIN", labels))
    return path


def counted(case: Case) -> CountedEpoch:
    log = case.source.load(case.job)
    assert isinstance(log, ItemLog)
    (epoch,) = counted_epochs(case.job, log, seed=1)
    return epoch


@pytest.mark.parametrize(
    "name", [name for name, protocol in PROTOCOLS.items() if protocol.per_epoch]
)
def test_single_epoch_protocols_can_be_evaluated(name: str, experiment: Path) -> None:
    rows = [f"{user},1,i{user % 3}\n" for user in range(USERS)]
    Path("log.csv").write_text("user,epoch,value\n" + "".join(rows))
    text = EXPERIMENT.replace("ITEMS", "1").replace("DOMAIN", "[i0, i1, i2]")
    for parameter in ("delta", "items"):
        if not hasattr(PROTOCOLS[name].parameters, parameter):
            text = re.sub(rf"{parameter}: [^,]*, ", "", text)
    experiment.write_text(text.replace("count_min", name).replace("epsilon: 2", "epsilon: 6"))
    (case,) = load_experiment(experiment).cases
    trial = run_trial(case.job.to_bytes(), case.source, 1)
    assert list(trial.accuracies) == ["top 100", "all items"]
    measured = trial.accuracies["all items"]
    assert measured.predicted_rmse is not None
    assert measured.max_error < max(USERS / 4, 6 * measured.predicted_rmse)


def test_evaluation_of_open_domains_covers_detected_items(experiment: Path, tmp_path: Path) -> None:
    rows = [f"{user},1,{1000 * (user % 2)}\n" for user in range(USERS)]
    Path("log.csv").write_text("user,epoch,value\n" + "".join(rows))
    text = EXPERIMENT.replace("ITEMS", "1").replace("DOMAIN", "{bits: BITS}, queries: top")
    experiment.write_text(text.replace("BITS", "12"))
    (case,) = load_experiment(experiment).cases
    trial = run_trial(case.job.to_bytes(), case.source, 1)
    assert list(trial.accuracies) == ["found 32"]
    assert trial.accuracies["found 32"].max_error < USERS / 4
    assert pictures.write_pictures([case], tmp_path) == []
    experiment.write_text(text.replace("BITS", "25"))
    (case,) = load_experiment(experiment).cases
    with pytest.raises(InputError, match="the domain has 33,554,432 items"):
        case.source.check(case.job)


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
