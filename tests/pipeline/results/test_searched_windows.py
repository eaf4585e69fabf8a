"""Test jobs that search the answers of several epochs together, from reports to printed output."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpstream.aggregators.counts import EstimatedCounts
from dpstream.pipeline.devices.change_log import load_change_log
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import Job, make_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.planning.job_plan import plan
from dpstream.pipeline.protocols.forecasts import SearchedForecast
from dpstream.pipeline.results.compared_protocols import least_error, notes_of_deployment
from dpstream.pipeline.results.coverage import expected_coverage
from dpstream.pipeline.results.epoch_counts import NoCountsError, composed, read_counts
from dpstream.pipeline.results.expected_errors import forecast_of
from dpstream.pipeline.results.sentences import sentence_of
from dpstream.pipeline.simulation.simulated_job import simulate
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.stages.result_documents import ResultDocuments
from dpstream.topics.names import Role
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster
from tests.support.set_jobs import Run, held_by, within

USERS = 1_500
WORDS = held_by([("tea", 900), ("oat", 600)])
DOMAIN = {"strings": {"bytes": 3}}


def values_of(count: int = 3, *, renew: bool = False, **parameters: Any) -> dict[str, Any]:
    return {
        "name": "sets",
        "protocol": "sampled_response",
        "parameters": {"epsilon": 6, "domain": DOMAIN, **parameters},
        "epochs": {"count": count, "renew": renew},
        "shuffle": {"minimum": 50},
    }


def job_of(count: int = 3, *, renew: bool = False, **parameters: Any) -> Job:
    return make_job(values_of(count, renew=renew, **parameters))


def test_commands_state_the_number_of_epochs_that_a_search_covers(
    dpstream: Commands, cluster: MemoryCluster, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(values_of()))
    assert dpstream("deploy", path).code == 0
    run = Run(cluster, "sets")
    for epoch in (1, 2, 3):
        run.report(epoch, WORDS)
    table = dpstream("estimates", "sets").output
    for line, word in (("mean of 1 epoch\n", "tea"), ("mean of 3 epochs\n", "tea")):
        assert line in table
        assert word in table
    rows = [*csv.DictReader(dpstream("estimates", "sets", "--csv", "-").output.splitlines())]
    assert {(row["epoch"], row["averaged_epochs"]) for row in rows} == {
        *(("1", "1"), ("2", "2"), ("3", "3"))
    }
    (tea,) = (row for row in rows if (row["epoch"], row["item"]) == ("3", "tea"))
    assert within(float(tea["estimate"]), 900, float(tea["standard_error"]))
    assert (tea["reports"], tea["population"]) == (str(USERS), str(USERS))

    def query(*options: object) -> Any:
        return dpstream("query", "sets", *options, "--json").json

    alone, both, every = query("--epoch", 2), query("--epochs", "2..3"), query("--epochs", "1..3")
    errors = [body["items"][0]["standard_error"] for body in (alone, both, every)]
    # The error of the whole horizon also lacks that of sampling.
    assert errors[0] / errors[1] == pytest.approx(2**0.5, rel=0.1)
    assert errors[0] / errors[2] > 3**0.5 * 0.9
    for body in (alone, both, every):
        assert (body["items"][0]["name"], body["population"]) == ("tea", USERS)
        assert body["composed"]["epsilon"] == body["guarantee"]["epsilon"] <= 6
    assert float(tea["estimate"]) == pytest.approx(every["items"][0]["estimate"], abs=0.06)
    (oat,) = query("--epochs", "1..3", "--item", "oat")["items"]
    assert within(oat["estimate"], 600, oat["standard_error"])
    text = " ".join(dpstream("query", "sets", "--epochs", "1..3").output.split())
    assert "mean of epochs 1 to 3: 1,500 of 1,500 users contributed" in text
    assert "guarantee epsilon 6 for a user's whole stream" in text
    refused = dpstream("estimates", "sets", "--interval", 2)
    assert refused.code != 0
    assert "use 'dpstream query' with --epochs" in refused.errors
    published = [EstimateRecord.from_bytes(each) for each in run.driver.log.values(Role.ESTIMATES)]
    sentence = str(sentence_of(run.job, published))
    assert sentence.startswith("Most frequent on average in 3 epochs up to epoch 3: tea")
    document = json.loads(ResultDocuments(run.job).document(published[-1]))
    assert document["averaged_epochs"] == 3
    assert document["reports"] == USERS


def test_every_period_of_a_recurring_job_contains_one_answer_by_each_user(
    dpstream: Commands, cluster: MemoryCluster, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps({**values_of(2, renew=True), "budget": {"epsilon": 12}}))
    assert dpstream("deploy", path).code == 0
    run = Run(cluster, "sets")
    for epoch in (1, 2, 3):
        run.report(epoch, WORDS)
    body = dpstream("query", "sets", "--epochs", "2..3", "--json").json
    # Epochs of two horizons: phases are kept, so all users have answered once.
    assert (body["contributors"], body["population"]) == (USERS, USERS)
    assert body["composed"]["epsilon"] <= 6
    tea = body["items"][0]
    assert tea["name"] == "tea"
    assert within(tea["estimate"], 900, tea["standard_error"])
    published = [EstimateRecord.from_bytes(each) for each in run.driver.log.values(Role.ESTIMATES)]
    # What a horizon publishes does not build on the previous one.
    assert [record.notes for record in published] == [
        *(["mean of 1 epoch"], ["mean of 2 epochs"], ["mean of 1 epoch"])
    ]


def test_queries_of_windows_longer_than_the_period_are_rejected() -> None:
    job = deploy_job(job_of(renew=True), deployed_at=0)
    assert composed(job, 3).epsilon == job.guarantee.epsilon
    for first, last in ((1, 4), (2, 9)):
        with pytest.raises(NoCountsError, match="in more than 3 epochs a device answers twice"):
            next(iter(read_counts(job, first, last)))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"window": 4}, "window is 4; expected at most 3"),
        ({"window": 0}, "expected an integer of at least 1"),
        ({"window": 2, "domain": {"bits": 20}}, "has more than 1,048,576 items"),
        ({"window": 2, "domain": ["a", "b"]}, "has more than 1,048,576 items"),
        ({"complete": True}, "complete: requires a domain of at most 1,048,576 items"),
        ({"reports": 2}, "reports: requires a domain of at most 1,048,576 items"),
    ],
)
def test_unsupported_parameters_are_rejected(parameters: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        job_of(**parameters).calibrate()


def test_central_guarantees_are_rejected_if_the_number_of_answers_is_unknown() -> None:
    numbers: dict[str, Any] = {"domain": None, "low": 0, "high": 64, "buckets": 64}
    for parameters in ({}, {"domain": {"bits": 21}}, numbers):
        values = {**values_of(**parameters), "central": {"epsilon": 1, "delta": 1e-6}}
        with pytest.raises(JobError, match="hidden only among those about the same level"):
            make_job(values)
    whole = job_of(domain={"bits": 20})
    assert whole.hidden is not None
    assert job_of().hidden is None


def test_length_of_the_search_window_does_not_change_the_meaning_of_reports() -> None:
    one, other = (deploy_job(job_of(window=each), deployed_at=0) for each in (None, 2))
    assert one.fingerprint == other.fingerprint
    assert (one.added_epochs, other.added_epochs) == (3, 2)
    assert deploy_job(job_of(window=1), deployed_at=0).added_epochs is None


def test_plan_compares_search_windows_with_new_reports_at_every_epoch() -> None:
    users, job = 300_000, job_of(10)
    made = plan(job, users, compared=True)
    errors = [epoch.standard_error for epoch in made.epochs]
    assert errors == sorted(errors, reverse=True)
    # The error of a single epoch is that of a tenth of the answers, apart from shared cells.
    assert errors[0] / errors[-1] == pytest.approx(10**0.5, rel=0.05)
    ours, charged = made.alternatives
    assert charged.protocol == "projective_geometry"
    assert charged.epsilon == pytest.approx(6, rel=1e-9)
    assert charged.rmse > 3 * ours.rmse
    assert least_error(made.alternatives) == ours
    assert list(notes_of_deployment(job, job.calibrate())) == []
    forecast = forecast_of(job, job.calibrate())
    assert isinstance(forecast, SearchedForecast)
    whole, parts = forecast.detection_notes(users)
    assert whole.startswith("in windows of 10 epochs, of 300,000 users")
    assert "in a single epoch, about " in parts
    assert "with epsilon / 10 each time (projective_geometry), about " in parts
    found = re.findall(r"about ([\d,]+) must", whole + parts)
    together, alone, each = (int(number.replace(",", "")) for number in found)
    assert together * 2 < alone < each / 2


def test_simulation_compares_means_with_the_mean_over_the_input(tmp_path: Path) -> None:
    path = tmp_path / "words.csv"
    rows = [f"{user},1,{word}" for user, word in enumerate(WORDS)]
    # A third of them have another word from the second epoch on.
    rows += [f"{user},2,ale" for user in range(0, USERS, 3)]
    path.write_text("\n".join(["user,epoch,value", *rows]))
    for window, held in ((None, 700), (1, 600)):
        job = deploy_job(job_of(window=window), deployed_at=0, deployment=bytes(16))
        log = load_change_log(path, domain=job.domain, last_epoch=3)
        found = simulate(job, log, seed=1)
        last = found.accuracies[3]
        (tea,) = (answer for answer in last.estimates if answer.name == "tea")
        assert tea.ground_truth == held
        assert within(tea.value, held, tea.standard_error or 0)
        assert last.covered.all()
        together = "within a run are correlated" if window is None else "nearly independent"
        assert together in expected_coverage(job, log)
        assert last.recall is not None
        assert last.recall >= 2 / 3
        estimate = found.records[-1].estimate
        assert isinstance(estimate, EstimatedCounts)
        truths = log.ground_truths(job.domain).known(3, estimate)
        assert truths is not None
        by_item = dict(zip(job.domain.labels(estimate.numbers), truths.tolist(), strict=True))
        assert by_item["tea"] == held
        assert np.isin([0], truths).sum() <= 1
