"""value_stream on real students: errors as planned, with the real codec and stages."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.value_stream import ValueStreamAggregator
from dpstream.pipeline.demo import demo_change_log
from dpstream.pipeline.devices.change_log import ChangeLog, load_change_log
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.protocols.followed_forecasts import ValueStreamForecast
from dpstream.pipeline.simulation.simulated_job import column_errors, coverage
from dpstream.pipeline.simulation.trials import run_trials
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.value_stream import ValueStream, ValueStreamParameters
from dpstream.randomizers.value_stream.calibration import calibrate
from tests.support.new_jobs import new_job
from tests.verify.tables import print_table

pytestmark = pytest.mark.verify

EPOCHS = 170


@pytest.fixture(scope="module")
def students() -> ChangeLog:
    return load_change_log(demo_change_log(), last_epoch=EPOCHS)


@pytest.mark.parametrize(
    ("epsilon", "changes", "seeds", "expected"), [(1.0, 2, 120, 1_156), (4.0, 4, 120, 376)]
)
def test_errors_on_student_data_match_predictions(
    students: ChangeLog, epsilon: float, changes: int, seeds: int, expected: float
) -> None:
    job = new_job(
        "students", "value_stream", {"epsilon": epsilon, "max_changes": changes}, count=EPOCHS
    )
    done = 0

    def progress() -> None:
        nonlocal done
        done += 1
        print(f"\r{done} of {seeds}", end="", file=sys.stderr, flush=True)

    trials = run_trials(
        deploy_job(job, deployed_at=0, deployment=bytes(16)),
        students,
        seeds,
        seed=1,
        on_trial=progress,
    )
    errors = [column_errors([trial])["online"] for trial in trials]
    law = calibrate(ValueStreamParameters(epsilon, changes), EPOCHS)
    planned = ValueStreamForecast(law, EPOCHS).standard_errors(len(students.users))
    covered = coverage(trials)
    assert covered is not None
    print_table(
        f"{len(students.users):,} students, epsilon {epsilon:g}, {changes} changes, {seeds} seeds",
        ["mean RMSE", "standard error", "planned", "coverage"],
        [
            [
                f"{np.mean(errors):,.0f}",
                f"{np.std(errors, ddof=1) / math.sqrt(seeds):,.0f}",
                f"{math.sqrt(np.square(planned).mean()):,.0f}",
                f"{covered:.3f}",
            ]
        ],
    )
    assert np.mean(errors) == pytest.approx(expected, rel=0.04)
    assert 0.94 <= covered <= 0.96


@pytest.mark.parametrize(
    ("epsilon", "changes", "public", "expected"), [(1.0, 2, False, 1_266), (6.0, 8, True, None)]
)
def test_errors_with_students_who_are_absent_or_late_match_predictions(
    students: ChangeLog, epsilon: float, changes: int, public: bool, expected: float | None
) -> None:
    """20 % are absent at every epoch, and 10 % enroll at the sixtieth.

    With a large epsilon, errors would show changes that are not boosted because their time is
    unknown. From a change log, values of absent devices are known too.
    """
    seeds, late, arrival = 24, 10, 60
    count = len(students.users)
    law = calibrate(ValueStreamParameters(epsilon, changes), EPOCHS)
    errors, covered, published = [], [], []
    for seed in range(seeds):
        rng = seeded_generator(31, seed)
        order = rng.permutation(count)
        early = count - count // late
        devices, aggregator = ValueStream(law), ValueStreamAggregator(law)
        participation = Participation.empty(EPOCHS)
        devices.enroll(early, rng)
        for epoch in range(1, EPOCHS + 1):
            if epoch == arrival:
                devices.enroll(count - early, rng)
            values = students.values_at(epoch)[order[: devices.population]]
            present = rng.random(len(values)) < 0.8
            known = np.ones(len(values), np.bool_) if public else None
            words = devices.follow(epoch, values, present, rng, known)
            aggregator.add(epoch, words[:, None], None)
            participation.set(epoch, int(present.sum()), len(values))
            estimate = aggregator.estimate(epoch, participation)
            assert estimate is not None
            assert estimate.value is not None
            assert estimate.ci95_low is not None
            assert estimate.ci95_high is not None
            ground_truth = int(values.sum())
            errors.append(estimate.value - ground_truth)
            covered.append(estimate.ci95_low <= ground_truth <= estimate.ci95_high)
            published.append(estimate.standard_error)
    rmse = float(np.sqrt(np.square(errors).mean()))
    planned = float(np.sqrt(np.square(np.array(published, np.float64)).mean()))
    print_table(
        f"epsilon {epsilon:g}, a fifth absent, a tenth enrolled at week {arrival}, {seeds} seeds",
        ["RMSE", "published", "mean error", "coverage"],
        [[f"{rmse:,.0f}", f"{planned:,.0f}", f"{np.mean(errors):,.0f}", f"{np.mean(covered):.3f}"]],
    )
    assert expected is None or planned == pytest.approx(expected, rel=0.02)
    assert rmse == pytest.approx(planned, rel=0.08)
    assert 0.94 <= np.mean(covered) <= 0.96
