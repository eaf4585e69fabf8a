"""Jobs of numbers and labels over time in the shuffled model: ranges, quantiles, the largest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpstream.aggregators.level_estimates import LevelEstimates
from dpstream.pipeline.devices.change_log import ChangeLog, load_change_log
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import Job, make_job, parse_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.planning.plan import plan
from dpstream.pipeline.results.asked import Asked, make_query
from dpstream.pipeline.results.kinds.registry import kind_of
from dpstream.pipeline.simulation.simulate import Simulation, simulate
from dpstream.pipeline.simulation.trials import run_trials
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.manifests import Fate
from tests.support.commands import Commands

EPOCHS, USERS, MINIMUM = 6, 2_000, 1_000
HOURS = "{low: 0, high: 80, buckets: 16}"
JOBS = [
    f"domain: {HOURS}",
    f"domain: {HOURS}, dummies: shuffle",
    f"domain: {HOURS}, changes: 2, boost: 1",
    "domain: {bits: 5}",
    "domain: {bits: 5}, changes: 3, boost: 1, dummies: shuffle",
]


@pytest.fixture
def dpstream(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("COLUMNS", "100")
    return Commands(capsys)


def job_text(parameters: str) -> str:
    return (
        f"name: hours\nprotocol: shuffled_counts\n"
        f"parameters: {{epsilon: 2, delta: 1.0e-6, {parameters}}}\n"
        f"epochs: {{count: {EPOCHS}}}\nshuffle: {{minimum: {MINIMUM}}}\ntopics: {{partitions: 2}}\n"
    )


def write(folder: Path) -> Path:
    """Users begin at epochs 1 to 3; a third has another number from epoch 5 on, some none."""
    numbers = np.minimum(seeded_generator(1).gamma(4, 3, (2, USERS)), 31).astype(int)
    rows = [f"user{u},{u % 3 + 1},{number}" for u, number in enumerate(numbers[0])]
    rows += [f"user{u},5,{numbers[1, u] if u % 4 else ''}" for u in range(USERS) if not u % 3]
    path = folder / "hours.csv"
    path.write_text("\n".join(["user,epoch,value", *rows]) + "\n")
    return path


def run(parameters: str, folder: Path) -> tuple[Job, ChangeLog, Simulation]:
    job = parse_job(job_text(parameters))
    changes = load_change_log(write(folder), domain=job.domain, last_epoch=EPOCHS)
    deployed = deploy_job(job, deployed_at=0, deployment=bytes(16))
    return job, changes, simulate(deployed, changes, seed=1, smooth=True)


@pytest.mark.slow
@pytest.mark.parametrize("parameters", [JOBS[1], JOBS[2], JOBS[4]])
def test_a_job_publishes_what_it_planned(parameters: str, tmp_path: Path) -> None:
    job, _, done = run(parameters, tmp_path)
    expected = plan(job, USERS)
    assert make_job(job.to_json()) == job
    deviations = np.array([planned.standard_deviation for planned in expected.epochs])
    assert [record.fate for record in done.records] == [Fate.RELEASED] * EPOCHS
    said = [record.estimate for record in done.records]
    assert all(isinstance(each, LevelEstimates) for each in said)
    assert [each.standard_deviation for each in said if isinstance(each, LevelEstimates)] == (
        pytest.approx(deviations.tolist())
    )
    errors = done.errors().reshape(EPOCHS, -1) / deviations[:, None]
    assert np.abs(errors).max() < 7
    assert 0.6 < np.square(errors).mean() < 1.6
    assert expected.guarantee.unit == "stream"


@pytest.mark.verify
@pytest.mark.parametrize("parameters", [JOBS[0], JOBS[2]])
def test_the_plan_is_met_within_5_percent(parameters: str, tmp_path: Path) -> None:
    job, changes, _ = run(parameters, tmp_path)
    trials = run_trials(deploy_job(job, deployed_at=0), changes, 40, seed=3)
    measured = np.sqrt(np.square([trial.errors() for trial in trials]).mean())
    assert measured == pytest.approx(plan(job, USERS).rmse, rel=0.05)


@pytest.mark.parametrize("parameters", [JOBS[2], JOBS[3]])
def test_ranges_and_quantiles_are_answered_at_every_epoch(parameters: str, tmp_path: Path) -> None:
    job, _, done = run(parameters, tmp_path)
    ranges = make_query(job.domain, Asked(ranges=["5:10", ":20", "0:"]))
    quartiles = make_query(job.domain, Asked(quantiles=["0.25", "0.5"]))
    assert ranges is not None
    assert quartiles is not None
    for record in done.records:
        truth = done.truth[record.epoch]
        for answer in ranges.answers(record.estimate, truth):
            assert answer.truth is not None
            assert answer.standard_deviation is not None
            assert abs(answer.value - answer.truth) < 7 * answer.standard_deviation
        for answer in quartiles.answers(record.estimate, truth):
            assert answer.truth is not None
            assert answer.low <= answer.truth <= answer.high
            assert abs(answer.value - answer.truth) < 4
        headline = kind_of(job.domain).headline(job.domain, record, truth)
        assert headline.name == "median"
        # Counts of zero are no quantile of anything, and no error either.
        nobody = np.zeros_like(truth)
        assert all(each.truth is None for each in quartiles.answers(record.estimate, nobody))


@pytest.mark.parametrize(
    ("domain", "problem"),
    [
        ("{grid: [3, 4]}", r"list of labels, .*\{bits: b\} or \{low: x"),
        ("{bits: 13}", "must have at most 4,096"),
        ("{low: 3, high: 3, buckets: 4}", "low must be below high"),
    ],
)
def test_other_domains_are_refused(domain: str, problem: str) -> None:
    with pytest.raises(JobError, match=problem):
        parse_job(job_text(f"changes: 1, domain: {domain}"))
