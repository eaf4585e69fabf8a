"""Items drawn for a trial have the right distribution and top item, and give results."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from experiments.command import main
from experiments.evaluation.drawn_items import (
    DrawnItems,
    ZipfItems,
    ZipfQueries,
)
from experiments.evaluation.experiment import parse_experiment
from experiments.evaluation.trial import run_trial
from tests.support.commands import Commands

FALSE_ALARM = 1e-9


@cache
def job(bits: int, items: int = 1) -> DeployedJob:
    text = (
        f"name: drawn\nprotocol: count_min\nparameters: {{epsilon: 4, delta: 0.1, domain: "
        f"{{bits: {bits}}}, items: {items}, dummies: shuffle}}\nepochs: {{count: 1}}\n"
        "shuffle: {minimum: 1}\n"
    )
    return deploy_job(parse_job(text), deployed_at=0)


def held(source: DrawnItems, of: DeployedJob) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    log = source.load(of)
    table = np.zeros((source.users, of.domain.size - 1), np.bool_)
    table[log.user_indices, log.values - 1] = True
    assert table.sum() == len(log.values), "an item occurs twice for a user"
    assert (np.diff(log.user_indices) >= 0).all()
    return table


@pytest.mark.parametrize("exponent", [0.0, 1.1])
def test_single_items_are_drawn_with_zipf_probabilities(exponent: float) -> None:
    counts = held(ZipfItems(20_000, 1, exponent=exponent), job(4)).sum(axis=0)
    shares = np.arange(1, 17) ** -exponent
    assert counts.sum() == 20_000
    expected = 20_000 * shares / shares.sum()
    assert stats.chisquare(counts, expected).pvalue > FALSE_ALARM


def test_drawn_items_of_a_user_are_distinct() -> None:
    two = held(ZipfItems(20_000, 1, exponent=1.0, held=2), job(4, 4))
    assert (two.sum(axis=1) == 2).all()
    shares = 1 / np.arange(1, 17)
    shares /= shares.sum()
    first = shares[0] + sum(share * shares[0] / (1 - share) for share in shares[1:])
    found = int(two[:, 0].sum())
    assert stats.binomtest(found, 20_000, first).pvalue > FALSE_ALARM


EXPERIMENT = """\
name: drawn
data:
  - selection: {users: [40, 400]}
jobs:
  - label: one
    protocol: single_message
    parameters: {epsilon: 4, delta: 0.01, domain: {bits: 3}}
    shuffle: {minimum: users}
  - label: many
    protocol: count_min
    parameters: {epsilon: 4, delta: 0.01, domain: {bits: 3}, items: 8}
    shuffle: {minimum: users}
seeds: 2
"""


def test_results_of_drawn_items_include_message_counts_and_selected_items(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "drawn.yaml").write_text(EXPERIMENT)
    cases = parse_experiment(EXPERIMENT).cases
    assert [case.job.shuffle.minimum for case in cases] == [40, 400, 40, 400]
    said = Commands(capsys, ("--processes", "1"), main)("drawn.yaml").output
    assert "selected-by-n.png" in said
    assert "error-by-n.png" in said
    assert "picture" not in said
    with (tmp_path / "drawn-results" / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    assert {row["estimate"] for row in rows} == {"all items"}
    for row in rows:
        sent = float(row["messages"])
        if row["label"] == "one":
            assert sent == 1
        else:
            assert 4 < sent < 100
        if row["n"] == "400":
            assert row["selected"] == "1"
    lines = [line for line in said.splitlines() if line.startswith(("one", "many"))]
    assert len(lines) == 4
    assert all(line.split()[-1].endswith("%") for line in lines)


def test_predicted_error_includes_random_rounding_of_answers() -> None:
    text = """
name: queries
data: [{zipf: {users: 4000, exponent: 0.5, held: 4, answers: true}}]
jobs:
  - protocol: count_min
    parameters: {epsilon: 8, delta: 1.0e-3, domain: {bits: 4}, items: 4, dummies: shuffle}
    shuffle: {minimum: users}
seeds: 1
"""
    (case,) = parse_experiment(text).cases
    assert isinstance(case.source, ZipfQueries)
    found = [run_trial(case.job.to_bytes(), case.source, seed) for seed in range(1, 9)]
    measured = np.sqrt(np.mean([each.accuracies["all items"].rmse ** 2 for each in found]))
    rounding = np.sqrt(case.source.drawn_variance(case.job))
    predicted = found[0].accuracies["all items"].predicted_rmse
    assert predicted is not None
    assert predicted > rounding > 10
    assert measured == pytest.approx(predicted, rel=0.3)
    assert measured > 0.7 * rounding
