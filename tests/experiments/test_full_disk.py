"""Experiments on a full disk: a sentence that names the file, and whole trials."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.command import main
from tests.support.commands import Commands
from tests.support.no_room import no_room

EXPERIMENT = """
name: small
data: [{synthetic: {users: 200, epochs: 8}}]
jobs: [{protocol: future_rand, parameters: {epsilon: 1, changes: 2}}]
seeds: 1
"""


@pytest.mark.parametrize("room", [0, 40, 700])
def test_an_experiment_is_told_which_file_and_keeps_whole_trials(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, room: int
) -> None:
    experiment, folder = tmp_path / "small.yaml", tmp_path / "results"
    experiment.write_text(EXPERIMENT)
    experiments = Commands(capsys, ("--output", str(folder), "--processes", "1"), main)
    with no_room(room):
        said = experiments(experiment)
    assert said.code == 1
    assert f"error: {folder}/" in said.errors
    assert "File too large" in said.errors
    assert not (folder / "results.csv").exists()
    assert not list(folder.glob(".*"))
    trials = folder / "trials.jsonl"
    assert not trials.exists() or trials.read_bytes()[-1:] in (b"", b"\n")
    assert experiments(experiment).code == 0
    assert (folder / "results.csv").read_text().count("\n") > 1
