"""The demonstration's students, 200 times over: errors beside what `plan` said beforehand.

Every trial takes the whole path in memory, with the real randomizer, codec and stages.

A student with more changes than are followed freezes. That biases estimates and is in no
prediction, but known exactly, whatever is drawn: at each order a device counts as one whose partial
sums are 0 from the first one that finds its signs used up. This *freezing bias* is taken out of the
errors where they are compared with predictions. Intervals are judged with it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.aggregators.future_rand import interval_variances
from dpstream.aggregators.increments import Increment
from dpstream.aggregators.prefix_combiner import PrefixCombiner
from dpstream.pipeline.demo import demo_change_log, demo_job_file
from dpstream.pipeline.devices.change_log import ChangeLog, load_change_log
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import Job, load_job, make_job
from dpstream.pipeline.planning.plan import Plan, plan
from dpstream.pipeline.simulation.simulate import coverage, root_mean_square
from dpstream.pipeline.simulation.trials import run_trials
from dpstream.randomizers.dyadic import orders_due
from dpstream.randomizers.future_rand import FutureRandLaw
from tests.verify.tables import print_table

pytestmark = pytest.mark.verify

Calibration: TypeAlias = Literal["optimal", "published"]
Array: TypeAlias = NDArray[np.float64]

CALIBRATIONS: tuple[Calibration, ...] = ("optimal", "published")
TRIALS = 200
TOLERANCE = 0.12
FALSE_ALARM = 1e-9
# Six standard errors, if nine estimates of a trial are independent: one for each order.
COVERAGE_TOLERANCE = 6 * math.sqrt(0.05 * 0.95 / (9 * TRIALS))
EPOCHS_SHOWN = (1, 2, 16, 32, 64, 85, 127, 128, 150, 170)


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What was predicted and what was measured of one calibration.

    Attributes:
        planned: made before any data, for as many users.
        bias: of the estimates, by freezing, shape (epochs,).
        errors: of the estimates, shape (trials, epochs).
        published: their own standard deviations, shape (trials, epochs).
        rmse: over all trials and epochs, as `simulate` prints it.
        coverage: share of the intervals that hold the truth.
    """

    planned: Plan
    bias: Array
    errors: Array
    published: Array
    rmse: float
    coverage: float

    @property
    def noise(self) -> Array:
        """Errors apart from the freezing bias."""
        return self.errors - self.bias


def test_errors_on_the_students_are_as_planned() -> None:
    change_log = load_change_log(demo_change_log(), last_epoch=demo_job("optimal").last_epoch)
    optimal, published = (measure(calibration, change_log) for calibration in CALIBRATIONS)
    show(optimal, published, change_log)
    for outcome in (optimal, published):
        assert abs(root_mean(outcome.noise) / outcome.planned.rmse - 1) < TOLERANCE
        assert abs(outcome.coverage - 0.95) < COVERAGE_TOLERANCE
        epochs = outcome.errors.shape[1]
        assert likelihood_of_means(outcome).min() > FALSE_ALARM / epochs
        assert likelihood_of_squares(outcome.noise / outcome.published).min() > FALSE_ALARM / epochs
        for scale in (0.7, 1.3):
            scaled = scale * outcome.noise
            assert abs(root_mean(scaled) / outcome.planned.rmse - 1) > TOLERANCE


def demo_job(calibration: Calibration) -> Job:
    values = load_job(demo_job_file()).to_json()
    estimator = "tree" if calibration == "optimal" else "prefix"
    values["parameters"] |= {"calibration": calibration, "estimator": estimator}
    return make_job(values)


def measure(calibration: Calibration, change_log: ChangeLog) -> Outcome:
    job, users = demo_job(calibration), len(change_log.users)
    planned = plan(job, users)
    law = job.calibrate()
    assert isinstance(law, FutureRandLaw)
    values = np.zeros((job.epochs.count + 1, users), np.int8)
    for epoch, now in enumerate(change_log.values_by_epoch(), start=1):
        values[epoch] = now
    bias = freezing_bias(law, values, combine=calibration == "optimal")
    trials = run_trials(
        deploy_job(job, deployed_at=0, deployment=bytes(16)),
        change_log,
        TRIALS,
        seed=CALIBRATIONS.index(calibration),
        on_trial=progress(calibration),
    )
    published = [
        [record.estimate.standard_deviation for record in trial.records if record.estimate]
        for trial in trials
    ]
    rmse, covered = root_mean_square(trials), coverage(trials)
    assert rmse is not None
    assert covered is not None
    return Outcome(
        planned,
        bias,
        np.array([trial.errors() for trial in trials]),
        np.array(published, np.float64),
        rmse,
        covered,
    )


