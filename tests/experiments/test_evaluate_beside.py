"""Experiments on an image: what errors stand beside, and which reports pass no topic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.command import main
from experiments.evaluation import counted
from experiments.evaluation.experiment import load_experiment, parse_experiment
from experiments.shipped import shipped_experiments
from tests.support.commands import Commands

EXPERIMENT = """\
name: image
data:
  - change_log: image.pgm
    epochs: {count: 1}
    most_held: 255
beside:
  bar: "of another simulation: the same"
  paper: of other data
jobs:
  - protocol: fragments
    parameters:
      {epsilon: [1, 2], delta: 1.0e-3, domain: {grid: [4, 6]}, neighbours: removal}
    shuffle: {minimum: 276}
    beside:
      bar:
        all items: [4.5, none]
        all zeros: [1234.5, 1235.5]
      paper: {"all, clipped": [none, 77.7]}
seeds: 1
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """Of 276 users, and 24 pixels."""
    (tmp_path / "image.pgm").write_bytes(b"P5\n6 4\n255\n" + bytes(range(24)))
    path = tmp_path / "image.yaml"
    path.write_text(EXPERIMENT)
    return path


@pytest.fixture
def experiments(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("COLUMNS", "200")
    return Commands(capsys, program=main)


def row_of(output: str, *named: str) -> list[str]:
    (row,) = [
        line.split()
        for line in output.splitlines()
        if all(each in line for each in named) and not line.startswith("epsilon")
    ]
    return row


@pytest.mark.verify
def test_each_error_has_its_numbers_beside_it(
    experiments: Commands, experiment: Path, tmp_path: Path
) -> None:
    cases = load_experiment(experiment).cases
    assert [case.beside for case in cases] == [
        {"bar": {"all items": 4.5, "all zeros": 1234.5}, "paper": {}},
        {"bar": {"all zeros": 1235.5}, "paper": {"all, clipped": 77.7}},
    ]
    arguments = (experiment, "--output", tmp_path / "out", "--processes", 1)
    output = experiments(*arguments).output
    heading = next(line.split() for line in output.splitlines() if line.startswith("epsilon"))
    assert heading[-2:] == ["bar", "paper"]
    found = {
        epsilon: [
            row_of(output, f"{epsilon} ", estimate)[-2:]
            for estimate in ("all items", "all, clipped", "all zeros")
        ]
        for epsilon in (1, 2)
    }
    assert found[1] == [["4.5", "-"], ["-", "-"], ["1,234", "-"]]
    assert found[2] == [["-", "-"], ["-", "77.7"], ["1,236", "-"]]
    assert "of another simulation: the same" in output
    assert "of other data" in output
    results = experiments(*arguments, "--json").json["results"]
    assert {
        (each["epsilon"], each["estimate"]): each["beside"] for each in results if each["beside"]
    } == {
        (1, "all items"): {"bar": 4.5},
        (1, "all zeros"): {"bar": 1234.5},
        (2, "all zeros"): {"bar": 1235.5},
        (2, "all, clipped"): {"paper": 77.7},
    }


@pytest.mark.verify
@pytest.mark.parametrize("bytes_", [1 << 30, 10])
def test_reports_that_pass_no_topic_are_told(
    experiments: Commands,
    experiment: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bytes_: int,
) -> None:
    monkeypatch.setattr(counted, "MOST_TOPIC_BYTES", bytes_)
    arguments = (experiment, "--output", tmp_path / "out", "--processes", 1)
    results = experiments(*arguments, "--json").json["results"]
    assert {each["through_topics"] for each in results} == {bytes_ > 10}
    output = experiments(*arguments).output
    assert ("without codec and stages" in output) == (bytes_ == 10)
    row = row_of(output, "1 ", "all items")
    assert (row[-3] == "no") == (bytes_ == 10)


@pytest.mark.verify
@pytest.mark.parametrize("name", ["esa-horse", "esa-night-lights", "esa-camera"])
def test_shipped_images_have_bars_and_the_paper_s_numbers(name: str, tmp_path: Path) -> None:
    """Of every central epsilon, and every number of reports."""
    text = shipped_experiments()[name].read_text()
    side = {"esa-horse": (274, 320), "esa-night-lights": (512, 1024), "esa-camera": (512, 512)}
    height, width = side[name]
    log = text.partition("change_log: ")[2].partition("\n")[0].removesuffix(".gz")
    image = np.zeros((height, width), np.uint8)
    (tmp_path / log).write_bytes(f"P5\n{width} {height}\n255\n".encode() + image.tobytes())
    loaded = parse_experiment(text.replace(f"{log}.gz", log), folder=tmp_path)
    assert "other data" in loaded.beside["paper"]
    of_label: dict[str, list[float]] = {}
    for case in loaded.cases:
        for column, estimates in case.beside.items():
            if "all, clipped" in estimates:
                of_label.setdefault(f"{case.label}: {column}", []).append(estimates["all, clipped"])
    for reports in ("", ", 4 reports", ", 16 reports", ", 256 reports"):
        for column in ("bar", "paper"):
            falling = of_label[f"fragments, published{reports}: {column}"]
            assert len(falling) == 5
            assert falling == sorted(falling, reverse=True)
