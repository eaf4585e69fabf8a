"""Test plans of jobs with crowds against actual deletion and a simulation."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.devices.item_log import load_item_log
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import Job, make_job
from dpstream.pipeline.planning.crowd_sizes import probability_below
from dpstream.pipeline.planning.job_plan import plan
from dpstream.pipeline.simulation.simulated_job import simulate
from dpstream.randomizers.crowds.calibration import calibrate
from dpstream.randomizers.noise_tables import TABLE_BITS, discrete_laplace_table
from tests.support.new_jobs import hidden_sizes

JOB: dict[str, Any] = {
    "name": "features",
    "protocol": "single_message",
    "parameters": {"epsilon": 2, "delta": 1e-3, "domain": ["dark", "light", "auto", "none"]},
    "epochs": {"count": 12},
    "shuffle": {"minimum": 200},
    **hidden_sizes(["1", "2", "3"], 0.5, 1e-3),
}
SIZES = {"1": 1200, "2": 600, "3": 150}


def job_of(**changes: Any) -> Job:
    return make_job({**JOB, **changes})


def test_suppression_probability_matches_the_noise_table() -> None:
    counts = calibrate(0.7, 1e-4, 1)
    table = discrete_laplace_table(counts.ratio)
    masses = [(high - low) / 2**TABLE_BITS for low, high in pairwise((0, *table.bounds))]
    for bound in (-20, -1, 0, 1, 2, 15):
        expected = sum(masses[: max(0, bound - table.first)])
        assert probability_below(counts, bound) == pytest.approx(expected, rel=1e-9)


def test_plan_states_crowd_losses_and_guarantee() -> None:
    job = job_of()
    made = plan(job, 3000)
    law = deploy_job(job, deployed_at=0).crowds_law
    assert law is not None
    assert made.crowds is not None
    assert (made.crowds.shift, made.crowds.crowds) == (law.counts.shift, 3)
    assert made.guarantee.epsilon == pytest.approx(2.5)
    assert made.crowds.epsilon + made.crowds.contents_epsilon == pytest.approx(2.5)
    equal = next(each for each in made.crowds.sizes if each.users == 1000)
    assert equal.rmse == pytest.approx(made.rmse)
    assert equal.lost == law.counts.shift / 1000
    large, small = made.crowds.sizes[0], made.crowds.sizes[-1]
    assert large.rmse / small.rmse == pytest.approx((large.users / small.users) ** 0.5, rel=0.15)
    assert large.suppressed < 1e-9
    assert small.suppressed == pytest.approx(probability_below(law.counts, law.counts.shift - 50))
    assert (
        plan(make_job({key: JOB[key] for key in JOB if key not in ("attributes", "by")})).crowds
        is None
    )
    # A user who changes the crowd has messages in two windows, which costs accuracy.
    assert law.contents.epsilon == 2


def write_rows(folder: Path) -> Path:
    path = folder / "rows.csv"
    rows = [
        f"{version}-{user},{epoch},{'' if user % 9 else 'dark'},{version}\n"
        for version, size in SIZES.items()
        for user in range(size)
        for epoch in range(1, 13)
    ]
    path.write_text("user,epoch,value,version\n" + "".join(rows))
    return path


def test_simulated_errors_per_crowd_match_the_plan(tmp_path: Path) -> None:
    job = job_of()
    log = load_item_log(write_rows(tmp_path), domain=job.domain, last_epoch=12)
    deployed = deploy_job(job, deployed_at=0, deployment=bytes(16))
    done = simulate(deployed, log, seed=3)
    made = plan(job, 3 * SIZES["2"])
    errors: dict[int, list[float]] = {}
    for record in done.records:
        assert record.estimate is not None
        assert record.estimate.suppressed == (11,)
        ground_truth = done.ground_truth[record.epoch]
        for number, estimate in record.estimate.of_items():
            errors.setdefault(number, []).append(
                (estimate.value or 0) - int(ground_truth[number - 1])
            )
    # Items without users, in the second crowd.
    rare = np.concatenate([errors[number] for number in (8, 9, 10)])
    assert np.sqrt(np.mean(rare**2)) == pytest.approx(made.rmse, rel=0.5)
    sizes = np.concatenate([errors[1], errors[6]])
    assert made.crowds is not None
    assert np.abs(sizes).max() < 12 * made.crowds.deviation
    assert np.sqrt(np.mean(sizes**2)) > made.crowds.deviation / 3
