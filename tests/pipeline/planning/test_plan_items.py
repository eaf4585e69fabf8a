"""Test plans of jobs that count items epoch by epoch against a simulation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.devices.item_log import load_item_log
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import Job, make_job
from dpstream.pipeline.planning.job_plan import plan
from dpstream.pipeline.simulation.simulated_job import simulate
from dpstream.randomizers.row_errors import zipf_counts
from tests.support.commands import Commands
from tests.support.new_jobs import new_job
from tests.support.sealing import sealed_section, shares_section

SIZE, USERS, MINIMUM, EPOCHS = 400, 2_000, 1_500, 4


def job_of(protocol: str, minimum: int = MINIMUM, **parameters: Any) -> Job:
    return new_job(
        "items",
        protocol,
        {"epsilon": 1, "delta": 1e-6, "domain": {"bits": 9}, **parameters},
        count=EPOCHS,
        minimum=minimum,
    )


def test_error_for_items_without_users_is_the_noise_error(tmp_path: Path) -> None:
    job = job_of("count_min", rows=3, buckets=64, estimator="median")
    path = tmp_path / "empty.csv"
    path.write_text(
        "user,epoch,value\n" + "".join(f"user{user},{EPOCHS},\n" for user in range(USERS))
    )
    done = simulate(deploy_job(job, deployed_at=0), load_item_log(path, domain=job.domain), seed=1)
    found = np.mean([accuracy.mean_absolute_error for accuracy in done.accuracies.values()])
    alone, made = plan(job, USERS, held=np.full(1 << 9, 1e-9)), plan(job, USERS)
    assert made.noise_error is not None
    assert made.predicted_error is not None
    assert found == pytest.approx(alone.noise_error, rel=0.19)
    assert made.predicted_error > 1.2 * made.noise_error


def test_collision_errors_are_predicted_from_given_item_counts() -> None:
    job = job_of("count_min", rows=3, buckets=64)
    usual, none, even = (
        plan(job, USERS, held=shares)
        for shares in (None, np.array([1e-9]), np.full(SIZE, 1 / SIZE))
    )
    zipf = plan(job, USERS, held=zipf_counts(1 << 9, 1.0))
    assert zipf.predicted_error == usual.predicted_error
    assert none.predicted_error == pytest.approx(none.noise_error, rel=0.02)
    assert usual.predicted_error is not None
    assert even.predicted_error is not None
    assert none.predicted_error is not None
    assert none.predicted_error < min(usual.predicted_error, even.predicted_error)
    assert any("the given counts" in note for note in even.notes)


def test_required_number_of_users_is_at_least_the_window_minimum() -> None:
    made = plan(job_of("count_min"), USERS)
    assert {needed.users for needed in made.users_needed} == {MINIMUM}
    single = plan(job_of("single_message"), USERS)
    (few,) = (needed.users for needed in single.users_needed if needed.error == 0.01)
    assert few is not None
    assert few > MINIMUM


class TestCommand:
    @staticmethod
    def job_file(folder: Path, parameters: str = "", minimum: str = "{minimum: 1000}") -> Path:
        path = folder / "items.yaml"
        shuffle = f"shuffle: {minimum}\n" if minimum else ""
        path.write_text(
            "name: items\nprotocol: count_min\n"
            f"parameters: {{epsilon: 1, delta: 1e-6, domain: [a, b, c]{parameters}}}\n"
            f"epochs: {{count: 3}}\n{shuffle}"
        )
        return path

    def test_reference_counts_are_read_from_files(self, dpstream: Commands, tmp_path: Path) -> None:
        job = self.job_file(tmp_path, ", rows: 2, buckets: 2")
        counts, log = tmp_path / "counts.csv", tmp_path / "log.csv"
        counts.write_text("item,count\na,30\nb,10\n")
        log.write_text(
            "user,epoch,value\n"
            + "".join(f"user{user},2,{'b' if user % 4 == 0 else 'a'}\n" for user in range(40))
        )
        found = [
            dpstream("plan", job, "--reference-input", path, "--json") for path in (counts, log)
        ]
        assert found[0].json == found[1].json
        assert all(each.errors.startswith("not private: errors are predicted") for each in found)
        log.write_text("user,epoch,value\nann,1,d\n")
        rejected = dpstream("plan", job, "--reference-input", log)
        assert rejected.code == 2
        assert "'d' is not in the domain" in rejected.errors


@pytest.mark.parametrize(
    ("sealed", "parties"),
    [(sealed_section(((2,),)), 1), (sealed_section(((2,), (3,))), 2), (shares_section(), 2)],
)
def test_noise_from_later_parties_adds_to_the_error(sealed: dict[str, Any], parties: int) -> None:
    """Each adds the noise of a window with the minimum contributor count; variances are summed."""
    values = {
        "name": "sealed",
        "protocol": "count_min",
        "parameters": {"epsilon": 1, "delta": 1e-6, "domain": ["a", "b"]},
        "epochs": {"count": 1},
        "shuffle": {"minimum": 500},
    }
    alone = plan(make_job(values), 500).rmse
    assert plan(make_job({**values, "sealed": sealed}), 500).rmse == pytest.approx(
        alone * math.sqrt(1 + parties)
    )