def freezing_bias(law: FutureRandLaw, values: NDArray[np.int8], combine: bool) -> Array:
    """What changes beyond the budget take from the estimates of values (epochs + 1, users)."""
    followed = []
    for order, composed in enumerate(law.composed):
        partial_sums = np.diff(values[:: 1 << order], axis=0)
        changes = np.cumsum(np.abs(partial_sums), axis=0, dtype=np.int16)
        followed.append(np.where(changes <= composed.k, partial_sums, 0).sum(axis=1))
    variances = interval_variances(law)
    combiner = PrefixCombiner(1, combine=combine)
    bias = np.empty(len(values) - 1)
    for epoch in range(1, len(values)):
        combiner.add_epoch(
            [
                Increment(followed[order][[(epoch >> order) - 1]], variances[order], 0.0, 1)
                if law.order_weights[order]
                else None
                for order in range(orders_due(epoch))
            ]
        )
        bias[epoch - 1] = combiner.total().value[0] - int(values[epoch].sum())
    return bias


def progress(calibration: Calibration) -> Callable[[], None]:
    """Says on standard error how far the trials are."""
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        end = "\n" if done == TRIALS else ""
        print(f"\r{calibration}: {done} of {TRIALS} trials", end=end, file=sys.stderr, flush=True)

    return step


def show(optimal: Outcome, published: Outcome, change_log: ChangeLog) -> None:
    both = {"optimal": optimal, "published": published}
    users = len(change_log.users)
    print_table(
        f"RMSE on the demonstration's data: {users:,} students, {TRIALS} trials",
        [
            "calibration",
            "epsilon spent",
            "planned",
            "measured",
            "apart from freezing",
            "of planned",
            "largest freezing bias",
            "95 % intervals with the truth",
        ],
        [
            [
                name,
                f"{outcome.planned.guarantee.epsilon:.3g}",
                f"{outcome.planned.rmse:,.0f}",
                f"{outcome.rmse:,.0f}",
                f"{root_mean(outcome.noise):,.0f}",
                f"{root_mean(outcome.noise) / outcome.planned.rmse:.1%}",
                f"{np.abs(outcome.bias).max():,.0f}",
                f"{outcome.coverage:.1%}",
            ]
            for name, outcome in both.items()
        ],
    )
    truth = change_log.truth()
    for name, outcome in both.items():
        planned = [epoch.standard_deviation for epoch in outcome.planned.epochs]
        print_table(
            f"Standard deviations by epoch, {name} law",
            ["epoch", "enrolled", "planned", "measured", "freezing bias"],
            [
                [
                    str(epoch),
                    f"{truth[epoch - 1]:,}",
                    f"{planned[epoch - 1]:,.0f}",
                    f"{root_mean(outcome.noise[:, epoch - 1]):,.0f}",
                    f"{outcome.bias[epoch - 1]:+,.0f}",
                ]
                for epoch in EPOCHS_SHOWN
            ],
        )


def root_mean(errors: Array) -> float:
    """Root mean square."""
    return math.sqrt(float(np.square(errors).mean()))


def likelihood_of_means(outcome: Outcome) -> Array:
    """p-value of the mean error of each epoch, if it is the freezing bias."""
    planned = np.array([epoch.standard_deviation for epoch in outcome.planned.epochs])
    standard_errors = planned / math.sqrt(len(outcome.errors))
    likelihood: Array = 2 * stats.norm.sf(np.abs(outcome.noise.mean(axis=0)) / standard_errors)
    return likelihood


def likelihood_of_squares(standardized: Array) -> Array:
    """p-value of the mean square of each epoch, if it is 1."""
    squares, trials = np.square(standardized).sum(axis=0), len(standardized)
    likelihood: Array = 2 * np.minimum(
        stats.chi2.cdf(squares, trials), stats.chi2.sf(squares, trials)
    )
    return likelihood
