"""What a run of a job that learns looks like: the input cannot say how good a model is."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from dpstream.aggregators.estimate import Estimate
from dpstream.pipeline.devices.truths import CountedTruths
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.operations.up.curves import write_rows
from dpstream.pipeline.operations.up.outcome import NOT_PRIVATE, Outcome, summary, write_csv
from dpstream.pipeline.operations.up.progress import Progress
from dpstream.pipeline.operations.up.screen import View, line_of, render
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.randomizers.labelled_examples import packed_examples
from dpstream.topics.manifests import Fate
from dpstream.topics.names import Role

USERS = 3_600


@pytest.fixture
def progress() -> Progress:
    tested = packed_examples(np.array([[1, 900, -300], [2, -900, 500]]))
    job = deploy_job(
        make_job(
            {
                "name": "learning",
                "protocol": "ldp_sgd",
                "parameters": {
                    "epsilon": 3,
                    "delta": 0.01,
                    "features": 2,
                    "classes": 2,
                    "test_set": tested,
                },
                "epochs": {"count": 3},
                "shuffle": {"minimum": 5},
            }
        ),
        deployed_at=0,
    )
    progress = Progress(job, CountedTruths(np.zeros((3, 0), np.int64)))
    guarantee = job.guarantee().to_json()
    for epoch, estimate in enumerate((None, 91.0, 96.25), 1):
        found = estimate and Estimate.around(estimate, 1.0, 1.96, 900, USERS)
        fate = Fate.RELEASED if estimate else Fate.TOO_SMALL
        record = EstimateRecord(
            job.deployment, epoch, fate, 1_000 * epoch, 900, USERS, found or None, guarantee
        )
        progress.apply(Role.ESTIMATES, record.to_bytes())
    return progress


def outcome_of(progress: Progress) -> Outcome:
    return Outcome(progress.job, progress.rows(), USERS, seconds=2.5, reports=1_800)


def test_an_epoch_is_said_without_a_truth(progress: Progress) -> None:
    without, _, last = map(line_of, progress.rows())
    assert last.startswith("epoch 3  accuracy on the test set, % 96.2  95 % 94.3 to 98.2  reports")
    assert "truth" not in last
    assert "accuracy on the test set, % -" in without
    assert "too small" in without


def test_the_table_has_neither_a_truth_nor_its_footnote(progress: Progress) -> None:
    console = Console(record=True, width=120, height=30, file=io.StringIO())
    console.print(render(View("learning", "", (), USERS, progress), 120, 30))
    text = console.export_text()
    assert "truth" not in text
    assert NOT_PRIVATE not in text
    # An accuracy lies between 0 and 100, however many users there are.
    assert text.splitlines()[2].rstrip().endswith(" 100")
    (line,) = (line for line in text.splitlines() if line.strip().startswith("3 "))
    assert line.index("●") > line.index("98.2") + 20


def test_the_summary_ends_with_the_last_model(progress: Progress) -> None:
    said = dict(summary(outcome_of(progress)))
    assert said["last estimate"] == (
        "The accuracy on the test set is 96.2 % at epoch 3, between 94.3 and 98.2."
    )
    assert said.keys() == {"last estimate", "guarantee"}


def test_what_is_kept_has_no_truth(progress: Progress, tmp_path: Path) -> None:
    outcome = outcome_of(progress)
    write_csv(outcome.job, outcome.rows, tmp_path / "estimates.csv")
    write_rows(outcome.job, outcome.rows, tmp_path / "estimates.png")
    with (tmp_path / "estimates.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    assert [row["estimate"] for row in rows] == ["", "91.000", "96.250"]
    assert {row[f"truth ({NOT_PRIVATE})"] for row in rows} == {""}
    body = outcome.to_json()
    assert body["rmse"] is body["coverage"] is None
    assert [epoch["truth"] for epoch in body["epochs"]] == [None, None, None]
