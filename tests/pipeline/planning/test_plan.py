"""Test that plans predict the numbers of the reference, and the messages that devices send."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.pipeline.devices.item_log import load_item_log
from dpstream.pipeline.devices.rows import InputError
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import Job, make_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.planning.change_budgets import read_changes_histogram
from dpstream.pipeline.planning.job_plan import FreshBudget, most_users, plan
from dpstream.pipeline.protocols.forecasts import Forecast
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.simulation.simulated_job import simulate
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.row_errors import zipf_counts
from dpstream.topics.names import Role
from tests.pipeline.stages.test_sealed_reports import IN_SERIES
from tests.support.commands import Commands
from tests.support.new_jobs import new_job
from tests.support.sealing import all_keys, sealed_section, shares_section
from tests.support.world import DEPLOYMENT, World


def job(epochs: int, changes: int, calibration: str = "optimal", epsilon: float = 1.0) -> Job:
    parameters = {
        "epsilon": epsilon,
        "max_changes": changes,
        "calibration": calibration,
        "estimator": "tree" if calibration == "optimal" else "prefix",
    }
    return new_job("planned", "future_rand", parameters, count=epochs)


def forecast_of(planned: Job) -> Forecast:
    planning = planned.protocol_entry.planning
    assert planning is not None
    return planning.forecast(planned.calibrate(), planned.parameters, planned.epochs.count)


# RMSE / sqrt(users) at epsilon 1: section 1 of the reference.
@pytest.mark.parametrize(
    ("epochs", "changes", "calibration", "expected"),
    [
        (64, 1, "published", 46.1),
        (64, 4, "published", 126),
        (64, 16, "published", 236),
        (256, 1, "published", 60.2),
        (256, 4, "published", 165),
        (256, 16, "published", 308),
        (1024, 1, "published", 74.4),
        (1024, 4, "published", 204),
        (1024, 16, "published", 380),
        (64, 1, "optimal", 7.0),
        (64, 4, "optimal", 14.9),
        (64, 16, "optimal", 25.8),
        (256, 1, "optimal", 9.1),
        (256, 4, "optimal", 19.6),
        (256, 16, "optimal", 35.8),
        (1024, 1, "optimal", 11.3),
        (1024, 4, "optimal", 24.4),
        (1024, 16, "optimal", 45.8),
        (4096, 1, "optimal", 13.4),
        (4096, 4, "optimal", 29.1),
        (4096, 16, "optimal", 55.8),
    ],
)
def test_predicted_error_equals_the_reference(
    epochs: int, changes: int, calibration: str, expected: float
) -> None:
    rmse = plan(job(epochs, changes, calibration), users=10**6).rmse / 1000
    # The optimal mechanism trades up to 3 % of online accuracy for smoothed accuracy.
    assert 0.994 * expected < rmse < (1.03 if calibration == "optimal" else 1.006) * expected


def test_planned_guarantee_matches_the_mechanism() -> None:
    assert plan(job(64, 4, epsilon=4)).guarantee.epsilon == pytest.approx(4)
    published = plan(job(64, 4, "published")).guarantee
    assert published.epsilon == pytest.approx(0.252435, abs=1e-6)
    assert (published.unit, published.delta) == ("stream", 0)


def test_devices_send_the_planned_number_of_messages() -> None:
    planned, devices = job(12, 2), 5000
    expected = plan(planned, users=devices)
    rng = seeded_generator(3)
    randomizer = planned.protocol_entry.randomizer(planned.calibrate())
    randomizer.enroll(devices, rng)
    values = np.zeros(devices, np.int8)
    sent = [len(written_out(randomizer.report(epoch, values, None, rng))) for epoch in range(1, 13)]
    for epoch, reports in zip(expected.epochs, sent, strict=True):
        # Reporting at an epoch depends only on the order: a binomial count, within 7 sigma.
        assert abs(reports - epoch.reports) <= 7 * math.sqrt(devices) / 2
    assert sum(sent) == pytest.approx(expected.reports_per_user * devices, rel=0.1)
    assert expected.bytes_per_user == expected.reports_per_user


def test_unplannable_job_is_rejected_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="got 0 users; expected at least 1"):
        plan(job(4, 1), users=0)
    mute = replace(PROTOCOLS["future_rand"], planning=None)
    monkeypatch.setitem(PROTOCOLS, "future_rand", mute)
    with pytest.raises(JobError, match="future_rand, which has no error forecast"):
        plan(job(4, 1))


def test_smoothed_errors_are_predicted() -> None:
    """RMSE / sqrt(users) offline at epsilon 1: section 1 of the reference."""
    for epochs, changes, expected in [(64, 1, 5.5), (256, 4, 13.6), (1024, 16, 29.2)]:
        made = plan(job(epochs, changes), users=10**6)
        assert made.smoothed_rmse is not None
        assert made.smoothed_rmse / 1000 == pytest.approx(expected, rel=0.05)
        smoothed = [epoch.smoothed for epoch in made.epochs]
        assert all(
            each is not None and each <= epoch.standard_error * (1 + 1e-9)
            for each, epoch in zip(smoothed, made.epochs, strict=True)
        )
        # The last epoch has no later epochs to learn from.
        assert smoothed[-1] == pytest.approx(made.epochs[-1].standard_error, rel=0.05)


def test_target_error_determines_the_minimum_or_maximum_number_of_users() -> None:
    planned = job(170, 4, epsilon=4)
    (needed,) = plan(planned, error=0.03).users_needed
    assert needed.error == 0.03
    assert needed.users is not None
    assert plan(planned, needed.users).rmse <= 0.03 * needed.users
    assert plan(planned, needed.users - 1).rmse > 0.03 * (needed.users - 1)

    most = plan(planned, error=500).most_users
    assert most is not None
    assert most.users is not None
    assert plan(planned, most.users).rmse <= 500 < plan(planned, most.users + 1).rmse
    assert most_users(forecast_of(planned), 1e-3) is None
    # Fewer users than the minimum of a window are rejected.
    assert most_users(forecast_of(planned), 500, fewest=most.users) == most.users
    assert most_users(forecast_of(planned), 500, fewest=most.users + 1) is None
    for error in (0, -1, math.inf, math.nan):
        with pytest.raises(ValueError, match="expected a share or number of users above 0"):
            plan(planned, error=error)


def test_plan_warns_when_estimates_would_be_missing() -> None:
    planned = job(8, 2)
    assert plan(planned, users=100).warnings == ()
    (few,) = plan(planned, users=99).warnings
    assert few.startswith("99 users are fewer than shuffle.minimum, 100: every epoch would be")
    enough, little = (
        make_job({**planned.to_json(), "budget": {"epsilon": epsilon}}) for epsilon in (1, 0.5)
    )
    assert plan(enough).warnings == ()
    assert plan(enough).budget == FreshBudget(1.0, 1, 1.0)
    assert (plan(planned).budget, plan(little).budget) == (None, None)
    (rejected,) = plan(little).warnings
    assert rejected.startswith(
        "deploy will reject this job: the budget of population planned is epsilon 0.5"
    )
    assert "epsilon 0.5" in rejected


def shares(*amounts: float) -> NDArray[np.float64]:
    return np.array(amounts) / sum(amounts)


def test_best_max_changes_minimizes_noise_plus_bias() -> None:
    planned = job(170, 4, epsilon=4)
    few_freeze = shares(0, 0, 90, 0, 9.8, 0, 0.2)
    choices = plan(planned, users=30_000, changes=few_freeze).changes
    (best,) = (choice for choice in choices if choice.best)
    assert best.rmse == min(choice.rmse for choice in choices)
    for choice in choices:
        same = plan(job(170, choice.max_changes, epsilon=4), users=30_000)
        assert choice.noise == pytest.approx(same.rmse)
        assert choice.rmse == pytest.approx(math.hypot(choice.noise, choice.bias))
        assert choice.exhausted == pytest.approx(few_freeze[choice.max_changes + 1 :].sum())
    noise = [choice.noise for choice in choices]
    assert noise == sorted(noise)

    # Noise increases with the square root of the users, bias linearly: large populations can afford
    # more changes.
    def best_for(users: int) -> int:
        made = plan(planned, users=users, changes=few_freeze).changes
        return next(choice.max_changes for choice in made if choice.best)

    assert [best_for(users) for users in (3_000, 10**6, 10**10)] == [2, 4, 6]


@pytest.mark.parametrize("header", ["changes,share", "Changes, share", "changes,users"])
def test_change_histogram_is_read_from_csv(tmp_path: Path, header: str) -> None:
    path = tmp_path / "histogram.csv"
    factor = 40 if header.endswith("users") else 1
    path.write_text(f"{header}\n3,{0.25 * factor}\n\n0,{0.75 * factor}\n")
    assert read_changes_histogram(path, 8).tolist() == [0.75, 0, 0, 0.25]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1: expected column names changes,share or changes,users: a number of changes, and"),
        ("changes,users\n", ": all rows have 0 users; expected the number or share of users"),
        ("changes,users\n1,5\nmany,5\n", ":3: 'many,5' is not a number of changes and a share"),
        ("changes,users\n-1,5\n", ":2: '-1,5' is not a number of changes and a share"),
        ("changes,users\n2,1e308\n3,1e308\n", ":2: '2,1e308' is not a number of changes and a"),
        ("changes,users\n1,5\n1,6\n", ":3: duplicate row for 1 changes; expected one row"),
        (
            "changes,users\n9,5\n",
            (":2: 9 changes do not fit in 8 epochs; expected at most one change per epoch"),
        ),
        (
            "changes,share\n1,0.5\n",
            ": the sum of shares is 0.5; expected 1. If these are user counts, name the column",
        ),
    ],
)
def test_invalid_change_histogram_is_rejected_in_one_line(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "histogram.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_changes_histogram(path, 8)
    assert str(caught.value).startswith(f"{path}{message}")
    assert "\n" not in str(caught.value)


def test_plan_counts_bytes_of_ciphertexts_and_cover_traffic(folder: Path) -> None:
    values = {
        "name": "sealed",
        "protocol": "fragments",
        "parameters": {"epsilon": 1, "delta": 1e-3, "domain": ["a", "b"]},
        "epochs": {"count": 1},
        "shuffle": {"minimum": 100},
        "sealed": sealed_section(IN_SERIES[:2]),
    }
    job = deploy_job(make_job(values), deployment=DEPLOYMENT, deployed_at=0)
    users = {f"{user}": 1 for user in range(100)}
    world = World(job, folder, {"north": {1: users}}, keys=all_keys(IN_SERIES))
    world.close_epoch("north", 1)
    world.shut()
    sent = sum(map(len, world.log.values(Role.REPORTS, 1)))
    planned = 100 * plan(make_job(values), 100).bytes_per_user
    assert planned < sent < 1.05 * planned


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
