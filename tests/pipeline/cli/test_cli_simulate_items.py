"""``dpstream simulate`` of jobs that count items epoch by epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.devices.item_log import ItemLog, load_item_log
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import load_job
from dpstream.pipeline.simulation.simulate import simulate
from dpstream.randomizers.randomness import seeded_generator
from tests.support.commands import Commands

USERS, EPOCHS = 3_000, 2

LABELS = "[walk, bus, car, bike]"
COUNTS = {"walk": 1500, "bus": 900, "car": 600}


def job_file(
    folder: Path, parameters: str, protocol: str = "count_min", minimum: int = 1000
) -> Path:
    path = folder / "items.yaml"
    path.write_text(
        f"name: items\nprotocol: {protocol}\n"
        f"parameters: {{epsilon: 1, delta: 1e-6, {parameters}}}\n"
        f"epochs: {{count: {EPOCHS}}}\nshuffle: {{minimum: {minimum}}}\n"
    )
    return path


def input_file(folder: Path, values: list[object]) -> Path:
    """The same values at both epochs, a user each."""
    path = folder / "input.csv"
    rows = [
        f"user{user},{epoch},{value}\n"
        for epoch in range(1, EPOCHS + 1)
        for user, value in enumerate(values)
    ]
    path.write_text("user,epoch,value\n" + "".join(rows))
    return path


def labels() -> list[object]:
    return [label for label, count in COUNTS.items() for _ in range(count)]


def numbers(size: int, seed: int = 1) -> list[object]:
    """Few values are held by many."""
    ranks = seeded_generator(seed).zipf(1.5, USERS)
    return [int(rank) * 7919 % size for rank in ranks.tolist()]


@pytest.mark.parametrize("protocol", ["count_min", "hadamard", "single_message"])
def test_json_has_all_that_is_promised(dpstream: Commands, tmp_path: Path, protocol: str) -> None:
    job = job_file(tmp_path, f"domain: {LABELS}", protocol)
    changes = input_file(tmp_path, labels())
    asked = ("--item", "bus", "--item", "bike", "--json")
    said = dpstream("simulate", job, "--input", changes, "--seed", 1, *asked)
    assert said.errors == ""
    body = said.json
    assert body["guarantee"]["unit"] == "epoch"
    assert body["trials"] == 1
    assert [epoch["epoch"] for epoch in body["epochs"]] == [1, 2]
    for epoch in body["epochs"]:
        assert (epoch["contributors"], epoch["population"]) == (USERS, USERS)
        assert epoch["messages_per_user"] == epoch["reports"] / USERS >= 1
        assert 0 < epoch["mean_absolute_error"] <= epoch["max_error"]
        assert epoch["predicted_error"] > 0
        assert [each["name"] for each in epoch["estimates"]] == ["bus", "bike"]
        assert [each["truth"] for each in epoch["estimates"]] == [900, 0]
        for each in epoch["estimates"]:
            assert abs(each["estimate"] - each["truth"]) < 7 * each["standard_deviation"]
            assert each["low"] < each["estimate"] < each["high"]
    for name in ("predicted_error", "mean_absolute_error", "max_error"):
        assert body[name] == pytest.approx(np.mean([each[name] for each in body["epochs"]]))
    assert 0 <= body["coverage"] <= 1
    assert body["recall"] is None


def test_the_stage_s_dummies_are_not_sent_by_users(dpstream: Commands, tmp_path: Path) -> None:
    job = job_file(tmp_path, f"domain: {LABELS}, dummies: shuffle")
    changes = input_file(tmp_path, labels())
    body = dpstream("simulate", job, "--input", changes, "--seed", 1, "--json").json
    assert [epoch["reports"] for epoch in body["epochs"]] == [USERS, USERS]
    # Nothing was asked: few items are all shown.
    assert [each["name"] for each in body["epochs"][0]["estimates"]] == [*COUNTS, "bike"]


@pytest.mark.slow
def test_a_seed_repeats_everything_and_trials_have_seeds_of_their_own(
    dpstream: Commands, tmp_path: Path
) -> None:
    job = job_file(tmp_path, "domain: {bits: 12}, rows: 3, buckets: 64")
    changes = input_file(tmp_path, numbers(1 << 12))
    arguments = ("simulate", job, "--input", changes, "--seed", 7, "--json")
    single = dpstream(*arguments).json
    assert dpstream(*arguments).json == single
    several = dpstream(*arguments, "--trials", 3).json
    assert several["trials"] == 3
    assert several["epochs"] == single["epochs"]
    assert several["mean_absolute_error"] != single["mean_absolute_error"]
    assert several["predicted_error"] == pytest.approx(single["predicted_error"], rel=0.3)
    assert several["coverage"] > 0.8


def test_withheld_windows_have_no_accuracy(dpstream: Commands, tmp_path: Path) -> None:
    job = job_file(tmp_path, f"domain: {LABELS}", minimum=USERS + 1)
    changes = input_file(tmp_path, labels())
    arguments = ("simulate", job, "--input", changes, "--seed", 1)
    body = dpstream(*arguments, "--json").json
    for epoch in body["epochs"]:
        assert epoch["fate"] == "too small"
        assert epoch["estimates"] == []
        assert (epoch["mean_absolute_error"], epoch["predicted_error"]) == (None, None)
    assert (body["rmse"], body["mean_absolute_error"], body["coverage"]) == (None, None, None)
    said = dpstream(*arguments)
    assert said.code == 0
    assert "too small" in said.output
    assert "windows withheld" in said.output


class TestLargeDomains:
    @pytest.fixture
    def no_dense_truth(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(log: ItemLog, domain: Any) -> None:
            raise AssertionError("the counts of all items of a large domain were asked for")

        monkeypatch.setattr(ItemLog, "truth", refuse)

    @pytest.mark.slow
    @pytest.mark.usefixtures("no_dense_truth")
    @pytest.mark.parametrize(
        "domain", ["{bits: 24}", pytest.param("{strings: {bytes: 3}}", marks=pytest.mark.verify)]
    )
    def test_found_items_are_compared_with_those_most_held(
        self, dpstream: Commands, tmp_path: Path, domain: str
    ) -> None:
        job = job_file(tmp_path, f"domain: {domain}, messages_per_user: 200")
        text = domain != "{bits: 24}"
        values = [f"x{value:x}"[:3] if text else value for value in numbers(1 << 24)]
        changes = input_file(tmp_path, values)
        arguments = ("simulate", job, "--input", changes, "--seed", 1)
        body = dpstream(*arguments, "--json", "--top", 5).json
        for epoch in body["epochs"]:
            # Few of the 32 most held stand out: two thirds of 3,000 users hold the first four.
            assert 0.1 < epoch["recall"] <= 1
            first = epoch["estimates"][0]
            assert first["truth"] > 1000
            assert abs(first["estimate"] - first["truth"]) < 10 * first["standard_deviation"]
            assert len(epoch["estimates"]) == 5
            assert 0 < epoch["mean_absolute_error"] <= epoch["max_error"]
        asked = body["epochs"][0]["estimates"][0]["name"]
        body = dpstream(*arguments, "--json", "--item", asked).json
        (answer,) = body["epochs"][0]["estimates"]
        assert (answer["name"], answer["truth"]) == (asked, first["truth"])
        said = dpstream(*arguments)
        assert said.code == 0
        assert "found of most held" in said.output
        assert "found of the most held" in said.output

    @pytest.mark.usefixtures("no_dense_truth")
    def test_items_that_are_not_published_are_looked_at_too(self, tmp_path: Path) -> None:
        """Domains above 2^15 publish the items most held; errors are those of 500 items."""
        path = job_file(tmp_path, "domain: {bits: 18}, rows: 3, buckets: 512")
        job = deploy_job(load_job(path), deployed_at=0)
        log = load_item_log(input_file(tmp_path, numbers(1 << 18)), domain=job.domain)
        done = simulate(job, log, seed=1)
        assert done.truth.shape == (EPOCHS + 1, 0)
        for accuracy in done.accuracies.values():
            assert 400 < len(accuracy.errors) <= 500
            assert accuracy.recall is not None
            assert accuracy.mean_absolute_error == pytest.approx(accuracy.predicted_error, rel=0.3)
        assert done.errors().shape == done.covered().shape
        assert done.covered().mean() > 0.85
